"""Engines under test. `engine_subject` is the only module of the harness that imports `engine`."""
