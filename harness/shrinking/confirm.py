"""The smallest conversation that shows a finding: found in this process, confirmed in a fresh one.

How sure a shrunk case is. The search plays thousands of candidates on the subject that is loaded already, each on fresh
instances, and keeps one if its *first* finding has the same mark: the fingerprint (check, arm, component, part, phase) and,
of a crash, the exception, so that shrinking one fault does not slip to another. While searching, the cold arm and the oracle
are left out if the finding comes before theirs; the smallest is then judged by all arms once more. If it does not hold there,
the search is made again with all of them.

All of that happened in one process, whose memory earlier plays have shaped. So the smallest case is written to a file and
replayed by `warmcold replay` in a process of its own, which loads the model anew. Only if that sees the same mark is it
called confirmed; if not, the case is kept all the same, and says why it may be nondeterministic.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from msgspec.structs import replace as changed

from ..arms.arms import Arms
from ..checks import LOOKED_FOR
from ..checks.conduct import CRASH
from ..contract.data import Json
from ..contract.errors import NotShownError
from ..contract.scenario import Encode, Scenario, Turn, appended
from ..contract.verdict import Finding
from ..play.exact import Lineup, run_scenario
from .search import search

CONFIRM_S = 120.0
"""Longest that a fresh process may take: it loads the model anew."""

Mark = tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class Shrunk:
    """`scenario` is the smallest found that shows `finding`; `complete`: no single step makes it smaller.

    `confirmed`: whether a fresh process shows it too, None where none was asked; `why` not.
    """

    scenario: Scenario
    finding: Finding
    tries: int
    seconds: float
    complete: bool
    confirmed: bool | None = None
    why: str | None = None


def smallest(arms: Arms, scenario: Scenario, finding: Finding, lineup: Lineup, *, seconds: float) -> Shrunk:
    """Shrink `scenario`, whose first finding under `lineup` is `finding`, within about so many seconds.

    NotShownError where it does not show it a second time: the finding is not deterministic. Arms that do not matter for
    the check are left out while searching; what comes out is judged by all of them.
    """
    started = time.monotonic()
    plain = in_ids(scenario, arms.subject.encode)
    for chosen in dict.fromkeys((_enough(finding, lineup), lineup)):
        left = seconds - (time.monotonic() - started)
        try:
            found = search(plain, _shows(arms, finding, chosen), seconds=left)
        except NotShownError:
            continue
        seen = run_scenario(arms, found.best, lineup).findings
        if seen and mark(seen[0]) == mark(finding):
            return Shrunk(
                scenario=changed(found.best, title=_title(scenario)),
                finding=seen[0],
                tries=found.tried,
                seconds=time.monotonic() - started,
                complete=found.complete,
            )
    raise NotShownError("played again, the conversation does not show its finding: nondeterministic")


def confirm(shrunk: Shrunk, *, found: Json, threads: int, timeout_s: float = CONFIRM_S) -> Shrunk:
    """Replay it in a fresh process on the same leg, and say whether that sees the same finding."""
    with tempfile.TemporaryDirectory(prefix="warmcold-confirm-") as scratch:
        case = Path(scratch) / "case.json"
        case.write_text(json.dumps({**shrunk.scenario.to_json(), "found": dict(found)}), encoding="utf-8")
        command = [sys.executable, "-P", "-m", "warmcold", "replay", str(case), "--threads", str(threads)]
        why = _differs(shrunk.finding, [*command, "--json", "--report", scratch], timeout_s)
    return replace(shrunk, confirmed=why is None, why=why)


def in_ids(scenario: Scenario, encode: Encode) -> Scenario:
    """The same scenario with every text as token ids."""
    ops = (changed(op, append=appended(op, encode)) if isinstance(op, Turn) else op for op in scenario.ops)
    return changed(scenario, ops=tuple(ops))


def mark(finding: Finding) -> Mark:
    """What makes two findings the same: the fingerprint and, of a crash, its exception."""
    kind = finding.left.split(":")[0] if finding.check == CRASH.name else ""
    return (*finding.fingerprint, kind)


def _shows(arms: Arms, finding: Finding, lineup: Lineup) -> Callable[[Scenario], bool]:
    wanted = mark(finding)

    def shows(scenario: Scenario) -> bool:
        seen = run_scenario(arms, scenario, lineup).findings
        return bool(seen) and mark(seen[0]) == wanted

    return shows


def _enough(finding: Finding, lineup: Lineup) -> Lineup:
    """The cold arm and the oracle cost more than all others, and come late in the order of checks: an earlier finding does
    not need them. Poison stays, because it is what the subject's memory holds."""
    order = list(LOOKED_FOR)
    early = finding.check in order and order.index(finding.check) < order.index("cold")
    return replace(lineup, cold=lineup.cold and not early, oracle=lineup.oracle and not early)


def _title(scenario: Scenario) -> str:
    return f"Shrunk from: {scenario.title}" if scenario.title else "Shrunk"


def _differs(finding: Finding, command: Sequence[str], timeout_s: float) -> str | None:
    """Why a fresh process does not confirm the finding; None when it does."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False)
    except subprocess.TimeoutExpired:
        return f"the fresh process did not end within {timeout_s:.0f} s"
    try:
        seen = json.loads(done.stdout)["findings"]
    except (ValueError, KeyError):
        return f"the fresh process ended with {done.returncode}: {done.stderr.strip()[-300:]}"
    if not seen:
        return "the fresh process shows no difference"
    first = Finding(**{name: seen[0][name] for name in finding.to_json()})
    return None if mark(first) == mark(finding) else f"the fresh process shows another difference: [{first.check}]"
