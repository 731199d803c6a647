"""Two functions that no engine needs: mutmut must kill every mutant of one and none of the other, else its run is void."""

from __future__ import annotations


def seen(n: int) -> int:
    """n + 1; a test says so."""
    return n + 1


def unseen(n: int) -> int:
    """n + 1; a test calls it and looks away."""
    return n + 1
