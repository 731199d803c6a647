"""Warm and cold differ: is it float noise, or dirty KV? The ruling, with the evidence that a maintainer can check.

Where the schedule can be replayed the question has an exact answer. The same rows per call, from position 0, on a past that
the harness holds: if that gives the warm side to the last bit, and the cold side's own rows give the cold one, then nothing
but the order of additions differs. If it does not, the cache held something else, and the first place says where. Where no
schedule can be replayed, legal schedules as controls say how far rounding goes; and where there are none, it cannot be told.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..arms.compare import common_prefix, elided, first_difference, first_token_difference
from ..arms.near_tie import legal_schedules
from ..arms.record import PARTS, TurnRecord
from ..contract.observation import Kv, Observation
from ..contract.scenario import Fork, NewSession, Rewind, Scenario, Turn
from ..contract.subject import AnyLoop
from ..play.evidence import SITES, Power
from ..play.exact import ENDS, Arms, Watch, run_scenario

Rows = Sequence[NDArray[np.float32]]
Schedule = tuple[int, ...]


class Ruling(StrEnum):
    """What it is. `unsound`: the same schedule explains it, but the model itself depends on the schedule beyond rounding."""

    same = "no difference"
    noise = "float noise"
    dirty = "dirty KV"
    unsound = "the model is not a function of the prefix"
    unclear = "cannot tell"

    @property
    def exit_code(self) -> int:
        """1 for a fault, of the engine or of the model; 3 where it cannot be told; else 0."""
        return {Ruling.dirty: 1, Ruling.unsound: 1, Ruling.unclear: 3}.get(self, 0)


@dataclass(kw_only=True)
class Case:
    """The ruling on one turn. `place`: where the cache is wrong; `missing`: what it would take to tell; `facts`: evidence."""

    ruling: Ruling
    turn: str
    because: str
    place: str | None = None
    missing: str | None = None
    facts: list[str] = field(default_factory=list)

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "warmcold_ruling": 1, "ruling": str(self.ruling), "turn": self.turn, "because": self.because,
            "place": self.place, "missing": self.missing, "facts": self.facts,
        }  # fmt: skip


def adjudicate(arms: Arms, scenario: Scenario) -> Case:
    """Play `scenario` and rule on its last turn, or on the first before it that is not clean."""
    records: list[TurnRecord] = []
    result = run_scenario(arms, scenario, Watch(poison=False, to_the_end=True), records.append)
    kept = schedules_kept(scenario, records)
    cases = [rule(arms, record, kept[record.name]) for record in records]
    for case in cases:
        if case.ruling in (Ruling.dirty, Ruling.unsound):
            return case
    for finding in result.findings:
        if finding.check in ENDS or finding.check == "refusal":
            return Case(ruling=Ruling.unclear, turn=finding.turn, because=f"{finding.message}: {finding.left}",
                        missing="a conversation that the subject answers to its end")  # fmt: skip
    last = next((op.name for op in reversed(scenario.ops) if isinstance(op, Turn)), "")
    if not cases or records[-1].name != last:
        return Case(ruling=Ruling.unclear, turn=last, because="the last turn was refused, or cut short",
                    missing="a last turn that is answered")  # fmt: skip
    if arms.stateful and records[-1].warm.reused == 0:
        return Case(ruling=Ruling.unclear, turn=last, because="nothing was reused in this turn",
                    missing="a second prompt that goes on from the first", facts=cases[-1].facts)  # fmt: skip
    return cases[-1]


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


def rule(arms: Arms, record: TurnRecord, kept: Schedule | None = None) -> Case:
    """The ruling on one turn that was played on every arm. `kept`: the calls in which what it reused was computed."""
    warm, cold = record.warm, record.cold
    if cold is None:
        return _case(
            record, Ruling.unclear, "there is no cold reply to compare with", missing="a turn that was not cut short"
        )
    facts = _facts(record, warm, cold)
    if (warm.reused or 0) > record.bound:
        return _case(record, Ruling.dirty, f"{warm.reused} positions were reused, but the prompt shares only {record.bound}",
                     place=f"positions {record.bound} to {(warm.reused or 0) - 1} hold other tokens", facts=facts)  # fmt: skip
    if record.matched is not None:
        return _exactly(arms, record, warm, cold, facts)
    if record.recompute is not None:
        return _by_controls(record, warm, cold, facts, kept)
    return _case(record, Ruling.unclear, "the subject shows neither a schedule to replay nor anything to compute controls with",
                 missing="a subject with loop() or recompute(), or an ONNX file", facts=facts)  # fmt: skip


def _exactly(arms: Arms, record: TurnRecord, warm: Observation, cold: Observation, facts: list[str]) -> Case:
    """With a matched arm: bits."""
    assert record.matched is not None
    assert arms.matched is not None
    if warm.reused is not None and warm.reused != record.plan.reused:
        return _case(record, Ruling.unclear, f"{warm.reused} positions were reused where {record.plan.reused} were expected",
                     missing="a subject that reuses what it declares", facts=facts)  # fmt: skip
    schedule = f"[{record.plan.reused} reused] + {list(record.matched.rows)}"
    seed = _first_kv(warm.seeded, record.matched.seeded, "the reused part", by_layer=True) if warm.reused else None
    if seed is not None:
        because = f"what was reused is not what the same calls give, replayed from position 0 ({schedule})"
        return _case(record, Ruling.dirty, because, place=seed, facts=[*facts, *_off(record, warm)])
    agreed = len(record.prompt) + common_prefix(warm.tokens, record.matched.tokens)
    place = _first_kv(warm.end, record.matched.end, "the cache after the turn", before=agreed)
    place = place or _first_row(warm.last_rows, record.matched.logits)
    if place is None and warm.last_rows is None and warm.tokens != record.matched.tokens:
        return _by_controls(
            record, warm, cold, [*facts, "it shows no logits or KV; the same schedule gives other tokens"], None
        )
    if place is not None:
        return _computed_otherwise(record, warm, schedule, place, facts)
    shown = "logits and KV" if warm.end is not None else "logits" if warm.last_rows is not None else "tokens alone"
    facts.append(f"warm: replayed from position 0 with the rows {schedule}, the same {shown}, to the last bit")
    if _agree(warm, cold) and warm.tokens == cold.tokens:
        return _case(record, Ruling.same, "warm and cold agree in everything that is shown", facts=facts)
    facts += _cold_schedule(arms.matched, record, cold)
    return _of_the_model(record, warm, cold, facts)


def _computed_otherwise(record: TurnRecord, warm: Observation, schedule: str, place: str, facts: list[str]) -> Case:
    """What was computed differs. With the reused part right to the last bit, a little may be other kernels; much is not."""
    shown = warm.seeded is not None and bool(warm.reused)
    if shown:
        facts.append("the reused part agrees with the replay to the last bit")
    facts += _off(record, warm)
    apart = _matched_apart(record, warm)
    if shown and record.recompute is not None and apart is not None:
        error = _spread(record, warm.tokens[: _steps(warm.tokens, None)])
        facts.append(f"other legal schedules: up to {error:.4g} apart")
        if apart <= 2 * error:
            because = (
                "the cache is right; what was computed on it is off by no more than legal schedules are: other kernels "
                "when warm, or rows per call that the subject does not tell"
            )
            return _case(record, Ruling.noise, because, facts=[*facts, f"first difference: {place}"])
    because = f"the same calls, replayed from position 0 ({schedule}), give other bits than the warm turn"
    return _case(record, Ruling.dirty, because, place=place, facts=facts)


def _of_the_model(record: TurnRecord, warm: Observation, cold: Observation, facts: list[str]) -> Case:
    """The mechanism is clean. Under kernels that do not depend on the schedule, a difference is the graph's own."""
    if record.capabilities.invariant:
        because = (
            "the kernels do not depend on the schedule, and yet the two schedules differ: the graph itself does "
            "(a length regime, dynamic quantisation, attention in both directions)"
        )
        return _case(record, Ruling.unsound, because, facts=facts)
    if warm.last_rows is not None and cold.last_rows is not None:
        facts.append(f"that moves the logits by {_apart(warm, cold):.4g} at most; no cache is at fault for it")
    return _case(record, Ruling.noise, "each side is, to the last bit, what its own schedule gives", facts=facts)


def _by_controls(
    record: TurnRecord, warm: Observation, cold: Observation, facts: list[str], kept: Schedule | None
) -> Case:
    """Without a matched arm: the warm schedule recomputed, if it shows; else how far do legal schedules go?"""
    shown = warm.last_rows is not None and cold.last_rows is not None
    if warm.tokens == cold.tokens and (not shown or _agree(warm, cold)):
        what = "everything that is shown" if shown else "their tokens, and nothing else is shown"
        return _case(record, Ruling.same, f"warm and cold agree in {what}", facts=facts)
    if kept is not None and _recomputed(record, warm, kept):
        facts.append(
            f"warm: recomputed without a cache, with the rows {[*kept, *(warm.fed_rows or ())]}, the same logits"
        )
        return _case(
            record, Ruling.noise, "the warm side is, to the last bit, what its own schedule gives", facts=facts
        )
    steps = _steps(warm.tokens, cold.tokens)
    error = _spread(record, warm.tokens[:steps])
    apart = _apart(warm, cold) if shown else _gap(record, warm, cold) / 2
    what = "logits of warm and cold are" if shown else "half of the gap between the two tokens, by the oracle, is"
    facts.append(f"controls: {len(_schedules(record, len(record.prompt)))} legal schedules, up to {error:.4g} apart")
    if apart > 2 * error:
        missing = "no KV is shown" if warm.end is None else "nothing replays its schedule"
        return _case(record, Ruling.dirty, f"{what} {apart:.4g} apart; legal schedules explain no more than {2 * error:.4g}",
                     place=f"the reused part ({missing}, so not which layer)", facts=facts)  # fmt: skip
    power = _power(record, steps, 2 * error)
    facts.append(f"power: {power}")
    if not power.enough:
        return _case(record, Ruling.unclear, f"{what} {apart:.4g} apart, which legal schedules can explain; but they would "
                     "also hide a wrong token in the cache", facts=facts,
                     missing="a matched arm (loop(), or an ONNX file), or the rows of each call")  # fmt: skip
    return _case(
        record, Ruling.noise, f"{what} {apart:.4g} apart; legal schedules explain up to {2 * error:.4g}", facts=facts
    )


def _recomputed(record: TurnRecord, warm: Observation, kept: Schedule) -> bool:
    """Whether the calls that the engine made, recomputed without its cache, give each call's logits to the last bit."""
    if warm.fed_rows is None or warm.last_rows is None or record.recompute is None:
        return False
    schedule = [*kept, *warm.fed_rows]
    context = (*record.prompt, *warm.tokens)[: sum(schedule)]
    if sum(schedule) > len(context):
        return False
    rows = record.recompute(context, schedule)
    ends = [sum(schedule[: len(kept) + call + 1]) - 1 for call in range(len(warm.fed_rows))]
    return _first_row(warm.last_rows, [rows[end] for end in ends]) is None


def _power(record: TurnRecord, steps: int, seen_from: float) -> Power:
    """Wrong tokens in the reused part, one at a time, recomputed: how many move the logits farther than `seen_from`?"""
    assert record.recompute is not None
    reply = record.warm.tokens[: max(steps - 1, 0)]
    right = record.recompute([*record.prompt, *reply], None)[len(record.prompt) - 1 :]
    reused = record.warm.reused or record.bound
    power = Power()
    for site in range(SITES if reused else 0):
        wrong = list(record.prompt)
        at = site * reused // SITES
        wrong[at] = (wrong[at] + 1 + site % (right.shape[1] - 1)) % right.shape[1]
        moved = record.recompute([*wrong, *reply], None)[len(record.prompt) - 1 :]
        power = power.plus(float(np.max(np.abs(moved - right))) > seen_from)
    return power


def _case(record: TurnRecord, ruling: Ruling, because: str, **rest: Any) -> Case:
    return Case(ruling=ruling, turn=record.name, because=because, **rest)


def _facts(record: TurnRecord, warm: Observation, cold: Observation) -> list[str]:
    at = first_token_difference(warm.tokens, cold.tokens)
    facts = [f"prompt of {len(record.prompt)} tokens, {warm.reused} reused warm, {cold.reused} cold"]
    if at is None:
        return [*facts, f"warm and cold give the same {len(warm.tokens)} tokens"]
    return [
        *facts,
        f"replies differ from token {at} on: warm {elided(warm.tokens, at)}, cold {elided(cold.tokens, at)}",
    ]


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


def _first_row(left: Rows | None, right: Rows) -> str | None:
    for step, (one, other) in enumerate(zip(left or (), right, strict=False)):
        if (found := first_difference(one, other)) is not None:
            return f"logits of call {step}: token {found.index[0] if found.index else 0} {found.left} instead of {found.right}"
    return None


def _cold_schedule(loop: AnyLoop, record: TurnRecord, cold: Observation) -> list[str]:
    """Replay the cold side's own rows, and say whether that gives it to the last bit."""
    if cold.last_rows is None:
        return []
    rows = cold.fed_rows or (len(record.prompt), *[1] * (len(cold.tokens) - 1))
    past, at, replayed = loop.empty(), 0, []
    context = (*record.prompt, *cold.tokens)
    for count in rows:
        out, past = loop.step(past, context[at : at + count])
        replayed.append(out[-1])
        at += count
    place = _first_row(cold.last_rows, replayed)
    said = "the same bits" if place is None else f"NOT the same: {place}"
    return [f"cold: replayed from position 0 with the rows {list(rows)}, {said}"]


def _agree(warm: Observation, cold: Observation) -> bool:
    """Whether all logits that both show of the reply are the same bits."""
    return all(first_difference(one, other) is None for one, other in _pairs(warm, cold))


def _pairs(warm: Observation, cold: Observation) -> list[tuple[NDArray[np.float32], NDArray[np.float32]]]:
    """Rows of the reply for the same context: those up to the first token that differs."""
    at = first_token_difference(warm.tokens, cold.tokens)
    steps = max(len(warm.tokens), 1)
    rows = zip((warm.last_rows or ())[-steps:], (cold.last_rows or ())[-steps:], strict=False)
    return [pair for step, pair in enumerate(rows) if at is None or step <= at]


def _apart(warm: Observation, cold: Observation) -> float:
    return max((float(np.max(np.abs(one - other))) for one, other in _pairs(warm, cold)), default=0.0)


def _matched_apart(record: TurnRecord, warm: Observation) -> float | None:
    """How far the warm logits are from the replay's, over calls that were fed the same tokens."""
    assert record.matched is not None
    if warm.last_rows is None:
        return None
    calls = len(record.matched.rows) - len(warm.tokens) + common_prefix(warm.tokens, record.matched.tokens) + 1
    pairs = zip(warm.last_rows[:calls], record.matched.logits[:calls], strict=False)
    return max((float(np.max(np.abs(one - other))) for one, other in pairs), default=0.0)


def _off(record: TurnRecord, warm: Observation) -> list[str]:
    apart = _matched_apart(record, warm)
    return [] if apart is None else [f"that puts the logits {apart:.4g} off at most, while the contexts are the same"]


def _steps(warm: Sequence[int], cold: Sequence[int] | None) -> int:
    """Steps of the reply whose context is the same on both sides."""
    at = first_token_difference(warm, cold) if cold is not None else None
    return max(len(warm), 1) if at is None else at + 1


def _schedules(record: TurnRecord, length: int) -> list[list[int]]:
    """Legal schedules: those of the near-tie rule, and some that end a call where the warm one may have."""
    cuts = {record.warm.reused or 0, length // 3, 2 * length // 3, len(record.prompt) - 1}
    chunks = [[min(size, length - at) for at in range(0, length, size)] for size in (2, 3, 16)]
    split = [[cut, length - cut] for cut in sorted(cuts) if 0 < cut < length]
    return [*legal_schedules(record, length), *split, *chunks]


def _spread(record: TurnRecord, reply: Sequence[int]) -> float:
    """The greatest difference of a logit between two legal schedules, over the steps of `reply`."""
    assert record.recompute is not None
    context = [*record.prompt, *reply[: max(len(reply) - 1, 0)]]
    rows = [
        record.recompute(context, schedule)[len(record.prompt) - 1 :] for schedule in _schedules(record, len(context))
    ]
    stacked = np.stack(rows)
    return float(np.max(stacked.max(axis=0) - stacked.min(axis=0)))


def _gap(record: TurnRecord, warm: Observation, cold: Observation) -> float:
    """By the oracle, at the step where the replies part: how far the two tokens' logits are apart."""
    assert record.recompute is not None
    at = first_token_difference(warm.tokens, cold.tokens)
    assert at is not None
    if at >= min(len(warm.tokens), len(cold.tokens)):
        return float("inf")
    row = record.recompute([*record.prompt, *warm.tokens[:at]], None)[-1]
    return abs(float(row[warm.tokens[at]] - row[cold.tokens[at]]))
