"""The player for engines that can only be judged statistically: warm against cold, see `play.blackbox`."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping

from ..contract.verdict import CheckResult, Verdict
from ..conversations.shapes import Texts
from ..conversations.texts import corpus_of
from ..play.blackbox import Blackbox, BlackboxResult
from ..play.exact import ScenarioResult
from .events import Count, Event, LegFinished, ScenarioPlayed
from .player import Leg


class StatisticalPlayer:
    """Plays the given cases, then conversations of every shape, until the power gate is met or the time is up."""

    def __init__(self, leg: Leg) -> None:
        self._leg = leg
        self._started = time.monotonic()
        subject, effort = leg.arms.subject, leg.effort
        texts = Texts(corpus=corpus_of(subject), source=random.Random(effort.seed))
        self._blackbox = Blackbox(subject, texts, seconds=effort.seconds)

    @property
    def planned(self) -> int:
        """Not known before: it depends on what is found."""
        return 0

    def play(self) -> Iterator[Event]:
        """As the black box chooses them; a conversation's findings are those that name it."""
        cases = [case for _, case in self._leg.cases]
        plays = self._blackbox.run(cases, drawn=bool(self._leg.effort.examples))
        for number, (scenario, played) in enumerate(plays, start=1):
            result = ScenarioResult(scenario=scenario, turns=len(played))
            result.reused_turns = sum(turn.hit for turn in played)
            result.findings = [finding for of, finding in self._blackbox.result.findings if of is scenario]
            yield ScenarioPlayed(target=self._leg.target, number=number, origin=scenario.title, result=result)

    def finished(self, *, interrupted: bool = False) -> LegFinished:
        """What the evidence together says."""
        result = self._blackbox.result
        verdict, why = result.verdict, result.why
        if interrupted:
            verdict, why = Verdict.FAIL if result.findings else Verdict.UNKNOWN, "interrupted before its end"
        return LegFinished(
            target=self._leg.target,
            verdict=verdict,
            level=self._leg.arms.subject.capabilities.level,
            count=Count(scenarios=result.conversations, turns=result.turns, reused_turns=result.hits),
            seconds=time.monotonic() - self._started,
            checks=_checks(result),
            findings=tuple((scenario.title, finding) for scenario, finding in result.findings),
            why=why,
            notes=_notes(result),
        )


def _checks(result: BlackboxResult) -> Mapping[str, CheckResult]:
    """`cold`: turns judged against the cold reply; `reuse`: turns whose count was compared with what was sent before."""
    checks = {"reuse": CheckResult(compared=result.turns), "cold": CheckResult(compared=result.judged)}
    for _, finding in result.findings:
        checks.setdefault(finding.check, CheckResult()).findings.append(finding)
    return checks


def _notes(result: BlackboxResult) -> tuple[str, ...]:
    """Power, and what else happened, each kind once."""
    notes = [f"power: {result.power}"] if result.power.sites else []
    if result.replays:
        notes.append(
            f"suspicious turns were played again {result.replays} times; e-value {result.evidence:.4g} at most"
        )
    return (*notes, *dict.fromkeys(result.notes[:3]))
