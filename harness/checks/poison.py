"""Two runs whose fresh memory holds two different patterns: outputs must not tell them apart."""

from __future__ import annotations

from .look import Look
from .registry import check

PATTERNS = (173.25, -391.5)
"""Finite, exactly representable in 16-bit floats, and far from any value a model holds."""


@check(order=60, needs=("poison",), after_failure=True)
def poison(look: Look) -> None:
    """Pages, buffer tails and state slots were filled with another pattern, and every output is bit-equal all the same.

    If not, something past the logical length was read.
    Cannot see: reads whose result is multiplied by an exact zero.
    """
    warm, other = look.record.warm, look.record.poisoned
    assert other is not None
    if warm.failed != other.failed:
        look.find("poison", "a planted error struck in one run only", warm.failed, other.failed)
        return
    if not look.tokens("poison", other.tokens, "the reply depends on what unused memory holds"):
        return
    pairs = zip(warm.last_rows or (), other.last_rows or (), strict=False)
    look.logits("poison", pairs, "logits depend on what unused memory holds")
    if warm.end is not None and other.end is not None:
        look.kv("poison", warm.end, other.end, "end of turn")
