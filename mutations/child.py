"""What runs inside a copy: plays the fixed conversations and prints, as one JSON line, what each check found.

    python -B -m warmcold.mutations.child --model fixtures/models/snap-gqa-shared --backend native

It ends with 0 whatever was found: a finding is news, not an error. Anything else means that it could not be run.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..harness.arms.arms import Arms
from ..harness.contract.scenario import Scenario
from ..harness.contract.verdict import Finding
from ..harness.play.exact import Lineup, ScenarioResult, run_scenario
from ..harness.run.target import Target
from .mutant import CRASH
from .scenarios import scenarios


@dataclass(kw_only=True)
class Seen:
    """What was found so far: per check, in the order of their first finding, how many and the first one."""

    counts: dict[str, int] = field(default_factory=dict)
    first: dict[str, str] = field(default_factory=dict)
    sources: dict[str, int] = field(default_factory=dict)
    turns: int = 0

    def take(self, result: ScenarioResult, where: str) -> None:
        """Count the findings of one conversation."""
        self.turns += result.turns
        for source, turns in result.sources.items():
            self.sources[source] = self.sources.get(source, 0) + turns
        for finding in result.findings:
            self.note(finding.check, _shown(finding, where))

    def note(self, check: str, text: str) -> None:
        """Count one finding."""
        self.counts[check] = self.counts.get(check, 0) + 1
        self.first.setdefault(check, text)


def play(seen: Seen, arms: Arms, scenario: Scenario, where: str) -> None:
    """Play one conversation to its end on every arm. What the subject raises outside a turn is a crash of the subject.

    After a finding the arms may hold different histories; an error that follows from that says nothing.
    """
    try:
        seen.take(run_scenario(arms, scenario, Lineup(to_the_end=True)), f"{where}, {scenario.title}")
    except Exception as error:  # a fault may break the harness too
        seen.note(CRASH, f"{where}, {scenario.title}: {type(error).__name__}: {error}")


def run(models: Sequence[str], backends: Sequence[str]) -> Seen:
    """Every conversation on every model and backend."""
    seen = Seen()
    for model in models:
        for backend in backends:
            where = f"{Path(model).name} on {backend}"
            try:
                arms = Target(model=model, subject=backend).open(threads=1)
            except Exception as error:  # a fault may show as early as this
                seen.note(CRASH, f"{where}, loading: {type(error).__name__}: {error}")
                continue
            for scenario in scenarios():
                play(seen, arms, scenario, where)
            arms.subject.close()
    return seen


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse, run, print."""
    parser = argparse.ArgumentParser(prog="warmcold.mutations.child", description=__doc__)
    parser.add_argument("--model", action="append", required=True)
    parser.add_argument("--backend", action="append", required=True)
    chosen = parser.parse_args(arguments)
    seen = run(chosen.model, chosen.backend)
    print(json.dumps(report(seen)))


def report(seen: Seen) -> dict[str, Any]:
    """Plain data. `engine` is the file that was really imported, so that a wrong build shows."""
    return {
        "engine": str(Path(str(sys.modules["warmcold.engine"].__file__)).resolve()),
        "turns": seen.turns,
        "sources": seen.sources,
        "counts": seen.counts,
        "first": seen.first,
    }


def _shown(finding: Finding, where: str) -> str:
    return f"{where}: {finding}"


if __name__ == "__main__":
    main()
