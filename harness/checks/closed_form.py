"""A fixture's meaning in plain integers: tokens, logits and KV, from no engine at all."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from ..arms.record import TurnRecord
from ..contract.observation import Kv
from ..contract.subject import ClosedForm
from .look import Look
from .registry import check

_ARM = "closed form"


@check(order=50, needs=("closed form",))
def closed_form(look: Look) -> None:
    """Tokens, every call's logits, and the KV at the end are the integers that the fixture means.

    Cannot see: anything on a model without a closed form.
    """
    record, closed = look.record, look.record.closed
    assert closed is not None
    if not look.tokens(_ARM, closed.greedy(record.prompt, len(record.warm.tokens))):
        return
    look.logits(_ARM, _rows(record, closed))
    if record.warm.end is not None and record.stateful:
        look.kv(_ARM, _unsigned(record.warm.end), _kv(closed, record), "end of turn")


def _rows(record: TurnRecord, closed: ClosedForm) -> Iterator[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Each call ends at the position that its own feeds say, whatever schedule the engine chose."""
    if record.warm.reused is None:
        return  # where the first call starts is not shown
    rows = closed.logits(record.fed)
    fed = record.warm.reused if record.stateful else 0
    for call in record.warm.calls or ():
        fed = fed + call.rows if record.stateful else call.rows
        if fed > len(rows):
            return  # more was fed than the context holds: the check `feeds` says so
        yield call.logits + np.float32(0), rows[fed - 1].astype(np.float32)


def _kv(closed: ClosedForm, record: TurnRecord) -> Kv:
    keys, values = closed.keys(record.fed), closed.values(record.fed)
    return tuple((k.astype(np.float32), v.astype(np.float32)) for k, v in zip(keys, values, strict=True))


def _unsigned(kv: Kv) -> Kv:
    """Integers have no -0.0."""
    return tuple((k + np.float32(0), v + np.float32(0)) for k, v in kv)
