"""The falsifier: deliberate, named faults in `engine/`, and the proof that the harness sees each of them."""
