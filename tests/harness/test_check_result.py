"""What one check did, merged over turns: counts and findings add up, and having been blind once is remembered."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from warmcold.harness.contract.verdict import CheckResult, Finding, Level, Verdict

FIRST = Finding(check="tokens", arm="cold", message="first", left="1", right="2")
SECOND = Finding(check="tokens", arm="cold", message="second", left="3", right="4")


def merged(*results: CheckResult) -> CheckResult:
    """All of them, added to one that begins with the first."""
    whole, *others = results
    for other in others:
        whole.add(other)
    return whole


def test_counts_and_findings_add_up() -> None:
    """Both in the order of the turns."""
    whole = merged(CheckResult(compared=2, findings=[FIRST]), CheckResult(compared=3, findings=[SECOND]))
    assert (whole.compared, whole.findings, whole.verdict) == (5, [FIRST, SECOND], Verdict.FAIL)


@pytest.mark.parametrize("blind", [0, 1, 2])
def test_a_turn_in_which_it_was_blind_is_remembered(blind: int) -> None:
    """It applied and compared nothing, in whichever turn: without a comparison elsewhere the whole is UNKNOWN, not ruled
    out."""
    results = [CheckResult(not_applicable="another model") for _ in range(3)]
    results[blind] = CheckResult()
    whole = merged(CheckResult(not_applicable="another model"), *results)
    assert (whole.blind, whole.verdict) == (True, Verdict.UNKNOWN)


def test_a_comparison_in_one_turn_makes_up_for_a_blind_one() -> None:
    """The whole compared something; that it was blind once stays on record."""
    for turns in ((CheckResult(compared=1), CheckResult()), (CheckResult(), CheckResult(compared=1))):
        whole = merged(CheckResult(), *turns)
        assert (whole.blind, whole.verdict) == (True, Verdict.PASS)


def test_without_a_blind_turn_it_stays_ruled_out() -> None:
    """Turns that were ruled out, or compared, make nobody blind."""
    out = merged(CheckResult(not_applicable="first"), CheckResult(not_applicable="second"))
    assert (out.blind, out.verdict, out.not_applicable) == (False, Verdict.NOT_RUN, "first")
    seen = merged(CheckResult(compared=1), CheckResult(not_observable="hidden"))
    assert (seen.blind, seen.verdict, seen.not_observable) == (False, Verdict.PASS, "hidden")


@pytest.mark.parametrize("name", ["not_observable", "not_applicable"])
def test_the_first_excuse_stays_and_a_later_one_is_taken_up(name: str) -> None:
    """Whichever turn gave it."""
    first, second = CheckResult(**{name: "first"}), CheckResult(**{name: "second"})  # type: ignore[arg-type]
    assert getattr(merged(first, second), name) == "first"
    assert getattr(merged(CheckResult(compared=1), second), name) == "second"
    assert getattr(merged(CheckResult(**{name: "only"}), CheckResult(compared=1)), name) == "only"  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["check", "arm", "component", "part", "phase"])
def test_each_word_of_the_fingerprint_counts(name: str) -> None:
    """Another check, arm, component, part or phase is another fault."""
    changed: dict[str, Any] = {name: "other"}
    assert replace(FIRST, **changed).fingerprint != FIRST.fingerprint
    assert (
        replace(FIRST, message="again", left="3", turn="t9", step=1, place="token 7").fingerprint == FIRST.fingerprint
    )


@pytest.mark.parametrize(
    ("turn", "place", "where"),
    [("t1", "token 0", "(turn t1, token 0)"), ("", "token 0", "(token 0)"), ("t1", "", "(turn t1)"), ("", "", "()")],
)
def test_a_finding_says_what_it_knows_of_the_place(turn: str, place: str, where: str) -> None:
    """Turn and place where there are any."""
    finding = Finding(check="tokens", arm="cold", message="m", left="1", right="2", turn=turn, place=place)
    assert str(finding) == f"[tokens] m {where}\n    warm: 1\n    cold: 2"


@pytest.mark.parametrize("levels", [(Level.L0, Level.L3), (Level.L3, Level.L0), (None, Level.L3), (Level.L2, None)])
def test_the_first_level_that_was_lacking_is_remembered(levels: tuple[Level | None, Level | None]) -> None:
    """In whichever turn it was."""
    one, other = levels
    whole = merged(*(CheckResult(not_observable="no", lacks=level) for level in levels))
    assert whole.lacks is (one if one is not None else other)
