"""What a run leaves behind at its end: each format is a function of all that was told, registered where it stands."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from ..contract.verdict import Finding, Level, Verdict, merge
from ..run.events import LegFinished
from ..shrinking.confirm import Shrunk


@dataclass(frozen=True, kw_only=True)
class Small:
    """A shrunk case: its file, and the stand-alone script beside it, where there is one."""

    file: str
    shrunk: Shrunk
    alone: str | None


@dataclass(kw_only=True)
class Told:
    """All that was told of a run. `cases`: files of failing conversations; `small`: of shrunk ones."""

    legs: list[LegFinished] = field(default_factory=list)
    cases: list[str] = field(default_factory=list)
    small: list[Small] = field(default_factory=list)

    @property
    def verdict(self) -> Verdict:
        """The worst of any leg."""
        return overall(self.legs)

    @property
    def level(self) -> Level:
        """The lowest level of any leg."""
        return min((leg.level for leg in self.legs), default=Level.L0)

    @property
    def findings(self) -> list[tuple[LegFinished, str, Finding]]:
        """Each difference with its leg and the conversation's origin, the first first."""
        return [(leg, origin, finding) for leg in self.legs for origin, finding in leg.findings]


Render = Callable[[Told], bytes]

FORMATS: dict[str, Render] = {}
"""File name -> what writes its content."""


def format_of(name: str) -> Callable[[Render], Render]:
    """Register the function below as what renders the file `name`."""

    def register(render: Render) -> Render:
        FORMATS[name] = render
        return render

    return register


def overall(legs: list[LegFinished]) -> Verdict:
    """The verdict of a whole run."""
    return merge(leg.verdict for leg in legs)
