"""A deliberate fault as data, and what came of planting it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

REQUIRED = "required list"
"""The `source` of a fault that the design demands and no public report is cited for."""

ALLOWLIST = "allowlist"
"""The check that reads sources instead of playing conversations."""

CRASH = "crash"
"""The check under which a subject that raised is reported: weaker evidence than a check that saw the difference."""

FIXTURES = "fixtures/models"


@dataclass(frozen=True, kw_only=True)
class Mutant:
    """One fault. `file` is relative to the repository; `text` must occur in it exactly once and becomes `replacement`.

    `kind`: the family of faults; `source`: a public report of it, or `REQUIRED`. `expected_check`: the check that
    ought to kill it. It is played on each model directory of `fixture` (under `fixtures/models`, or with its whole
    path) and each of the backends `backend`. `note` says what the fault does, for a reader of the scorecard.
    """

    id: str
    file: str
    text: str
    replacement: str
    kind: str
    expected_check: str
    note: str
    source: str = REQUIRED
    fixture: tuple[str, ...] = ("snap-gqa-shared",)
    backend: tuple[str, ...] = ("native",)

    @property
    def models(self) -> tuple[str, ...]:
        """Model directories relative to the repository."""
        return tuple(name if "/" in name else f"{FIXTURES}/{name}" for name in self.fixture)


class Outcome(StrEnum):
    """What came of a mutant. Only the first two are evidence that the harness sees the fault."""

    KILLED = "KILLED"
    KILLED_BY_OTHER = "KILLED_BY_OTHER"
    CRASHED = "CRASHED"
    TIMEOUT = "TIMEOUT"
    SURVIVED = "SURVIVED"
    STALE = "STALE"

    @property
    def seen(self) -> bool:
        """Whether a check saw the difference."""
        return self in (Outcome.KILLED, Outcome.KILLED_BY_OTHER)


def judge(expected: str, killed_by: Sequence[str]) -> Outcome:
    """The outcome of a run that ended, given the checks with findings. A crash alone is reported apart."""
    seen = [check for check in killed_by if check != CRASH]
    if expected in seen:
        return Outcome.KILLED
    if seen:
        return Outcome.KILLED_BY_OTHER
    return Outcome.CRASHED if killed_by else Outcome.SURVIVED


@dataclass(frozen=True, kw_only=True)
class Result:
    """One mutant after its run. `killed_by`: every check that saw it; `witness`: the first thing seen, as text."""

    mutant: Mutant
    outcome: Outcome
    killed_by: tuple[str, ...] = ()
    seconds: float = 0.0
    witness: str = ""

    def to_json(self) -> dict[str, Any]:
        """Plain data, as `reports/mutations.json` has it."""
        mutant = self.mutant
        return {
            "id": mutant.id,
            "file": mutant.file,
            "kind": mutant.kind,
            "source": mutant.source,
            "expected_check": mutant.expected_check,
            "fixture": ", ".join(mutant.fixture) + " on " + ", ".join(mutant.backend),
            "outcome": self.outcome.value,
            "killed_by": list(self.killed_by),
            "seconds": round(self.seconds, 2),
            "witness": self.witness,
        }
