"""The scorecard: mutant x check, which checks *could* see each fault. JSON for machines, Markdown for people."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..harness.checks import ALL
from .battery import Report, Run
from .mutant import ALLOWLIST, Outcome, Result

LEAST_KILLED = 0.95
"""The share of mutants that the very check must kill that ought to; the rest may fall to another."""

CHECKS = (*ALL, ALLOWLIST)
"""The columns, in the order in which the harness reports."""


def passed(results: Sequence[Result]) -> bool:
    """Whether every mutant was seen by a check, and at least 95% by the one that ought to. False for none at all."""
    killed = sum(result.outcome is Outcome.KILLED for result in results)
    return bool(results) and all(result.outcome.seen for result in results) and killed >= LEAST_KILLED * len(results)


def to_json(report: Report) -> dict[str, Any]:
    """Plain data, as `reports/mutations.json` has it."""
    return {
        "clean": {"passed": True, **_run(report.clean)},
        "forced_failure": {"failed": True, "killed_by": list(report.forced.found), **_run(report.forced)},
        "mutants": [result.to_json() for result in report.results],
    }


def to_markdown(report: Report) -> str:
    """The same as a page: summary, what was not killed, the matrix, and one line a mutant."""
    return "\n\n".join(
        part
        for part in (
            "# Mutation scorecard",
            _summary(report),
            _trouble(report.results),
            _alone(report.results),
            "## Which checks could see it",
            "`X`: the check that ought to, `x`: another that saw it, `.`: the check that ought to, blind.",
            _matrix(report.results),
            "## The mutants",
            _list(report.results),
        )
        if part
    )


def write(report: Report, folder: Path) -> Path:
    """Write `mutations.json` and `mutations.md` into `folder`; returns the latter."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mutations.json").write_text(json.dumps(to_json(report), indent=1) + "\n", encoding="utf-8")
    page = folder / "mutations.md"
    page.write_text(to_markdown(report) + "\n", encoding="utf-8")
    return page


def counts(results: Sequence[Result]) -> str:
    """`3 KILLED, 1 SURVIVED`: outcomes that occurred, in their order."""
    seen = Counter(result.outcome for result in results)
    return ", ".join(f"{seen[outcome]} {outcome.value}" for outcome in Outcome if seen[outcome]) or "no mutants"


def _run(run: Run) -> dict[str, Any]:
    return {"turns": run.turns, "sources": run.sources, "seconds": round(run.seconds, 2)}


def _summary(report: Report) -> str:
    results = report.results
    forced = ", ".join(f"`{check}`" for check in report.forced.found)
    return "\n".join(
        (
            f"- {'PASS' if passed(results) else 'FAIL'}: {len(results)} mutants: {counts(results)}",
            f"- clean tree: passes, {report.clean.turns} turns ({report.clean.sources['retained']} on retained state, "
            f"{report.clean.sources['paged']} on pages)",
            f"- forced failure: seen by {forced}",
            f"- processor time of the mutants: {sum(result.seconds for result in results):.0f} s",
        )
    )


def _trouble(results: Sequence[Result]) -> str:
    lines = [
        f"- **{result.outcome.value}** `{result.mutant.id}` ({result.mutant.file}): {result.mutant.note} "
        f"Expected `{result.mutant.expected_check}`; seen by {', '.join(result.killed_by) or 'nothing'}. "
        + " ".join(result.witness.split())
        for result in results
        if result.outcome is not Outcome.KILLED
    ]
    return "\n".join(["## Not killed by the check that ought to", "", *lines]) if lines else ""


def _alone(results: Sequence[Result]) -> str:
    """What each check is worth: mutants that no other check saw, and mutants that tokens missed."""
    seen = [result for result in results if result.outcome.seen]
    only = Counter(result.killed_by[0] for result in seen if len(result.killed_by) == 1)
    played = [result for result in seen if result.mutant.expected_check != ALLOWLIST]
    blind = [result for result in played if not {"tokens", "closed_form", "cold", "oracle"} & set(result.killed_by)]
    lines = [f"- only `{check}` saw {count}" for check, count in only.most_common()]
    tokens = sum("tokens" not in result.killed_by for result in played)
    lines.append(f"- `tokens` missed {tokens} of {len(played)} that were seen")
    lines.append(f"- no check of outputs (`tokens`, `closed_form`, `cold`, `oracle`) saw {len(blind)} of them")
    return "\n".join(["## What each check is worth", "", *lines])


def _matrix(results: Sequence[Result]) -> str:
    columns = [
        check
        for check in CHECKS
        if any(check in result.killed_by or check == result.mutant.expected_check for result in results)
    ]
    rows = [
        [f"`{result.mutant.id}`", result.outcome.value, *(_cell(result, check) for check in columns)]
        for result in results
    ]
    return _table(["mutant", "outcome", *columns], rows)


def _cell(result: Result, check: str) -> str:
    expected = check == result.mutant.expected_check
    if check in result.killed_by:
        return "X" if expected else "x"
    return "." if expected else " "


def _list(results: Sequence[Result]) -> str:
    rows = [
        [f"`{m.id}`", m.file, m.kind, m.source, result.to_json()["fixture"], m.note]
        for result in results
        for m in (result.mutant,)
    ]
    return _table(["mutant", "file", "kind", "source", "played on", "fault"], rows)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
