"""Where each turn can be judged alone: the schedule replayed, on a past that the harness holds; to the last bit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from ..arms.arms import Arms
from ..arms.compare import common_prefix, first_difference
from ..arms.record import TurnRecord
from ..arms.shadow import MatchedTurn
from ..checks import ENDS
from ..checks.look import PARTS
from ..contract.observation import Kv
from ..contract.scenario import Fork, NewSession, Rewind, Scenario, Turn
from ..play.exact import Lineup, ScenarioResult, run_scenario
from .controls import by_controls, spread
from .dispute import Dispute, Schedule, first_row
from .ruling import Kind, Ruling


def by_replay(arms: Arms, scenario: Scenario) -> Ruling:
    """Play `scenario` and rule on its last turn, or on the first before it that is not clean."""
    records: list[TurnRecord] = []
    result = run_scenario(arms, scenario, Lineup(poison=False, to_the_end=True), records.append)
    kept = schedules_kept(scenario, records)
    rulings = [rule(arms, record, kept[record.name]) for record in records]
    faulty = next((each for each in rulings if each.kind in (Kind.dirty, Kind.unsound)), None)
    if faulty is not None:
        return faulty
    if (cut_short := _cut_short(result)) is not None:
        return cut_short
    last = next((op.name for op in reversed(scenario.ops) if isinstance(op, Turn)), "")
    if not rulings or records[-1].name != last:
        because, missing = "the last turn was refused, or cut short", "a last turn that is answered"
        return Ruling(kind=Kind.unclear, turn=last, because=because, missing=missing)
    if arms.subject.stateful and records[-1].warm.reused == 0:
        because, missing = "nothing was reused in this turn", "a second prompt that goes on from the first"
        return Ruling(kind=Kind.unclear, turn=last, because=because, missing=missing, facts=rulings[-1].facts)
    return rulings[-1]


def _cut_short(result: ScenarioResult) -> Ruling | None:
    """A finding after which nothing could be compared."""
    for found in result.findings:
        if found.check in ENDS:
            because, missing = f"{found.message}: {found.left}", "a conversation that the subject answers to its end"
            return Ruling(kind=Kind.unclear, turn=found.turn, because=because, missing=missing)
    return None


def schedules_kept(scenario: Scenario, records: Sequence[TurnRecord]) -> Mapping[str, Schedule | None]:
    """In which calls the positions were computed that each turn reused; None where that does not show.

    A cut inside a call counts as one of so many rows less, which another legal schedule could have had.
    """
    played = {record.name: record for record in records}
    held: dict[str, Schedule | None] = {}
    kept: dict[str, Schedule | None] = {}
    for op in scenario.ops:
        if isinstance(op, Turn) and op.name in played:
            warm = played[op.name].warm
            before = kept[op.name] = _cut(held.get(op.session, ()), warm.reused)
            known = before is not None and warm.fed_rows is not None
            held[op.session] = (*(before or ()), *(warm.fed_rows or ())) if known else None
        elif isinstance(op, Fork):
            held[op.to] = held.get(op.session, ())
        elif isinstance(op, (NewSession, Rewind)):
            held[op.session] = () if isinstance(op, NewSession) else None
    return kept


def _cut(schedule: Schedule | None, n: int | None) -> Schedule | None:
    """The first calls, n positions together; None where they do not reach so far (pages of another session, say)."""
    if schedule is None or n is None or sum(schedule) < n:
        return None
    calls: list[int] = []
    while sum(calls) < n:
        calls.append(min(schedule[len(calls)], n - sum(calls)))
    return tuple(calls)


def rule(arms: Arms, record: TurnRecord, kept: Schedule | None = None) -> Ruling:
    """The ruling on one turn that was played on every arm. `kept`: the calls in which what it reused was computed."""
    if record.cold is None:
        because, missing = "there is no cold reply to compare with", "a turn that was not cut short"
        return Ruling(kind=Kind.unclear, turn=record.name, because=because, missing=missing)
    dispute = Dispute(arms=arms, record=record, cold=record.cold, kept=kept)
    dispute.state_the_case()
    reused, bound = record.warm.reused or 0, record.plan.bound
    if reused > bound:
        because = f"{reused} positions were reused, but the prompt shares only {bound}"
        return dispute.rule(Kind.dirty, because, place=f"positions {bound} to {reused - 1} hold other tokens")
    if record.matched is not None:
        return _exactly(dispute, record.matched)
    if record.recompute is not None:
        return by_controls(dispute)
    because = "the subject shows neither a schedule to replay nor anything to compute controls with"
    return dispute.rule(Kind.unclear, because, missing="a subject with loop() or recompute(), or an ONNX file")


def _exactly(dispute: Dispute, matched: MatchedTurn) -> Ruling:
    """With a matched arm: bits. First what was reused, then what was computed on it, then the two schedules."""
    record, warm = dispute.record, dispute.warm
    if warm.reused is not None and not record.as_planned:
        because = f"{warm.reused} positions were reused where {record.plan.reused} were expected"
        return dispute.rule(Kind.unclear, because, missing="a subject that reuses what it declares")
    schedule = f"[{record.plan.reused} reused] + {list(matched.rows)}"
    seed = _first_kv(warm.seeded, matched.seeded, "the reused part", by_layer=True) if warm.reused else None
    if seed is not None:
        dispute.facts += _off(dispute, matched)
        because = f"what was reused is not what the same calls give, replayed from position 0 ({schedule})"
        return dispute.rule(Kind.dirty, because, place=seed)
    agreed = len(record.prompt) + common_prefix(warm.tokens, matched.tokens)
    place = _first_kv(warm.end, matched.end, "the cache after the turn", before=agreed)
    place = place or first_row(warm.last_rows, matched.logits)
    if place is not None:
        return _computed_otherwise(dispute, matched, schedule, place)
    if warm.last_rows is None and warm.tokens != matched.tokens:
        dispute.kept = None
        dispute.facts.append("it shows no logits or KV; the same schedule gives other tokens")
        return by_controls(dispute)
    shown = "logits and KV" if warm.end is not None else "logits" if warm.last_rows is not None else "tokens alone"
    dispute.facts.append(f"warm: replayed from position 0 with the rows {schedule}, the same {shown}, to the last bit")
    return _of_the_model(dispute)


def _computed_otherwise(dispute: Dispute, matched: MatchedTurn, schedule: str, place: str) -> Ruling:
    """What was computed differs. With the reused part right to the last bit, a little may be other kernels; much is not."""
    record, warm = dispute.record, dispute.warm
    shown = warm.seeded is not None and bool(warm.reused)
    if shown:
        dispute.facts.append("the reused part agrees with the replay to the last bit")
    dispute.facts += _off(dispute, matched)
    apart = _apart(dispute, matched)
    if shown and record.recompute is not None and apart is not None:
        error = spread(record, warm.tokens[: max(len(warm.tokens), 1)])
        dispute.facts.append(f"other legal schedules: up to {error:.4g} apart")
        if apart <= 2 * error:
            dispute.facts.append(f"first difference: {place}")
            because = (
                "the cache is right; what was computed on it is off by no more than legal schedules are: other kernels "
                "when warm, or rows per call that the subject does not tell"
            )
            return dispute.rule(Kind.noise, because)
    because = f"the same calls, replayed from position 0 ({schedule}), give other bits than the warm turn"
    return dispute.rule(Kind.dirty, because, place=place)


def _of_the_model(dispute: Dispute) -> Ruling:
    """The mechanism is clean. Under kernels that do not depend on the schedule, a difference is the graph's own."""
    if dispute.agree and dispute.parted is None:
        return dispute.rule(Kind.same, "warm and cold agree in everything that is shown")
    dispute.facts += _cold_schedule(dispute)
    if dispute.record.capabilities.invariant:
        because = (
            "the kernels do not depend on the schedule, and yet the two schedules differ: the graph itself does "
            "(a length regime, dynamic quantisation, attention in both directions)"
        )
        return dispute.rule(Kind.unsound, because)
    if dispute.shown:
        dispute.facts.append(f"that moves the logits by {dispute.apart:.4g} at most; no cache is at fault for it")
    return dispute.rule(Kind.noise, "each side is, to the last bit, what its own schedule gives")


def _first_kv(
    left: Kv | None, right: Kv | None, what: str, *, by_layer: bool = False, before: int | None = None
) -> str | None:
    """The first place that differs: by layer, then position, of rows that were kept; else as they are computed, by position.

    `before`: positions from there on were fed other tokens.
    """
    if left is None or right is None:
        return None
    if len(left) != len(right):
        return f"{what}: {len(left)} layers instead of {len(right)}"
    found: list[tuple[tuple[int, int], str]] = []
    for layer, pairs in enumerate(zip(left, right, strict=True)):
        for name, one, other in zip(PARTS, *pairs, strict=True):
            part = first_difference(*(np.moveaxis(side, 1, 0)[:before] for side in (one, other)))
            if part is not None:
                at = part.index[0] if part.index else 0
                text = f"{what}: layer {layer}, position {at}, {name} {part.left} instead of {part.right}"
                found.append(((layer, at) if by_layer else (at, layer), text))
    return min(found)[1] if found else None


def _cold_schedule(dispute: Dispute) -> list[str]:
    """Replay the cold side's own rows, and say whether that gives it to the last bit."""
    cold, prompt, loop = dispute.cold, dispute.record.prompt, dispute.arms.matched
    if cold.last_rows is None or loop is None:
        return []
    rows = cold.fed_rows or (len(prompt), *[1] * (len(cold.tokens) - 1))
    past, at, replayed = loop.empty(), 0, []
    context = (*prompt, *cold.tokens)
    for count in rows:
        out, past = loop.step(past, context[at : at + count])
        replayed.append(out[-1])
        at += count
    place = first_row(cold.last_rows, replayed)
    said = "the same bits" if place is None else f"NOT the same: {place}"
    return [f"cold: replayed from position 0 with the rows {list(rows)}, {said}"]


def _apart(dispute: Dispute, matched: MatchedTurn) -> float | None:
    """How far the warm logits are from the replay's, over calls that were fed the same tokens."""
    warm = dispute.warm
    if warm.last_rows is None:
        return None
    calls = len(matched.rows) - len(warm.tokens) + common_prefix(warm.tokens, matched.tokens) + 1
    pairs = zip(warm.last_rows[:calls], matched.logits[:calls], strict=False)
    return max((float(np.max(np.abs(one - other))) for one, other in pairs), default=0.0)


def _off(dispute: Dispute, matched: MatchedTurn) -> list[str]:
    apart = _apart(dispute, matched)
    return [] if apart is None else [f"that puts the logits {apart:.4g} off at most, while the contexts are the same"]
