"""The run as plain data: what `--json` prints."""

from __future__ import annotations

import json
from typing import TypedDict

from ..contract.verdict import CheckResult, Verdict
from ..run.events import LegFinished
from .formats import Told, format_of


class CheckSummary(TypedDict):
    """What one check did in one leg."""

    verdict: str
    compared: int
    findings: int
    reason: str | None


class LegSummary(TypedDict):
    """One leg, its checks by name."""

    leg: str
    model: str
    verdict: str
    level: str
    why: str | None
    notes: list[str]
    scenarios: int
    turns: int
    reused_turns: int
    reused_share: float | None
    generated_tokens: int
    seconds: float
    turns_per_second: float | None
    checks: dict[str, CheckSummary]


class Summary(TypedDict):
    """The whole run. A finding has all of its fields, and the leg, model and origin where it was found."""

    warmcold_summary: int
    verdict: str
    level: str
    legs: list[LegSummary]
    findings: list[dict[str, object]]
    cases: list[str]
    shrunk: list[str]


def summary(told: Told) -> Summary:
    """Verdict, level, legs with their checks, and findings, with the case files that show them."""
    return Summary(
        warmcold_summary=1,
        verdict=told.verdict.shown,
        level=told.level.name,
        legs=[leg_summary(leg) for leg in told.legs],
        findings=[
            {"leg": leg.target.leg, "model": leg.target.model, "origin": origin, **finding.to_json()}
            for leg, origin, finding in told.findings
        ],
        cases=list(told.cases),
        shrunk=[small.file for small in told.small],
    )


@format_of("summary.json")
def render(told: Told) -> bytes:
    """The same as a file."""
    return (json.dumps(summary(told), indent=1) + "\n").encode()


def leg_summary(leg: LegFinished) -> LegSummary:
    """One leg."""
    count = leg.count
    return LegSummary(
        leg=leg.target.leg,
        model=leg.target.model,
        verdict=leg.verdict.shown,
        level=leg.level.name,
        why=leg.why,
        notes=list(leg.notes),
        scenarios=count.scenarios,
        turns=count.turns,
        reused_turns=count.reused_turns,
        reused_share=count.reused_share,
        generated_tokens=count.generated_tokens,
        seconds=round(leg.seconds, 1),
        turns_per_second=round(count.turns / leg.seconds, 2) if leg.seconds else None,
        checks={name: _check(seen) for name, seen in leg.checks.items()},
    )


def _check(seen: CheckResult) -> CheckSummary:
    return CheckSummary(
        verdict=seen.verdict.shown if seen.verdict is not Verdict.NOT_RUN else "NOT_APPLICABLE",
        compared=seen.compared,
        findings=len(seen.findings),
        reason=None if seen.compared else seen.not_observable or seen.not_applicable,
    )
