"""What the model was really fed: token ids, positions, mask, call by call."""

from __future__ import annotations

from typing import Any

from numpy.typing import NDArray

from ..arms.compare import elided, first_token_difference
from ..arms.record import TurnRecord, add
from ..contract.verdict import CheckResult


def feeds(record: TurnRecord) -> CheckResult:
    """Each call feeds the next tokens of the context, at their absolute positions, under a mask of the whole length.

    The schedule follows from the reused count: the rest of the prompt in chunks, then one row a token.
    Cannot see: what the backend does with the feeds.
    """
    if record.warm.calls is None and record.foreign:
        return CheckResult(not_applicable="the subject shows rows, not whole model calls; its schedule is matched")
    if record.warm.calls is None or record.warm.reused is None or record.matched is None:
        return CheckResult(not_observable="the subject does not show what it feeds, or how much it reused")
    result = CheckResult()
    fed = list(record.prompt[: record.warm.reused])
    rows = []
    for step, call in enumerate(record.warm.calls):
        ids = _ints(call.feeds["input_ids"])
        start = len(fed) if record.stateful else 0
        expected_ids = list(record.context[start : start + len(ids)])
        total = start + len(ids)
        expected = {"input_ids": expected_ids, "position_ids": list(range(start, total)), "attention_mask": [1] * total}
        for name in call.feeds:
            result.compared += 1
            _same(result, record, name, step, _ints(call.feeds[name]), expected[name])
        rows.append(len(ids) if record.stateful else len(ids) - len(fed))
        fed = [*fed, *ids] if record.stateful else ids
    if record.warm.reused == record.plan.reused and tuple(rows) != record.matched.rows[: len(rows)]:
        add(result, record, check="feeds", arm="twin", component="schedule", place="rows per model call",
            message="another schedule than the reused count implies",
            left=str(rows), right=str(list(record.matched.rows)))  # fmt: skip
    return result


def _same(result: CheckResult, record: TurnRecord, name: str, step: int, left: list[int], right: list[int]) -> None:
    at = first_token_difference(left, right)
    if at is not None:
        add(result, record, check="feeds", arm="twin", component=name, step=step, place=f"{name}, call {step}",
            message=f"{name} of a model call is wrong at index {at}",
            left=elided(left, at), right=elided(right, at))  # fmt: skip


def _ints(array: NDArray[Any]) -> list[int]:
    return [int(value) for value in array.reshape(-1)]
