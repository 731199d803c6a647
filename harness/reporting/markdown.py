"""`report.md`: verdict, leg ledger, checks, first difference. Short enough to read."""

from __future__ import annotations

from collections.abc import Sequence

from ..checks import ALL
from ..contract.verdict import Verdict
from ..run.events import LegFinished
from .summary import first_finding, level_of, overall


def render(legs: Sequence[LegFinished], case_files: Sequence[str]) -> str:
    """The whole report."""
    level = level_of(legs)
    lines = [
        f"# warmcold: {overall(legs).shown} at level {level.name}",
        "",
        f"{level.name} compares {_means(level)}.",
        "",
        "## Legs",
        "",
        "| leg | model | verdict | conversations | turns | turns that reused | reused of their prompts | seconds |",
        "|---|---|---|---:|---:|---:|---:|---:|",
        *(_row(leg) for leg in legs),
        "",
    ]
    lines += [f"- {leg.leg} on {leg.model}: {said}" for leg in legs for said in (leg.why, *leg.notes) if said]
    return "\n".join([*lines, *_checks(legs), *_difference(legs, case_files)]) + "\n"


def _means(level: object) -> str:
    names = ("tokens", "hit counts", "logits", "KV bytes", "the schedule-matched arm")
    return ", ".join(names[: int(str(level)) + 1])


def _row(leg: LegFinished) -> str:
    share = f"{leg.reused_share:.0%}" if leg.reused_share is not None else "-"
    return (
        f"| {leg.leg} | {leg.model} | {leg.verdict.shown} | {leg.scenarios} | {leg.turns} | {leg.reused_turns} "
        f"| {share} | {leg.seconds:.0f} |"
    )


def _checks(legs: Sequence[LegFinished]) -> list[str]:
    lines = ["## Checks", "", "| check | what it says | values compared | findings |", "|---|---|---:|---:|"]
    for name, check in ALL.items():
        seen = [leg.checks[name] for leg in legs if name in leg.checks]
        compared, findings = sum(s.compared for s in seen), sum(len(s.findings) for s in seen)
        reasons = {s.not_observable or s.not_applicable for s in seen if s.verdict is Verdict.NOT_RUN}
        note = f" (not in every leg: {'; '.join(sorted(r for r in reasons if r))})" if reasons else ""
        says = (check.__doc__ or "").split("\n")[0].rstrip(".")
        lines.append(f"| {name} | {says}{note} | {compared:,} | {findings} |")
    return [*lines, ""]


def _difference(legs: Sequence[LegFinished], case_files: Sequence[str]) -> list[str]:
    first = first_finding(legs)
    if first is None:
        return []
    leg, origin, finding = first
    lines = [
        "## First difference",
        "",
        f"{leg.leg} on {leg.model}, conversation: {origin}.",
        "",
        "```",
        str(finding),
        "```",
        "",
    ]
    if case_files:
        lines += [f"Shown again by `warmcold replay {case_files[0]}`.", ""]
    return lines
