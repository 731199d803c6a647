"""When may a token legally differ from the oracle's? Only as a near-tie, and how near is measured, never typed in."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from .record import TurnRecord


def explained_by_schedule(record: TurnRecord, other: Sequence[int], at: int) -> bool:
    """Whether tokens `warm[at]` and `other[at]` are within twice the error that legal schedules show at that step.

    The controls are schedules that an engine could really have run over the same tokens: one pass, the chunk size, halves
    and one row at a time, all recomputed by the oracle. A reply that ended early is never explained.
    """
    if record.recompute is None or at >= min(len(record.warm.tokens), len(other)):
        return False
    context = [*record.prompt, *record.warm.tokens[:at]]
    rows = np.stack([record.recompute(context, schedule)[-1] for schedule in legal_schedules(record, len(context))])
    error = float(np.max(rows.max(axis=0) - rows.min(axis=0)))
    row = rows[0]
    gaps = [float(row.max() - row[token]) for token in (record.warm.tokens[at], other[at])]
    return max(gaps) <= 2 * error


def legal_schedules(record: TurnRecord, length: int) -> list[list[int]]:
    """Rows per call in which an engine could really have fed so many positions: all at once, in chunks, in two, one by one."""
    chunk = record.settings.chunk_size
    half = max(length // 2, 1)
    return [
        [length],
        [min(chunk, length - at) for at in range(0, length, chunk)],
        [rows for rows in (half, length - half) if rows],
        [1] * length,
    ]
