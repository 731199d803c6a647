"""Engines under test. `engine` is the only module of the harness that imports warmcold's own."""
