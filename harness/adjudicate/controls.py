"""Without a matched arm: the warm schedule recomputed, if it shows; else how far do legal schedules go?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..arms.near_tie import legal_schedules
from ..arms.record import TurnRecord
from ..play.evidence import SITES, Power
from .dispute import Dispute, Schedule, first_row
from .ruling import Kind, Ruling


def by_controls(dispute: Dispute) -> Ruling:
    """Rule by the schedule if it shows, else by legal schedules as controls, with the power that they leave."""
    record, warm = dispute.record, dispute.warm
    if dispute.parted is None and (not dispute.shown or dispute.agree):
        what = "everything that is shown" if dispute.shown else "their tokens, and nothing else is shown"
        return dispute.rule(Kind.same, f"warm and cold agree in {what}")
    if dispute.kept is not None and _recomputed(dispute, dispute.kept):
        rows = [*dispute.kept, *(warm.fed_rows or ())]
        dispute.facts.append(f"warm: recomputed without a cache, with the rows {rows}, the same logits")
        return dispute.rule(Kind.noise, "the warm side is, to the last bit, what its own schedule gives")
    error = spread(record, warm.tokens[: dispute.steps])
    apart = dispute.apart if dispute.shown else _gap(dispute) / 2
    what = (
        "logits of warm and cold are" if dispute.shown else "half of the gap between the two tokens, by the oracle, is"
    )
    legal = len(_schedules(record, len(record.prompt)))
    dispute.facts.append(f"controls: {legal} legal schedules, up to {error:.4g} apart")
    if apart > 2 * error:
        lacking = "no KV is shown" if warm.end is None else "nothing replays its schedule"
        because = f"{what} {apart:.4g} apart; legal schedules explain no more than {2 * error:.4g}"
        return dispute.rule(Kind.dirty, because, place=f"the reused part ({lacking}, so not which layer)")
    return _explained(dispute, f"{what} {apart:.4g} apart", 2 * error)


def _explained(dispute: Dispute, said: str, legal: float) -> Ruling:
    """Legal schedules reach as far: noise, if a wrong token in the cache would have shown all the same."""
    power = _power(dispute, legal)
    dispute.facts.append(f"power: {power}")
    if power.enough:
        return dispute.rule(Kind.noise, f"{said}; legal schedules explain up to {legal:.4g}")
    because = f"{said}, which legal schedules can explain; but they would also hide a wrong token in the cache"
    missing = "a matched arm (loop(), or an ONNX file), or the rows of each call"
    return dispute.rule(Kind.unclear, because, missing=missing)


def spread(record: TurnRecord, reply: Sequence[int]) -> float:
    """The greatest difference of a logit between two legal schedules, over the steps of `reply`."""
    assert record.recompute is not None
    context = [*record.prompt, *reply[: max(len(reply) - 1, 0)]]
    schedules = _schedules(record, len(context))
    stacked = np.stack([record.recompute(context, schedule)[len(record.prompt) - 1 :] for schedule in schedules])
    return float(np.max(stacked.max(axis=0) - stacked.min(axis=0)))


def _recomputed(dispute: Dispute, kept: Schedule) -> bool:
    """Whether the calls that the engine made, recomputed without its cache, give each call's logits to the last bit."""
    record, warm = dispute.record, dispute.warm
    if warm.fed_rows is None or warm.last_rows is None or record.recompute is None:
        return False
    schedule = [*kept, *warm.fed_rows]
    context = record.context[: sum(schedule)]
    if sum(schedule) > len(context):
        return False
    rows = record.recompute(context, schedule)
    ends = [sum(schedule[: len(kept) + call + 1]) - 1 for call in range(len(warm.fed_rows))]
    return first_row(warm.last_rows, [rows[end] for end in ends]) is None


def _power(dispute: Dispute, seen_from: float) -> Power:
    """Wrong tokens in the reused part, one at a time, recomputed: how many move the logits farther than `seen_from`?"""
    record = dispute.record
    assert record.recompute is not None
    reply = record.warm.tokens[: max(dispute.steps - 1, 0)]
    right = record.recompute([*record.prompt, *reply], None)[len(record.prompt) - 1 :]
    reused = record.warm.reused or record.plan.bound
    power = Power()
    for site in range(SITES if reused else 0):
        wrong = list(record.prompt)
        at = site * reused // SITES
        wrong[at] = (wrong[at] + 1 + site % (right.shape[1] - 1)) % right.shape[1]
        moved = record.recompute([*wrong, *reply], None)[len(record.prompt) - 1 :]
        power = power.plus(float(np.max(np.abs(moved - right))) > seen_from)
    return power


def _schedules(record: TurnRecord, length: int) -> list[list[int]]:
    """Legal schedules: those of the near-tie rule, and some that end a call where the warm one may have."""
    cuts = {record.warm.reused or 0, length // 3, 2 * length // 3, len(record.prompt) - 1}
    chunks = [[min(size, length - at) for at in range(0, length, size)] for size in (2, 3, 16)]
    split = [[cut, length - cut] for cut in sorted(cuts) if 0 < cut < length]
    return [*legal_schedules(record, length), *split, *chunks]


def _gap(dispute: Dispute) -> float:
    """By the oracle, at the step where the replies part: how far the two tokens' logits are apart."""
    record, at = dispute.record, dispute.parted
    warm, cold = dispute.warm.tokens, dispute.cold.tokens
    assert record.recompute is not None
    assert at is not None
    if at >= min(len(warm), len(cold)):
        return float("inf")
    row = record.recompute([*record.prompt, *warm[:at]], None)[-1]
    return abs(float(row[warm[at]] - row[cold[at]]))
