"""A fixture's meaning in plain integers: tokens, logits and KV, from no engine at all."""

from __future__ import annotations

import numpy as np

from ..arms.compare import elided, first_difference, first_token_difference
from ..arms.record import ClosedForm, TurnRecord, add, compare_kv
from ..contract.observation import Kv
from ..contract.verdict import CheckResult


def closed_form(record: TurnRecord) -> CheckResult:
    """Tokens, every call's logits, and the KV at the end are the integers that the fixture means.

    Cannot see: anything on a model without a closed form.
    """
    closed = record.closed
    if closed is None:
        return CheckResult(not_applicable="the model has no closed form")
    result = CheckResult(compared=1)
    expected = closed.greedy(record.prompt, len(record.warm.tokens))
    at = first_token_difference(record.warm.tokens, expected)
    if at is not None:
        add(result, record, check="closed_form", arm="closed form", component="tokens", step=at,
            place=f"generated token {at}", message=f"the reply differs from token {at} on",
            left=elided(record.warm.tokens, at), right=elided(expected, at))  # fmt: skip
        return result
    _logits(result, record, closed)
    if record.warm.end is not None and record.stateful:
        compare_kv(result, record, _unsigned(record.warm.end), _kv(closed, record), check="closed_form",
                   arm="closed form", phase="end of turn")  # fmt: skip
    return result


def _logits(result: CheckResult, record: TurnRecord, closed: ClosedForm) -> None:
    """Each call ends at the position that its own feeds say, whatever schedule the engine chose."""
    if record.warm.reused is None:
        return  # where the first call starts is not shown
    rows = closed.logits(record.fed)
    fed = record.warm.reused if record.stateful else 0
    for step, call in enumerate(record.warm.calls or ()):
        fed = fed + call.rows if record.stateful else call.rows
        if fed > len(rows):
            return  # more was fed than the context holds: the check `feeds` says so
        expected = rows[fed - 1].astype(np.float32)
        result.compared += expected.size
        found = first_difference(call.logits + np.float32(0), expected)
        if found is not None:
            add(result, record, check="closed_form", arm="closed form", component="logits", step=step,
                place=f"call {step}, token {found.index}", message=f"logits differ ({found.count} of {found.total})",
                left=found.left, right=found.right)  # fmt: skip
            return


def _kv(closed: ClosedForm, record: TurnRecord) -> Kv:
    keys, values = closed.keys(record.fed), closed.values(record.fed)
    return tuple((k.astype(np.float32), v.astype(np.float32)) for k, v in zip(keys, values, strict=True))


def _unsigned(kv: Kv) -> Kv:
    """Integers have no -0.0."""
    return tuple((k + np.float32(0), v + np.float32(0)) for k, v in kv)
