"""The judge of a mutmut run: what counts as a kill, what an argument is good for, and when a run is void."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import pytest

from warmcold.mutations.mutmut_report import Explanations, judge, to_json, to_markdown, write
from warmcold.mutations.mutmut_results import Mutated, Status, read_mutants

CORE = "core/sums.py"
KEY = "warmcold.core.sums.x_plus__mutmut_"
SOURCE = '''"""Sums."""

def plus(a, b):
    """Sum."""
    if b > 0:
        return a + b
    return a + b

class Sums:
    @property
    def nothing(self):
        return 0

class Promise:
    def kept(self):
        """Says nothing."""
'''
PLUS = '''def x_plus__mutmut_{name}(a, b):
    """Sum."""
    if {test}:
        return {first}
    return {second}
'''
VARIANTS = {
    "orig": ("b > 0", "a + b", "a + b"),
    "1": ("b >= 0", "a + b", "a + b"),
    "2": ("b > 0", "a - b", "a + b"),
    "3": ("b > 0", "a + b", "a - b"),
}
PATTERNS = '[tool.mutmut]\nonly_mutate = ["src/warmcold/core/*.py", "src/warmcold/mutations/canary.py"]\n'
LISTED = {f"{CORE}:Sums.nothing": "a property; a test says 0"}
CALL = {"nodeid": "tests/test_sums.py::test_plus", "when": "call", "exception": "AssertionError", "message": "3 != 1"}


def plant(path: Path, text: str) -> None:
    """Write a file and the folders above it."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")


class Planted:
    """A repository after a run of mutmut, with the exit codes and killer records that a test wants."""

    def __init__(self, root: Path) -> None:
        self.root = root
        plant(root / "pyproject.toml", PATTERNS)
        plant(root / "src" / "warmcold" / CORE, SOURCE)
        plant(
            root / "src" / "warmcold" / "mutations" / "canary.py",
            "def seen(n):\n    return n\n\n\ndef unseen(n):\n    return n\n",
        )
        self.canaries(seen=1, unseen=0)
        self.ran({"1": 1, "2": 1, "3": 1})

    def canaries(self, *, seen: int, unseen: int) -> None:
        """One mutant of each canary, with its exit code."""
        both = {"seen": seen, "unseen": unseen}
        text = "".join(
            f"def x_{n}__mutmut_orig(n):\n    return n\ndef x_{n}__mutmut_1(n):\n    return 0\n" for n in both
        )
        codes: dict[str, int | None] = {
            f"warmcold.mutations.canary.x_{name}__mutmut_1": code for name, code in both.items()
        }
        self._run("mutations/canary.py", text, codes)
        self.killer("warmcold.mutations.canary.x_seen__mutmut_1")

    def ran(self, codes: Mapping[str, int | None], variants: Mapping[str, tuple[str, str, str]] = VARIANTS) -> None:
        """The mutants of `plus`, with their exit codes; each that was killed has a record of a failed call."""
        text = "".join(PLUS.format(name=n, test=t, first=a, second=b) for n, (t, a, b) in variants.items())
        self._run(CORE, text, {KEY + name: code for name, code in codes.items()})
        for name, code in codes.items():
            if code == 1:
                self.killer(KEY + name)

    def killer(self, key: str, **changed: str) -> None:
        """The record of the failure that ended a mutant."""
        plant(self.root / "mutants" / ".killers" / f"{key}.json", json.dumps({"mutant": key, **CALL, **changed}))

    def read(self) -> dict[str, Mutated]:
        """The mutants of `plus`, by number."""
        return {m.key.removeprefix(KEY): m for m in read_mutants(self.root) if m.path == CORE}

    def problems(self, **explained: Mapping[str, str]) -> list[str]:
        """What the judge says, when these explanations are given."""
        return list(judge(self.root, Explanations(**{"no_mutants": LISTED, **explained})).problems)

    def _run(self, path: str, text: str, codes: Mapping[str, int | None]) -> None:
        generated = self.root / "mutants" / "src" / "warmcold" / path
        plant(generated, text)
        plant(generated.with_suffix(".py.meta"), json.dumps({"exit_code_by_key": codes}))


@pytest.fixture
def run(tmp_path: Path) -> Planted:
    """A run in which every mutant of the core was killed."""
    return Planted(tmp_path)


def test_a_run_without_survivors_passes(run: Planted) -> None:
    """No problem, and canaries are not counted among the mutants."""
    judged = judge(run.root, Explanations(no_mutants=LISTED))
    assert judged.problems == []
    data = to_json(judged)
    assert (data["passed"], data["total"], data["files"]) == (True, {"killed": 3}, {CORE: {"killed": 3}})
    assert (data["killed_by_exception"], data["not_killed"]) == ({"AssertionError": 3}, [])


def test_where_nothing_ran_there_is_nothing_to_judge(tmp_path: Path) -> None:
    """The message says what to do first."""
    with pytest.raises(FileNotFoundError, match="make mutmut"):
        read_mutants(tmp_path)


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (0, Status.SURVIVED),
        (33, Status.NO_TESTS),
        (36, Status.TIMEOUT),
        (-24, Status.TIMEOUT),
        (None, Status.NOT_CHECKED),
        (1, Status.KILLED),
        (3, Status.INCONCLUSIVE),
        (255, Status.INCONCLUSIVE),
        (-11, Status.INCONCLUSIVE),
        (2, Status.INCONCLUSIVE),
    ],
)
def test_only_a_failed_test_is_a_kill(run: Planted, code: int | None, status: Status) -> None:
    """An error of pytest, a crash and an interrupt say nothing about the mutant, whatever mutmut calls them."""
    run.ran({"1": code})
    run.killer(KEY + "1")
    assert run.read()["1"].status is status
    assert bool(run.problems()) == (status is not Status.KILLED)


def test_a_failure_before_the_call_is_no_kill(run: Planted) -> None:
    """A fixture that broke, or no record at all: inconclusive, and no argument helps."""
    run.killer(KEY + "1", when="setup")
    (run.root / "mutants" / ".killers" / f"{KEY}2.json").unlink()
    found = run.read()
    assert [found[n].status for n in "123"] == [Status.INCONCLUSIVE, Status.INCONCLUSIVE, Status.KILLED]
    said = run.problems(equivalent={found[n].id: "argued" for n in "12"})
    assert len(said) == 2
    assert all("inconclusive" in line for line in said)


def test_a_survivor_needs_an_argument(run: Planted) -> None:
    """Without one it is a problem that shows the change; with one it is listed with it."""
    run.ran({"1": 0, "2": 1, "3": 1})
    (problem,) = run.problems()
    assert "UNEXPLAINED" in problem
    assert "- if b > 0: + if b >= 0:" in problem
    explained = Explanations(equivalent={run.read()["1"].id: "a + 0 is a either way"}, no_mutants=LISTED)
    judged = judge(run.root, explained)
    assert judged.problems == []
    page = to_markdown(judged)
    assert "a + 0 is a either way" in page
    assert "+    if b >= 0:" in page


def test_an_id_outlives_renumbering_and_tells_places_apart(run: Planted) -> None:
    """The same change has the same id under another number; the same change at a second place has its own."""
    run.ran({"1": 0, "2": 0, "3": 0})
    before = run.read()
    assert len({mutant.id for mutant in before.values()}) == 3
    assert before["3"].id == f"{before['2'].id}-2"
    run.ran({"7": 0}, {"orig": VARIANTS["orig"], "7": VARIANTS["1"]})
    assert run.read()["7"].id == before["1"].id
    assert before["1"].function == "plus"


def test_an_argument_goes_stale_with_its_code(run: Planted) -> None:
    """An id that no mutant has, and one whose mutant a test kills, are problems of their own."""
    gone, killed = run.problems(equivalent={"0123456789ab": "was so", run.read()["1"].id: "cannot be seen"})
    assert "STALE equivalent 0123456789ab" in gone
    assert "REFUTED" in killed


def test_the_clock_is_no_test(run: Planted) -> None:
    """A timeout is explained by an argument that it hangs, not by one that it changes nothing."""
    run.ran({"1": 36, "2": 1, "3": 1})
    mark = run.read()["1"].id
    assert any("timeout" in line for line in run.problems(equivalent={mark: "no change"}))
    assert run.problems(hangs={mark: "never ends"}) == []


@pytest.mark.parametrize(("seen", "unseen"), [(0, 0), (1, 1), (36, 0), (1, 33)])
def test_a_run_whose_canaries_sing_wrong_is_void(run: Planted, seen: int, unseen: int) -> None:
    """A set-up that kills nothing, kills everything, or runs no test proves nothing."""
    run.canaries(seen=seen, unseen=unseen)
    assert any(line.startswith("VOID") for line in run.problems())


def test_functions_without_mutants_are_listed_or_a_problem(run: Planted) -> None:
    """A property holds code that mutmut leaves alone; a promise holds none; a listing that is no longer true is stale."""
    (blind,) = run.problems(no_mutants={})
    assert blind.startswith(f"BLIND {CORE}:Sums.nothing")
    (stale,) = run.problems(no_mutants={**LISTED, f"{CORE}:plus": "not so"})
    assert stale.startswith(f"STALE no_mutants {CORE}:plus")


def test_a_file_that_was_not_mutated_is_noticed(run: Planted) -> None:
    """All its functions are blind: a pattern that matched nothing must not look like success."""
    plant(run.root / "src" / "warmcold" / "core" / "more.py", "def minus(a, b):\n    return a - b\n")
    assert any(line.startswith("BLIND core/more.py:minus") for line in run.problems())


def test_both_reports_are_written(run: Planted) -> None:
    """JSON for machines, Markdown for people."""
    page = write(judge(run.root, Explanations(no_mutants=LISTED)), run.root / "reports")
    assert page.read_text(encoding="utf-8").startswith("# What mutmut found")
    assert json.loads((page.parent / "mutmut.json").read_text(encoding="utf-8"))["passed"]
