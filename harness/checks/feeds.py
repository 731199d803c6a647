"""What the model was really fed: token ids, positions, mask, call by call."""

from __future__ import annotations

from ..arms.compare import elided, first_token_difference
from ..contract.observation import Array
from .look import Look
from .registry import check


@check(order=20, needs=("own calls", "feeds", "count", "matched"))
def feeds(look: Look) -> None:
    """Each call feeds the next tokens of the context, at their absolute positions, under a mask of the whole length.

    The schedule follows from the reused count: the rest of the prompt in chunks, then one row a token.
    Cannot see: what the backend does with the feeds.
    """
    record = look.record
    matched = record.matched
    assert matched is not None
    fed = list(record.prompt[: record.warm.reused])
    rows = []
    for step, call in enumerate(record.warm.calls or ()):
        ids = _ints(call.ids)
        start = len(fed) if record.stateful else 0
        total = start + len(ids)
        _same(look, "input_ids", step, ids, list(record.context[start : start + len(ids)]))
        if call.positions is not None:
            _same(look, "position_ids", step, _ints(call.positions), list(range(start, total)))
        if call.mask is not None:
            _same(look, "attention_mask", step, _ints(call.mask), [1] * total)
        rows.append(len(ids) if record.stateful else len(ids) - len(fed))
        fed = [*fed, *ids] if record.stateful else ids
    if record.as_planned and tuple(rows) != matched.rows[: len(rows)]:
        message, expected = "another schedule than the reused count implies", list(matched.rows)
        look.find("twin", message, rows, expected, component="schedule", place="rows per model call")


def _same(look: Look, name: str, step: int, left: list[int], right: list[int]) -> None:
    look.compared()
    at = first_token_difference(left, right)
    if at is not None:
        message, place = f"{name} of a model call is wrong at index {at}", f"{name}, call {step}"
        look.find("twin", message, elided(left, at), elided(right, at), component=name, step=step, place=place)


def _ints(array: Array) -> list[int]:
    return [int(value) for value in array.reshape(-1)]
