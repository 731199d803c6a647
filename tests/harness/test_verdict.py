"""The lattice of verdicts: nothing compared is never a pass."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcold.harness.contract.verdict import CheckResult, Finding, Level, Verdict, merge

FINDING = Finding(
    check="tokens", arm="matched", message="the reply differs", left="3", right="4", turn="t1", place="token 0"
)


def test_the_order_of_verdicts() -> None:
    """NOT_RUN < PASS < UNKNOWN < FAIL < ERROR."""
    assert sorted(Verdict) == [Verdict.NOT_RUN, Verdict.PASS, Verdict.UNKNOWN, Verdict.FAIL, Verdict.ERROR]


@given(st.lists(st.sampled_from(Verdict)), st.lists(st.sampled_from(Verdict)))
def test_merging_is_a_lattice_join(left: list[Verdict], right: list[Verdict]) -> None:
    """Any grouping and any order give the same; nothing that was merged is better than the whole."""
    whole = merge([*left, *right])
    assert whole == merge([*right, *left]) == merge([merge(left), merge(right)])
    assert all(verdict <= whole for verdict in (*left, *right))


def test_nothing_merged_is_not_run() -> None:
    """The verdict of nothing is NOT_RUN, which a person reads as UNKNOWN."""
    assert merge([]) is Verdict.NOT_RUN
    assert merge([]).shown == "UNKNOWN"


@pytest.mark.parametrize(
    ("verdict", "shown", "code"),
    [
        (Verdict.NOT_RUN, "UNKNOWN", 3),
        (Verdict.PASS, "PASS", 0),
        (Verdict.UNKNOWN, "UNKNOWN", 3),
        (Verdict.FAIL, "FAIL", 1),
        (Verdict.ERROR, "ERROR", 4),
    ],
)
def test_words_and_exit_codes(verdict: Verdict, shown: str, code: int) -> None:
    """0 PASS, 1 FAIL, 3 UNKNOWN, 4 ERROR; 2 stays free for usage errors."""
    assert (verdict.shown, verdict.exit_code) == (shown, code)


@pytest.mark.parametrize(
    ("result", "verdict"),
    [
        (CheckResult(), Verdict.UNKNOWN),
        (CheckResult(compared=1), Verdict.PASS),
        (CheckResult(compared=1, findings=[FINDING]), Verdict.FAIL),
        (CheckResult(findings=[FINDING]), Verdict.FAIL),
        (CheckResult(not_applicable="stateless"), Verdict.NOT_RUN),
        (CheckResult(not_observable="hidden"), Verdict.NOT_RUN),
        (CheckResult(compared=1, not_applicable="in another turn"), Verdict.PASS),
        (CheckResult(findings=[FINDING], not_observable="in another turn"), Verdict.FAIL),
    ],
)
def test_verdict_of_a_check(result: CheckResult, verdict: Verdict) -> None:
    """An applicable check that compared nothing is UNKNOWN; one that was ruled out stays outside the merge."""
    assert result.verdict is verdict


def test_the_fingerprint_leaves_the_place_out() -> None:
    """The same fault at another turn, place and value is the same fault; of another part it is another."""
    elsewhere = Finding(check="tokens", arm="matched", message="again", left="5", right="6", turn="t9", step=3)
    part = Finding(check="tokens", arm="matched", message="", left="", right="", part="key")
    assert elsewhere.fingerprint == FINDING.fingerprint != part.fingerprint


def test_a_finding_prints_where_and_both_values() -> None:
    """Check, message, turn, place, and the two values under each other."""
    lines = str(FINDING).splitlines()
    assert lines[0] == "[tokens] the reply differs (turn t1, token 0)"
    assert [line.split(": ")[1] for line in lines[1:]] == ["3", "4"]
    assert [line.split(": ")[0].strip() for line in lines[1:]] == ["warm", "matched"]


def test_a_finding_is_plain_data() -> None:
    """`to_json` gives the fields back."""
    assert Finding(**FINDING.to_json()) == FINDING


def test_each_level_says_what_it_compares() -> None:
    """Levels are ordered, and each has a meaning of its own."""
    assert [level.name for level in sorted(Level)] == ["L0", "L1", "L2", "L3", "L4"]
    assert len({level.meaning for level in Level}) == len(Level)
