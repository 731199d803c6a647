"""A leg on an engine that can only be judged statistically: a campaign, told in the events that every leg gives."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING

from ..contract.scenario import Scenario
from ..contract.verdict import CheckResult, Finding
from ..conversations.texts import material
from ..play.blackbox import Campaign, CampaignResult
from ..play.exact import Arms, ScenarioResult
from ..play.played import Played
from .events import Event, LegFinished, LegStarted, ScenarioPlayed

if TYPE_CHECKING:
    from .verify import Request


class StatisticalRun:
    """Plays the given cases, then conversations of every shape, until the power gate is met or the time is up."""

    def __init__(self, request: Request, arms: Arms, emit: Callable[[Event], None]) -> None:
        self._request = request
        self._arms = arms
        self._emit = emit
        self._number = 0
        self._started = time.monotonic()
        corpus = (
            getattr(arms.subject, "text", None)
            or material(arms.encode, arms.vocab_size)
            or tuple(range(arms.vocab_size))
        )
        self._campaign = Campaign(arms.subject, corpus, seconds=request.seconds, seed=request.seed)

    def run(self) -> LegFinished:
        """Play, and conclude."""
        request = self._request
        cases = [case for _, case in request.cases]
        self._emit(LegStarted(leg=request.leg, model=str(request.model), planned=0, found=request.found(),
                              described=dict(self._arms.subject.describe())))  # fmt: skip
        try:
            result = self._campaign.run(cases, self._played, drawn=bool(request.examples))
        except KeyboardInterrupt:
            self._emit(self._concluded(self._campaign.result, why="interrupted before its end"))
            raise
        finished = self._concluded(result, why=result.why)
        self._emit(finished)
        return finished

    def _played(self, scenario: Scenario, played: Sequence[Played]) -> None:
        """One conversation, with the findings of its own."""
        self._number += 1
        result = ScenarioResult(scenario=scenario, turns=len(played))
        result.reused_turns = sum(turn.hit for turn in played)
        result.findings = [finding for of, finding in self._campaign.result.findings if of is scenario]
        self._emit(ScenarioPlayed(leg=self._request.leg, model=str(self._request.model), number=self._number,
                                  origin=scenario.title, result=result))  # fmt: skip

    def _concluded(self, result: CampaignResult, *, why: str | None) -> LegFinished:
        return LegFinished(
            leg=self._request.leg,
            model=str(self._request.model),
            verdict=result.verdict,
            level=self._arms.subject.capabilities.level,
            scenarios=result.conversations,
            turns=result.turns,
            reused_turns=result.hits,
            warm_prompt_tokens=0,
            reused_tokens=0,
            generated_tokens=0,
            seconds=time.monotonic() - self._started,
            checks=_checks(result, [finding for _, finding in result.findings]),
            findings=tuple((scenario.title, finding) for scenario, finding in result.findings),
            why=why,
            notes=_notes(result),
        )


def _checks(result: CampaignResult, findings: Sequence[Finding]) -> Mapping[str, CheckResult]:
    """`cold`: turns judged against the cold reply; `reuse`: turns whose count was compared with what was sent before."""
    checks = {"reuse": CheckResult(compared=result.turns), "cold": CheckResult(compared=result.judged)}
    for finding in findings:
        checks.setdefault(finding.check, CheckResult()).findings.append(finding)
    return checks


def _notes(result: CampaignResult) -> tuple[str, ...]:
    """Power, and what else happened, each kind once."""
    notes = [f"power: {result.power}"] if result.power.sites else []
    if result.replays:
        notes.append(
            f"suspicious turns were played again {result.replays} times; e-value {result.evidence:.4g} at most"
        )
    return (*notes, *dict.fromkeys(result.notes[:3]))
