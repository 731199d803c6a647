"""The player for subjects of which each turn can be judged alone, to the last bit."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import replace

from ..contract.errors import NotShownError
from ..contract.scenario import Scenario
from ..contract.verdict import CheckResult, Finding, Level, Verdict, merge
from ..conversations.drawing import drawn
from ..conversations.profile import Profile
from ..conversations.texts import REAL_VOCABULARY, chats, material
from ..play.exact import Lineup, ScenarioResult, merge_checks, run_scenario
from ..shrinking.confirm import confirm, smallest
from .events import Count, Event, FailureShrunk, LegFinished, ScenarioPlayed
from .player import Leg


class ExactPlayer:
    """Plays the given conversations, the built-in ones for a model of text, and drawn ones."""

    def __init__(self, leg: Leg) -> None:
        self._leg = leg
        self._subject = leg.arms.subject
        self._real = self._subject.vocab_size >= REAL_VOCABULARY
        self._corpus = material(self._subject.encode, self._subject.vocab_size)
        self._fixed = [*leg.cases, *self._built_in()]
        self._results: list[ScenarioResult] = []
        self._findings: list[tuple[str, Finding]] = []
        self._started = time.monotonic()

    @property
    def planned(self) -> int:
        """Those given, those built in, and as many as are to be drawn."""
        return len(self._fixed) + self._leg.effort.examples

    def play(self) -> Iterator[Event]:
        """One after the other, the first that fails made small, until a failure (or on), the time or the number."""
        for origin, scenario in self._scenarios():
            if self._results and time.monotonic() - self._started > self._leg.effort.seconds:
                return
            lineup = Lineup(poison=not self._real or not self._results)
            played = self._judge(origin, scenario, lineup)
            yield played
            if played.result.findings:
                if len(self._findings) == len(played.result.findings) and self._leg.effort.shrink_s:
                    yield self._shrunk(played, lineup)
                if not self._leg.effort.keep_going:
                    return

    def finished(self, *, interrupted: bool = False) -> LegFinished:
        """All findings, each check over all conversations, and the level that was really shown."""
        checks = merge_checks(self._results)
        verdict, why = self._verdict(checks, interrupted=interrupted)
        return LegFinished(
            target=self._leg.target,
            verdict=verdict,
            level=_level(self._subject.capabilities.level, checks),
            count=self._count(),
            seconds=time.monotonic() - self._started,
            checks=checks,
            findings=tuple(self._findings),
            why=why,
        )

    def _scenarios(self) -> Iterator[tuple[str, Scenario]]:
        yield from self._fixed
        effort, capabilities = self._leg.effort, self._subject.capabilities
        profile = Profile(
            vocab_size=self._subject.vocab_size,
            longest=min(self._subject.max_context, effort.longest),
            operations=capabilities.operations,
            boundaries=capabilities.boundaries,
            plain="settings" not in capabilities.has,
            corpus=self._corpus,
        )
        for scenario in drawn(profile, count=effort.examples, seed=effort.seed):
            yield "generated", scenario

    def _built_in(self) -> Iterator[tuple[str, Scenario]]:
        if self._real and self._corpus is not None:
            yield from chats(self._subject.encode, sessions="sessions" in self._subject.capabilities.operations)

    def _judge(self, origin: str, scenario: Scenario, lineup: Lineup) -> ScenarioPlayed:
        result = run_scenario(self._leg.arms, scenario, lineup)
        self._results.append(result)
        self._findings += [(origin, finding) for finding in result.findings]
        return ScenarioPlayed(target=self._leg.target, number=len(self._results), origin=origin, result=result)

    def _shrunk(self, played: ScenarioPlayed, lineup: Lineup) -> FailureShrunk:
        """The first failing conversation made small, while the model is still loaded, and confirmed in a fresh process."""
        effort, result = self._leg.effort, played.result
        told = FailureShrunk(target=self._leg.target, number=played.number, before=result, shrunk=None)
        try:
            found = smallest(self._leg.arms, result.scenario, result.findings[0], lineup, seconds=effort.shrink_s)
        except NotShownError as error:
            return replace(told, why=str(error))
        return replace(told, shrunk=confirm(found, found=self._leg.target.to_json(), threads=effort.threads))

    def _verdict(self, checks: Mapping[str, CheckResult], *, interrupted: bool) -> tuple[Verdict, str | None]:
        """The worst over all checks; no pass where nothing that was reused was compared, or before the end."""
        verdict = Verdict.FAIL if self._findings else merge(result.verdict for result in checks.values())
        blind = sorted(name for name, seen in checks.items() if seen.verdict is Verdict.UNKNOWN)
        if verdict is Verdict.UNKNOWN and blind:
            return verdict, f"these checks apply but compared nothing: {', '.join(blind)}"
        if verdict is Verdict.PASS and interrupted:
            return Verdict.UNKNOWN, "interrupted before its end; what was played showed no difference"
        if verdict is Verdict.PASS and self._subject.stateful and not self._count().reused_turns:
            return Verdict.UNKNOWN, "no turn that reused anything was compared"
        return verdict, None

    def _count(self) -> Count:
        return Count(
            scenarios=len(self._results),
            turns=sum(result.turns for result in self._results),
            reused_turns=sum(result.reused_turns for result in self._results),
            warm_prompt_tokens=sum(result.warm_prompt_tokens for result in self._results),
            reused_tokens=sum(result.reused_tokens for result in self._results),
            generated_tokens=sum(result.generated_tokens for result in self._results),
        )


def _level(declared: Level, checks: Mapping[str, CheckResult]) -> Level:
    """What was declared, lowered by what the subject then did not show."""
    lacking = [seen.lacks for seen in checks.values() if seen.lacks is not None and not seen.compared]
    return min([declared, *(Level(level - 1) for level in lacking)])
