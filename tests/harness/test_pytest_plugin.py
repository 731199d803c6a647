"""The pytest plugin: the leg ledger, required legs, and what a failing parity test shows."""

from __future__ import annotations

from pathlib import Path

import pytest

import warmcold.harness.run.verify  # the inner sessions patch it, so it has to be ours already

assert warmcold.harness.run.verify

ROOT = Path(__file__).parents[2]

INNER = """
import pytest

from warmcold.harness.run.events import Count, LegFinished
from warmcold.harness.contract.verdict import Finding, Level, Verdict
import warmcold.harness.run.verify


def judged(target, effort, cases=(), arms=None):
    bad = "bad" in target.model
    finding = Finding(check="kv_seed", arm="matched", message="keys of seed differ", left="1.5", right="2.5",
                      turn="t7", place="layer 1 key head 0 position 3 channel 2")
    return LegFinished(
        target=target, verdict=Verdict.FAIL if bad else Verdict.PASS, level=Level.L4,
        count=Count(scenarios=1, turns=5, reused_turns=3), seconds=0.1,
        findings=(("generated", finding),) if bad else (),
    )


@pytest.fixture(autouse=True)
def planted(monkeypatch):
    monkeypatch.setattr(warmcold.harness.run.verify, "judged", judged)
"""

TEST = """
import pytest


@pytest.mark.parity
def test_parity(warmcold_model, warmcold_backend, warmcold_verify):
    leg = warmcold_verify(warmcold_model, warmcold_backend)
    assert leg.count.turns == 5


def test_ordinary():
    pass
"""


@pytest.fixture
def inner(pytester: pytest.Pytester) -> pytest.Pytester:
    """A session whose `verify` is planted: it passes on every model but one named `bad`."""
    pytester.makeconftest(INNER)
    pytester.makepyfile(TEST)
    return pytester


def test_the_ledger_is_printed(inner: pytest.Pytester) -> None:
    """Each leg: tests, models, turns, reused turns; or that it did not run."""
    result = inner.runpytest("--warmcold-model", "one", "--warmcold-model", "two", "-p", "no:xdist")
    result.assert_outcomes(passed=5)
    result.stdout.fnmatch_lines([
        "*warmcold legs*",
        "native-cpu   2 tests on 2 models, 10 turns judged, 6 of them reused",
        "ort-cpu      2 tests on 2 models, 10 turns judged, 6 of them reused",
        "native-cuda  did not run: no test asked for it",
        "ort-cuda     did not run: no test asked for it",
    ])  # fmt: skip
    assert result.ret == 0


def test_no_ledger_without_parity_tests(inner: pytest.Pytester) -> None:
    """A session that asked for nothing is not bothered."""
    result = inner.runpytest("-k", "ordinary")
    result.stdout.no_fnmatch_line("*warmcold legs*")


@pytest.mark.parametrize("required", ["native-cpu", "cpu", "ort-cpu,native-cpu", "cuda"])
def test_a_required_leg_that_did_not_run_fails_the_session(inner: pytest.Pytester, required: str) -> None:
    """All tests passed, and still: a leg that was to run did not."""
    result = inner.runpytest("--warmcold-model", "one", "-k", "ort", "--require-legs", required)
    result.assert_outcomes(passed=1, deselected=2)
    missing = "native-cuda" if required == "cuda" else "native-cpu"
    result.stdout.fnmatch_lines([
        f"{missing:12} did not run: no test asked for it (required)",
        f"FAILED: required and not run (or nothing passed): {missing}",
    ])  # fmt: skip
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_required_legs_that_ran(inner: pytest.Pytester) -> None:
    """Both ran: the session passes."""
    result = inner.runpytest("--warmcold-model", "one", "--require-legs", "ort-cpu, native-cpu")
    assert result.ret == 0
    result.stdout.no_fnmatch_line("FAILED: required*")


def test_a_required_leg_is_missed_even_where_nothing_was_collected(inner: pytest.Pytester) -> None:
    """No test at all is no leg."""
    result = inner.runpytest("-k", "zzz", "--require-legs", "ort-cpu")
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_an_unknown_leg_is_a_usage_error(inner: pytest.Pytester) -> None:
    """A misspelt leg must not be required in vain."""
    result = inner.runpytest("--require-legs", "native-cpu,ort-tpu")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*--require-legs: ?'ort-tpu'? are no legs; give native-cpu, ort-cpu,*"])


def test_a_failing_parity_test_shows_the_difference(inner: pytest.Pytester) -> None:
    """Leg, model, conversation, check, turn, place, both values; and no traceback of ours."""
    result = inner.runpytest("--warmcold-model", "bad", "-k", "ort")
    result.assert_outcomes(failed=1, deselected=2)
    result.stdout.fnmatch_lines([
        "ort-cpu on bad: FAIL.*",
        "generated: ?kv_seed? keys of seed differ (turn t7, layer 1 key head 0 position 3 channel 2)",
        "*warm: 1.5",
        "*matched: 2.5",
        "ort-cpu      1 tests on 1 models, 1 failed, 0 turns judged, 0 of them reused",
    ])  # fmt: skip
    result.stdout.no_fnmatch_line("*pytest_plugin.py*")


def test_a_required_leg_on_which_everything_failed_is_missing(inner: pytest.Pytester) -> None:
    """It ran, but nothing passed there."""
    result = inner.runpytest("--warmcold-model", "bad", "-k", "ort", "--require-legs", "ort-cpu")
    result.stdout.fnmatch_lines(["FAILED: required and not run (or nothing passed): ort-cpu"])


def test_the_options_reach_verify(inner: pytest.Pytester) -> None:
    """Device, examples and time are the command line's; the ort backend has no CUDA yet, and its leg says so."""
    inner.makeconftest(
        INNER.replace("    bad =", "    print('asked', target.leg, effort.examples, effort.seconds)\n    bad =")
    )
    result = inner.runpytest("--warmcold-model", "one", "-s", "--warmcold-device", "cuda",
                             "--warmcold-examples", "7", "--warmcold-time", "3", "--require-legs", "cuda")  # fmt: skip
    result.stdout.fnmatch_lines(["*asked native-cuda 7 3.0*", "*asked ort-cpu 7 3.0*", "ort-cpu      1 tests*"])
    result.stdout.fnmatch_lines(["native-cuda  1 tests on 1 models, 5 turns*", "ort-cuda     did not run*"])
    assert result.ret == 0


def test_junit_has_the_legs(inner: pytest.Pytester) -> None:
    """Each parity test's leg, model and turns are a property of its test case."""
    inner.runpytest("--warmcold-model", "one", "-k", "ort", "--junitxml", "junit.xml")
    assert '<property name="warmcold_leg" value="ort-cpu|one|5|3"' in (inner.path / "junit.xml").read_text(
        encoding="utf-8"
    )


def test_built_in_models_unless_told(inner: pytest.Pytester) -> None:
    """Without `--warmcold-model` the fixtures that ship are judged, on both backends."""
    result = inner.runpytest("--collect-only", "-q")
    result.stdout.fnmatch_lines(["*test_parity?snap-square-native?", "*test_parity?snap-square-ort?"])


def test_the_marker_is_registered(inner: pytest.Pytester) -> None:
    """`-m parity` selects, under strict markers too."""
    result = inner.runpytest("--strict-markers", "-m", "parity", "--warmcold-model", "one")
    result.assert_outcomes(passed=2, deselected=1)


LIGHT = """
import sys
from types import SimpleNamespace

import pytest

from warmcold.harness.contract.verdict import Verdict


class Target(SimpleNamespace):
    leg = property(lambda self: f"{self.subject}-cpu")


def judged(target, effort, cases=()):
    return SimpleNamespace(verdict=Verdict.PASS, count=SimpleNamespace(turns=5, reused_turns=3))


@pytest.fixture(autouse=True)
def planted(monkeypatch):
    parts = (("verify", {"judged": judged}), ("player", {"Effort": SimpleNamespace}), ("target", {"Target": Target}))
    for name, content in parts:
        monkeypatch.setitem(sys.modules, f"warmcold.harness.run.{name}", SimpleNamespace(**content))
"""


def test_under_xdist(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ledger is counted from the workers' reports; a required leg that did not run fails the session there too.

    The inner `verify` loads nothing heavy, because three processes start.
    """
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    pytester.makeconftest(LIGHT)
    pytester.makepyfile(
        "from pathlib import Path\n\nimport pytest\n\n\n@pytest.mark.parametrize('backend', ['native', 'native', 'ort'])\n"
        "def test_parity(backend, warmcold_verify):\n    warmcold_verify(Path('one'), backend)\n"
    )
    options = ["-n", "2", "-p", "no:hypothesispytest", "-p", "no:anyio", "-p", "no:cacheprovider"]
    result = pytester.runpytest_subprocess(*options, "--require-legs", "native-cpu,ort-cpu,native-cuda")
    result.assert_outcomes(passed=3)
    result.stdout.fnmatch_lines([
        "native-cpu   2 tests on 1 models, 10 turns judged, 6 of them reused",
        "ort-cpu      1 tests on 1 models, 5 turns judged, 3 of them reused",
        "native-cuda  did not run: no test asked for it (required)",
        "FAILED: required and not run (or nothing passed): native-cuda",
    ])  # fmt: skip
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_real_model_through_the_plugin(pytester: pytest.Pytester) -> None:
    """`pytest --pyargs warmcold.harness.pytest_plugin.parity` judges a fixture without any test file of one's own."""
    from warmcold.fixtures.builtin import builtin_models

    model = next(path for path in builtin_models() if path.name == "snap-square").resolve()
    result = pytester.runpytest_inprocess(
        "--pyargs", "warmcold.harness.pytest_plugin.parity", "-m", "parity",
        "--warmcold-model", str(model), "--warmcold-examples", "2",
        "--require-legs", "cpu",
    )  # fmt: skip
    result.assert_outcomes(passed=2)
    assert result.ret == 0
