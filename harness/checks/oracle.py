"""ONNX Runtime as the oracle of the numbers: the whole context recomputed from nothing, teacher-forced."""

from __future__ import annotations

import numpy as np

from ..arms.near_tie import explained_by_schedule
from .look import Look
from .registry import check


@check(order=52, needs=("oracle", "reply"))
def oracle(look: Look) -> None:
    """At every step the token is the one that the model file says, computed by raw ONNX Runtime without any cache.

    Forced on the warm engine's own context, so that one difference does not hide the next. Where the top token differs,
    it must be a near-tie by the error that legal schedules of the oracle itself show.
    Cannot see: differences that move no token.
    """
    record = look.record
    said = record.warm.tokens
    assert record.recompute is not None
    rows = record.recompute(record.context[: len(record.prompt) + len(said) - 1], None)
    for step, token in enumerate(said):
        look.compared()
        row = rows[len(record.prompt) + step - 1]
        top = int(np.argmax(row))
        if token != top and not explained_by_schedule(record, [*said[:step], top], step):
            message = "the model says another token, by more than any legal schedule moves the logits"
            left, right = (f"{each} (logit {row[each]:.6g})" for each in (token, top))
            look.find("recompute", message, left, right, step=step, place=f"generated token {step}")
            return
