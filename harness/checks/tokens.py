"""The tokens of a warm turn against the matched arm's."""

from __future__ import annotations

from .look import Look
from .registry import check


@check(order=41, needs=("matched",))
def tokens(look: Look) -> None:
    """Warm and matched give the same tokens, and as many as were asked for.

    Cannot see: most faults. Tokens often do not notice; see the other checks.
    """
    matched = look.record.matched
    assert matched is not None
    look.tokens("matched", matched.tokens, component="")
