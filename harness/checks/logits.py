"""The logits of every step of a warm turn against the matched arm's."""

from __future__ import annotations

from .look import Look
from .registry import check


@check(order=40, needs=("matched", "logits", "as planned"))
def logits(look: Look) -> None:
    """Warm and matched agree to the last bit in the last row of logits of every call.

    Cannot see: rows other than the last of a chunk, nor KV faults that move no logit (the KV checks see those).
    """
    rows, matched = look.record.warm.last_rows, look.record.matched
    assert rows is not None
    assert matched is not None
    look.logits("matched", zip(rows, matched.logits, strict=False), component="")
