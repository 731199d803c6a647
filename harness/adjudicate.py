"""Warm and cold differ: is it float noise, or dirty KV? The ruling, with the evidence that a maintainer can check.

Where the schedule can be replayed the question has an exact answer. The same rows per call, from position 0, on a past that
the harness holds: if that gives the warm side to the last bit, and the cold side's own rows give the cold one, then nothing
but the order of additions differs. If it does not, the cache held something else, and the first place says where. Where no
schedule can be replayed, legal schedules as controls say how far rounding goes; and where there are none, it cannot be told.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .bounded import Judged
from .campaign import Campaign
from .compare import Difference, elided, first_difference, first_token_difference
from .near_tie import legal_schedules
from .observation import Kv, Observation
from .record import PARTS, TurnRecord
from .runner import ENDS, Arms, Watch, run_scenario
from .scenario import Scenario
from .subject import Loop

Rows = Sequence[NDArray[np.float32]]


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
    cases = [rule(arms, record) for record in records]
    for case in cases:
        if case.ruling in (Ruling.dirty, Ruling.unsound):
            return case
    for finding in result.findings:
        if finding.check in ENDS:
            return Case(ruling=Ruling.unclear, turn=finding.turn, because=f"{finding.message}: {finding.left}",
                        missing="a conversation that the subject answers to its end")  # fmt: skip
    if not cases:
        return Case(
            ruling=Ruling.unclear, turn="", because="no turn was judged", missing="a turn that is not cancelled"
        )
    return cases[-1]


def rule(arms: Arms, record: TurnRecord) -> Case:
    """The ruling on one turn that was played on every arm."""
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
        return _by_controls(record, warm, cold, facts)
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
    place = _first_kv(warm.seeded, record.matched.seeded, "the reused part") if warm.reused else None
    place = place or _first_kv(warm.end, record.matched.end, "the cache after the turn")
    place = place or _first_row(warm.last_rows, record.matched.logits)
    if place is None and warm.last_rows is None and warm.tokens != record.matched.tokens:
        return _by_controls(
            record, warm, cold, [*facts, "it shows no logits or KV; the same schedule gives other tokens"]
        )
    if place is not None:
        because = f"the same schedule {schedule}, replayed from position 0, gives other bits than the warm turn"
        return _case(record, Ruling.dirty, because, place=place, facts=facts)
    shown = "logits and KV" if warm.end is not None else "logits" if warm.last_rows is not None else "tokens alone"
    facts.append(f"warm: replayed from position 0 with the rows {schedule}, the same {shown}, to the last bit")
    if not _agree(warm, cold):
        facts += _cold_schedule(arms.matched, record, cold)
    if _agree(warm, cold) and warm.tokens == cold.tokens:
        return _case(record, Ruling.same, "warm and cold agree in everything that is shown", facts=facts)
    return _of_the_model(record, warm, cold, facts)


def _of_the_model(record: TurnRecord, warm: Observation, cold: Observation, facts: list[str]) -> Case:
    """The mechanism is clean: is what the schedule does to the numbers rounding? Other legal schedules must do as much."""
    if record.recompute is None or warm.last_rows is None or cold.last_rows is None:
        return _case(record, Ruling.noise, "each side is what its own schedule gives", facts=facts)
    apart, error = _apart(warm, cold), _error(record, warm, cold)
    facts.append(f"logits: warm and cold {apart:.4g} apart at most; legal schedules up to {error:.4g} from one another")
    if record.capabilities.invariant:
        because = (
            "the kernels do not depend on the schedule, and yet the two schedules differ: the graph itself does "
            "(a length regime, dynamic quantisation, attention in both directions)"
        )
        return _case(record, Ruling.unsound, because, facts=facts)
    return _case(record, Ruling.noise, "each side is, to the last bit, what its own schedule gives", facts=facts)


def _by_controls(record: TurnRecord, warm: Observation, cold: Observation, facts: list[str]) -> Case:
    """Without a schedule to replay: how far do legal schedules go, and are warm and cold within that?"""
    if warm.tokens == cold.tokens and (warm.last_rows is None or cold.last_rows is None):
        return _case(record, Ruling.same, "warm and cold give the same tokens, and nothing else is shown", facts=facts)
    if _agree(warm, cold) and warm.tokens == cold.tokens:
        return _case(record, Ruling.same, "warm and cold agree in everything that is shown", facts=facts)
    error = _error(record, warm, cold)
    if warm.last_rows is not None and cold.last_rows is not None:
        apart, unit = _apart(warm, cold), "logits of warm and cold are"
    else:
        apart, unit = _gap(record, warm, cold) / 2, "half of the gap between the two tokens, by the oracle, is"
    facts.append(
        f"controls: {len(legal_schedules(record, len(record.prompt)))} legal schedules, up to {error:.4g} apart"
    )
    if apart <= 2 * error:
        return _case(
            record, Ruling.noise, f"{unit} {apart:.4g}; legal schedules explain up to {2 * error:.4g}", facts=facts
        )
    return _case(record, Ruling.dirty, f"{unit} {apart:.4g}; legal schedules explain no more than {2 * error:.4g}",
                 place="the reused part (the subject shows no KV, so not which layer)", facts=facts)  # fmt: skip


def adjudicate_server(campaign: Campaign, scenario: Scenario) -> Case:
    """The same question to a server that shows neither schedule nor KV: controls, and fresh texts where they do not do."""
    played, instance = campaign.play(scenario)
    if not played:
        return Case(ruling=Ruling.unclear, turn="", because="; ".join(campaign.result.notes) or "no turn was answered",
                    missing="a conversation that the server answers")  # fmt: skip
    turn = played[-1]
    facts = [f"prompt of {len(turn.prompt)} tokens, {turn.warm.reused} reused warm"]
    judged = campaign.judge(scenario, turn, instance)
    if judged is None:
        why = [str(finding) for _, finding in campaign.result.findings] + campaign.result.notes
        ruling = Ruling.dirty if campaign.result.findings else Ruling.unclear
        return Case(ruling=ruling, turn=turn.op.name, because="; ".join(why) or "no cold reply was to be had", facts=facts,
                    missing=None if ruling is Ruling.dirty else "a way to a cold reply: a salt, or a switch")  # fmt: skip
    facts.append(f"warm against cold: {judged}")
    if not turn.hit:
        return Case(ruling=Ruling.unclear, turn=turn.op.name, because="nothing was reused in this turn", facts=facts,
                    missing="a second prompt that shares a page with the first")  # fmt: skip
    if not judged.suspicious:
        return _covered(turn.op.name, judged, facts)
    campaign.confirm(scenario, turn, judged)
    if campaign.result.findings:
        finding = campaign.result.findings[-1][1]
        return Case(ruling=Ruling.dirty, turn=turn.op.name, because=finding.message, facts=facts,
                    place="the reused part (a server shows no KV, so not which layer)")  # fmt: skip
    return Case(ruling=Ruling.unclear, turn=turn.op.name, because=campaign.result.suspects[-1], facts=facts,
                missing="more plays on fresh texts (give it more --time), or a subject that shows its KV")  # fmt: skip


def _covered(turn: str, judged: Judged, facts: list[str]) -> Case:
    if judged.statistic == 0:
        return Case(
            ruling=Ruling.same, turn=turn, because="warm and cold agree in everything that is shown", facts=facts
        )
    because = "warm and cold are no farther apart than legal schedules of the same tokens"
    return Case(ruling=Ruling.noise, turn=turn, because=because, facts=facts)


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


def _first_kv(left: Kv | None, right: Kv | None, what: str) -> str | None:
    """The first layer and, in it, the first position that differs."""
    if left is None or right is None:
        return None
    if len(left) != len(right):
        return f"{what}: {len(left)} layers instead of {len(right)}"
    for layer, pairs in enumerate(zip(left, right, strict=True)):
        found = [(_position(part), name, part) for name, *sides in zip(PARTS, *pairs, strict=True)
                 if (part := first_difference(*(np.moveaxis(side, 1, 0) for side in sides))) is not None]  # fmt: skip
        if found:
            position, name, difference = min(found, key=lambda each: each[0])
            return f"{what}: layer {layer}, position {position}, {name} {difference.left} instead of {difference.right}"
    return None


def _position(difference: Difference) -> int:
    return difference.index[0] if difference.index else 0


def _first_row(left: Rows | None, right: Rows) -> str | None:
    for step, (one, other) in enumerate(zip(left or (), right, strict=False)):
        if (found := first_difference(one, other)) is not None:
            return f"logits of call {step}: token {found.index[0] if found.index else 0} {found.left} instead of {found.right}"
    return None


def _cold_schedule(loop: Loop, record: TurnRecord, cold: Observation) -> list[str]:
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


def _error(record: TurnRecord, warm: Observation, cold: Observation) -> float:
    """The greatest difference of a logit between two legal schedules, at the step where the replies part."""
    assert record.recompute is not None
    at = first_token_difference(warm.tokens, cold.tokens)
    context = [*record.prompt, *warm.tokens[: at if at is not None else 0]]
    rows = np.stack([record.recompute(context, schedule)[-1] for schedule in legal_schedules(record, len(context))])
    return float(np.max(rows.max(axis=0) - rows.min(axis=0)))


def _gap(record: TurnRecord, warm: Observation, cold: Observation) -> float:
    """By the oracle, at the step where the replies part: how far the two tokens' logits are apart."""
    assert record.recompute is not None
    at = first_token_difference(warm.tokens, cold.tokens)
    assert at is not None
    if at >= min(len(warm.tokens), len(cold.tokens)):
        return float("inf")
    row = record.recompute([*record.prompt, *warm.tokens[:at]], None)[-1]
    return abs(float(row[warm.tokens[at]] - row[cold.tokens[at]]))
