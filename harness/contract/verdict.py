"""What a run may conclude, and a finding as data. Rendering is somebody else's work (`reporting/`).

Verdicts form a lattice, merged by max from NOT_RUN: nothing compared is not a pass.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from enum import IntEnum


class Verdict(IntEnum):
    """`NOT_RUN < PASS < UNKNOWN < FAIL < ERROR`. ERROR is a fault of the harness itself."""

    NOT_RUN = 0
    PASS = 1
    UNKNOWN = 2
    FAIL = 3
    ERROR = 4

    @property
    def shown(self) -> str:
        """The word for people: NOT_RUN at the top is UNKNOWN."""
        return "UNKNOWN" if self is Verdict.NOT_RUN else self.name

    @property
    def exit_code(self) -> int:
        """0 PASS, 1 FAIL, 3 UNKNOWN, 4 ERROR (2 is a usage error)."""
        return {Verdict.PASS: 0, Verdict.FAIL: 1, Verdict.ERROR: 4}.get(self, 3)


def merge(verdicts: Iterable[Verdict]) -> Verdict:
    """The worst of them; NOT_RUN of none."""
    return max(verdicts, default=Verdict.NOT_RUN)


class Level(IntEnum):
    """How much the subject let itself be observed: each level includes the ones below."""

    L0 = 0
    L1 = 1
    L2 = 2
    L3 = 3
    L4 = 4

    @property
    def meaning(self) -> str:
        """What this level adds to those below."""
        return ("tokens", "hit counts", "logits", "KV bytes", "the schedule-matched arm")[self]

    @property
    def compares(self) -> str:
        """All that is compared at this level."""
        return ", ".join(level.meaning for level in Level if level <= self)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """One difference. `check`, `arm`, `component`, `part` and `phase` are its fingerprint; the rest says where and what.

    `left` and `right` are what the warm engine gave and what `arm` gave, as text.
    """

    check: str
    arm: str
    message: str
    left: str
    right: str
    component: str = ""
    part: str = ""
    phase: str = ""
    turn: str = ""
    step: int | None = None
    place: str = ""

    @property
    def fingerprint(self) -> tuple[str, str, str, str, str]:
        """Two findings with the same fingerprint are the same fault seen twice."""
        return (self.check, self.arm, self.component, self.part, self.phase)

    def to_json(self) -> dict[str, object]:
        """Plain data."""
        return asdict(self)

    def __str__(self) -> str:
        where = ", ".join(part for part in (f"turn {self.turn}" if self.turn else "", self.place) if part)
        return f"[{self.check}] {self.message} ({where})\n    warm: {self.left}\n    {self.arm:>4}: {self.right}"


@dataclass(kw_only=True)
class CheckResult:
    """What one check did in one turn: how many values it compared, and what differed.

    `not_observable` / `not_applicable`: why it compared nothing, when that is legitimate; outside the merge then. `lacks`: the
    level that the evidence belongs to which the subject does not show.
    """

    compared: int = 0
    findings: list[Finding] = field(default_factory=list)
    not_observable: str | None = None
    lacks: Level | None = None
    not_applicable: str | None = None
    blind: bool = False

    def add(self, other: CheckResult) -> None:
        """Merge what the same check did elsewhere. Once it applied and compared nothing, that is remembered."""
        self.blind = self.blind or other.verdict is Verdict.UNKNOWN
        self.compared += other.compared
        self.findings += other.findings
        self.not_observable = self.not_observable or other.not_observable
        self.lacks = other.lacks if self.lacks is None else self.lacks
        self.not_applicable = self.not_applicable or other.not_applicable

    @property
    def verdict(self) -> Verdict:
        """FAIL with a finding, PASS if something was compared, NOT_RUN if ruled out, else UNKNOWN."""
        if self.findings:
            return Verdict.FAIL
        if self.compared:
            return Verdict.PASS
        if self.blind:
            return Verdict.UNKNOWN
        return Verdict.NOT_RUN if self.not_observable or self.not_applicable else Verdict.UNKNOWN
