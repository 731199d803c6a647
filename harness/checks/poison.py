"""Two runs whose fresh memory holds two different patterns: outputs must not tell them apart."""

from __future__ import annotations

from ..arms.compare import elided, first_difference, first_token_difference
from ..arms.record import TurnRecord, add, compare_kv
from ..contract.verdict import CheckResult

PATTERNS = (173.25, -391.5)
"""Finite, exactly representable in 16-bit floats, and far from any value a model holds."""


def poison(record: TurnRecord) -> CheckResult:
    """Pages, buffer tails and state slots were filled with another pattern, and every output is bit-equal all the same.

    If not, something past the logical length was read.
    Cannot see: reads whose result is multiplied by an exact zero.
    """
    other = record.poisoned
    if other is None:
        return CheckResult(not_applicable="the poison arm was not run")
    result = CheckResult(compared=1)
    at = first_token_difference(record.warm.tokens, other.tokens)
    if at is not None:
        add(result, record, check="poison", arm="poison", component="tokens", step=at, place=f"generated token {at}",
            message="the reply depends on what unused memory holds",
            left=elided(record.warm.tokens, at), right=elided(other.tokens, at))  # fmt: skip
        return result
    for step, (left, right) in enumerate(zip(record.warm.calls or (), other.calls or (), strict=False)):
        result.compared += left.logits.size
        found = first_difference(left.logits, right.logits)
        if found is not None:
            add(result, record, check="poison", arm="poison", component="logits", step=step, place=f"call {step}",
                message="logits depend on what unused memory holds", left=found.left, right=found.right)  # fmt: skip
            break
    if record.warm.end is not None and other.end is not None:
        compare_kv(result, record, record.warm.end, other.end, check="poison", arm="poison", phase="end of turn")
    return result
