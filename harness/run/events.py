"""What happened, in the past tense. Producers yield these; console, reports and the pytest plugin only consume them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from ..contract.verdict import CheckResult, Finding, Level, Verdict
from ..play.exact import ScenarioResult


@dataclass(frozen=True, kw_only=True)
class LegStarted:
    """A model on one backend and device was loaded. `found`: where a case file found there says that it was found."""

    leg: str
    model: str
    planned: int
    described: Mapping[str, Any]
    found: Mapping[str, Any]


@dataclass(frozen=True, kw_only=True)
class ScenarioPlayed:
    """One conversation was judged."""

    leg: str
    model: str
    number: int
    origin: str
    result: ScenarioResult


@dataclass(frozen=True, kw_only=True)
class LegFinished:
    """All that was found out about one leg. `why`: why it did not run, or why the verdict is not what its checks say.

    `notes`: what a reader should know beside (power, evidence, refusals), one sentence each.
    """

    leg: str
    model: str
    verdict: Verdict
    level: Level
    scenarios: int
    turns: int
    reused_turns: int
    warm_prompt_tokens: int
    reused_tokens: int
    generated_tokens: int
    seconds: float
    checks: Mapping[str, CheckResult]
    findings: tuple[tuple[str, Finding], ...]
    why: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def reused_share(self) -> float | None:
        """Share of their prompt that the turns which reused anything did not have to compute; None without any."""
        return self.reused_tokens / self.warm_prompt_tokens if self.warm_prompt_tokens else None


Event = LegStarted | ScenarioPlayed | LegFinished
