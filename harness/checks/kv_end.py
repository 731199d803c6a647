"""Point (c): the live cache at the end of a turn."""

from __future__ import annotations

from .look import Look
from .registry import check


@check(order=32, needs=("state", "kv", "matched kv", "agreed"))
def kv_end(look: Look) -> None:
    """The retained cache holds exactly what was fed, and every bit is the matched arm's.

    Cannot see: rows beyond the logical length (poison sees whether anything reads them).
    """
    warm, matched = look.record.warm, look.record.matched
    assert warm.end is not None
    assert matched is not None
    assert matched.end is not None
    look.kv("matched", warm.end, matched.end, "end of turn")
