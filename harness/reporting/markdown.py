"""`report.md`: verdict, leg ledger, checks and what they cannot see, first difference. Short enough to read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from ..checks import ALL
from ..contract.verdict import Finding, Verdict
from ..run.events import LegFinished
from .escape import template
from .formats import Small, Told, format_of
from .prose import describe


class _Row(NamedTuple):
    """One check over all legs. `absent`: why it compared nothing in some of them."""

    name: str
    says: str
    blind: str
    compared: int
    findings: int
    absent: str


class _First(NamedTuple):
    leg: LegFinished
    origin: str
    finding: Finding


class _Shown(NamedTuple):
    prose: str
    small: Small


@format_of("report.md")
def render(told: Told) -> bytes:
    """The whole report."""
    page = template("report.md.jinja").render(
        verdict=told.verdict.shown,
        level=told.level,
        legs=told.legs,
        checks=list(_checks(told)),
        first=next((_First(*found) for found in told.findings), None),
        cases=told.cases,
        shrunk=[_Shown(describe(small.shrunk.scenario), small) for small in told.small],
    )
    return page.encode()


def _checks(told: Told) -> Iterator[_Row]:
    """Those that looked at something, or could have; what is found while playing is news only where it was found."""
    for name, check in ALL.items():
        seen = [leg.checks[name] for leg in told.legs if name in leg.checks]
        if seen or check.look is not None:
            reasons = {each.not_observable or each.not_applicable for each in seen if each.verdict is Verdict.NOT_RUN}
            yield _Row(
                name=name,
                says=check.says,
                blind=check.blind,
                compared=sum(each.compared for each in seen),
                findings=sum(len(each.findings) for each in seen),
                absent="; ".join(sorted(reason for reason in reasons if reason)),
            )
