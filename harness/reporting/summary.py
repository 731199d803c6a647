"""The run as plain data: what `--json` prints, and what the other reports are made from."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..contract.verdict import Finding, Level, Verdict, merge
from ..run.events import LegFinished


def overall(legs: Sequence[LegFinished]) -> Verdict:
    """The verdict of the whole run."""
    return merge(leg.verdict for leg in legs)


def level_of(legs: Sequence[LegFinished]) -> Level:
    """The lowest level of any leg."""
    return min((leg.level for leg in legs), default=Level.L0)


def summary(legs: Sequence[LegFinished], case_files: Sequence[str]) -> dict[str, Any]:
    """Verdict, level, legs with their checks, and findings, each with the case file that shows it."""
    return {
        "warmcold_summary": 1,
        "verdict": overall(legs).shown,
        "level": level_of(legs).name,
        "legs": [_leg(leg) for leg in legs],
        "findings": [
            {"leg": leg.leg, "model": leg.model, "origin": origin, **finding.to_json()}
            for leg in legs
            for origin, finding in leg.findings
        ],
        "cases": list(case_files),
    }


def first_finding(legs: Sequence[LegFinished]) -> tuple[LegFinished, str, Finding] | None:
    """The first difference of the run, with its leg and the conversation's origin."""
    for leg in legs:
        for origin, finding in leg.findings:
            return leg, origin, finding
    return None


def _leg(leg: LegFinished) -> dict[str, Any]:
    return {
        "leg": leg.leg,
        "model": leg.model,
        "verdict": leg.verdict.shown,
        "level": leg.level.name,
        "why": leg.why,
        "notes": list(leg.notes),
        "scenarios": leg.scenarios,
        "turns": leg.turns,
        "reused_turns": leg.reused_turns,
        "reused_share": leg.reused_share,
        "generated_tokens": leg.generated_tokens,
        "seconds": round(leg.seconds, 1),
        "turns_per_second": round(leg.turns / leg.seconds, 2) if leg.seconds else None,
        "checks": {
            name: {
                "verdict": seen.verdict.shown if seen.verdict is not Verdict.NOT_RUN else "NOT_APPLICABLE",
                "compared": seen.compared,
                "findings": len(seen.findings),
                "reason": seen.not_observable or seen.not_applicable if not seen.compared else None,
            }
            for name, seen in leg.checks.items()
        },
    }
