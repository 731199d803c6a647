"""ONNX Runtime as the oracle of the numbers: the whole context recomputed from nothing, teacher-forced."""

from __future__ import annotations

import numpy as np

from ..arms.near_tie import explained_by_schedule
from ..arms.record import TurnRecord, add
from ..contract.verdict import CheckResult


def oracle(record: TurnRecord) -> CheckResult:
    """At every step the token is the one that the model file says, computed by raw ONNX Runtime without any cache.

    Forced on the warm engine's own context, so that one difference does not hide the next. Where the top token differs,
    it must be a near-tie by the error that legal schedules of the oracle itself show.
    Cannot see: differences that move no token.
    """
    if record.recompute is None:
        return CheckResult(not_applicable="the oracle was not asked for this turn")
    if not record.warm.tokens:
        return CheckResult(not_applicable="no token was asked for")
    result = CheckResult()
    rows = record.recompute(record.context[: len(record.prompt) + len(record.warm.tokens) - 1], None)
    for step, token in enumerate(record.warm.tokens):
        result.compared += 1
        row = rows[len(record.prompt) + step - 1]
        top = int(np.argmax(row))
        if token != top and not explained_by_schedule(record, [*record.warm.tokens[:step], top], step):
            add(result, record, check="oracle", arm="recompute", step=step, place=f"generated token {step}",
                message="the model says another token, by more than any legal schedule moves the logits",
                left=f"{token} (logit {row[token]:.6g})", right=f"{top} (logit {row[top]:.6g})")  # fmt: skip
            break
    return result
