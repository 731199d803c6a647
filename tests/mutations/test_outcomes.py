"""What a run says about a mutant, and when a battery passes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from warmcold.mutations.battery import Report, Run, _result
from warmcold.mutations.mutant import Mutant, Outcome, Result, judge
from warmcold.mutations.scorecard import counts, passed, to_json, to_markdown, write

MUTANT = Mutant(
    id="m", file="engine/a.py", text="a", replacement="b", kind="false_miss", expected_check="reuse", note="A fault."
)


def run(code: int | None = 0, **found: str) -> Run:
    return Run(
        code=code, found=found, turns=3, sources={"none": 1, "retained": 1, "paged": 1}, seconds=1.0, tail="the end"
    )


def results(**outcomes: int) -> list[Result]:
    return [Result(mutant=MUTANT, outcome=Outcome[name]) for name, count in outcomes.items() for _ in range(count)]


def report(*seen: Result) -> Report:
    return Report(clean=run(), forced=run(closed_form="wrong"), results=seen)


@pytest.mark.parametrize(
    ("killed_by", "outcome"),
    [
        (("reuse",), Outcome.KILLED),
        (("feeds", "reuse"), Outcome.KILLED),
        (("crash", "reuse"), Outcome.KILLED),
        (("feeds",), Outcome.KILLED_BY_OTHER),
        (("crash", "feeds"), Outcome.KILLED_BY_OTHER),
        (("crash",), Outcome.CRASHED),
        ((), Outcome.SURVIVED),
    ],
)
def test_a_crash_is_weaker_than_a_check(killed_by: tuple[str, ...], outcome: Outcome) -> None:
    """The expected check kills; another kills too, but by other; a crash alone is reported apart."""
    assert judge("reuse", killed_by) is outcome


def test_the_witness_is_of_the_check_that_ought_to() -> None:
    """Where several saw it, the text shown is the expected one's."""
    seen = _result(MUTANT, run(feeds="fed wrong", reuse="reused wrong"))
    assert (seen.outcome, seen.witness, seen.killed_by) == (Outcome.KILLED, "reused wrong", ("feeds", "reuse"))


def test_a_child_that_cannot_run_is_a_crash() -> None:
    """An exit code other than 0 is no finding; the end of its output is the witness."""
    seen = _result(MUTANT, run(code=1))
    assert (seen.outcome, seen.witness) == (Outcome.CRASHED, "the end")


def test_no_end_is_a_timeout() -> None:
    """A child that was stopped is neither killed nor survived."""
    assert _result(MUTANT, run(code=None)).outcome is Outcome.TIMEOUT


@pytest.mark.parametrize(
    ("outcomes", "good"),
    [
        ({"KILLED": 1}, True),
        ({"KILLED": 19, "KILLED_BY_OTHER": 1}, True),
        ({"KILLED": 18, "KILLED_BY_OTHER": 2}, False),
        ({"KILLED": 99, "SURVIVED": 1}, False),
        ({"KILLED": 99, "CRASHED": 1}, False),
        ({"KILLED": 99, "TIMEOUT": 1}, False),
        ({"KILLED": 99, "STALE": 1}, False),
        ({}, False),
    ],
)
def test_when_a_battery_passes(outcomes: dict[str, int], good: bool) -> None:
    """All seen by a check, 95% by the one that ought to; nothing run is no pass."""
    assert passed(results(**outcomes)) is good


def test_counts_name_only_what_occurred() -> None:
    """In the order of the outcomes, without zeros."""
    assert counts(results(SURVIVED=1, KILLED=2)) == "2 KILLED, 1 SURVIVED"


def test_the_json_has_the_documented_fields(tmp_path: Path) -> None:
    """`clean`, `forced_failure` and, for each mutant, exactly the ten fields that readers rely on."""
    seen = Result(mutant=MUTANT, outcome=Outcome.KILLED, killed_by=("reuse",), seconds=1.5, witness="w")
    write(report(seen), tmp_path)
    data = json.loads((tmp_path / "mutations.json").read_text())
    assert data == to_json(report(seen))
    assert list(data) == ["clean", "forced_failure", "mutants"]
    assert set(data["mutants"][0]) == {
        "id", "file", "kind", "source", "expected_check", "fixture", "outcome", "killed_by", "seconds", "witness",
    }  # fmt: skip


def test_the_page_has_the_matrix_and_names_the_blind() -> None:
    """`X`: the expected check saw it, `.`: it did not, `x`: another saw it; survivors are listed apart."""
    killed = Result(mutant=MUTANT, outcome=Outcome.KILLED, killed_by=("feeds", "reuse"))
    page = to_markdown(report(killed, Result(mutant=MUTANT, outcome=Outcome.SURVIVED)))
    assert "| mutant | outcome | reuse | feeds |" in page
    assert "| `m` | KILLED | X | x |" in page
    assert "| `m` | SURVIVED | . |   |" in page
    assert "**SURVIVED** `m`" in page
