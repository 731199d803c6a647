"""What happened, in the past tense. `verify` yields these; console, folder, reports and the pytest plugin only consume them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..contract.verdict import CheckResult, Finding, Level, Verdict
from ..play.exact import ScenarioResult
from ..shrinking.confirm import Shrunk
from .target import Target


@dataclass(frozen=True, kw_only=True)
class LegStarted:
    """The target was loaded. `planned`: conversations at most; `described`: what the subject says of itself."""

    target: Target
    planned: int
    described: Mapping[str, object]


@dataclass(frozen=True, kw_only=True)
class ScenarioPlayed:
    """One conversation was judged; `number` counts from 1. `origin`: a case file, a built-in chat, or `generated`."""

    target: Target
    number: int
    origin: str
    result: ScenarioResult


@dataclass(frozen=True, kw_only=True)
class FailureShrunk:
    """The conversation `number`, which failed, was made as small as it gets; None, and why, where it does not fail again."""

    target: Target
    number: int
    before: ScenarioResult
    shrunk: Shrunk | None
    why: str = ""


@dataclass(frozen=True, kw_only=True)
class Count:
    """How much was played. `reused_turns`: turns that reused anything, whose prompts had `warm_prompt_tokens`."""

    scenarios: int = 0
    turns: int = 0
    reused_turns: int = 0
    warm_prompt_tokens: int = 0
    reused_tokens: int = 0
    generated_tokens: int = 0

    @property
    def reused_share(self) -> float | None:
        """Share of their prompt that the turns which reused anything did not have to compute; None without any."""
        return self.reused_tokens / self.warm_prompt_tokens if self.warm_prompt_tokens else None


@dataclass(frozen=True, kw_only=True)
class LegFinished:
    """All that was found out about one leg. `why`: why it did not run, or why the verdict is not what its checks say.

    `notes`: what a reader should know beside (power, evidence, refusals), one sentence each.
    """

    target: Target
    verdict: Verdict
    level: Level
    count: Count
    seconds: float
    checks: Mapping[str, CheckResult] = field(default_factory=dict)
    findings: tuple[tuple[str, Finding], ...] = ()
    why: str | None = None
    notes: tuple[str, ...] = ()


Event = LegStarted | ScenarioPlayed | FailureShrunk | LegFinished
