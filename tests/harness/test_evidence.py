"""The statistics of the bounded tier, each law on numbers made by hand."""

from __future__ import annotations

import math

import numpy as np
import pytest

from warmcold.harness.play.evidence import (
    CONTROLS,
    EVIDENCE,
    REFUTED,
    Evidence,
    Power,
    Reply,
    difference,
    e_value,
    judge,
    lower_bound,
    p_value,
    resolution,
)

COLD = Reply(tokens=(1, 2, 3), logprobs=({1: -0.1, 2: -2.5}, {2: -0.2, 1: -1.8}, {3: -0.3, 1: -1.6}))


def shifted(by: float, at: int = 1, tokens: tuple[int, ...] = (1, 2, 3)) -> Reply:
    """The cold reply with every log-probability of one step moved."""
    assert COLD.logprobs is not None
    rows = [{t: v + (by if step == at else 0.0) for t, v in row.items()} for step, row in enumerate(COLD.logprobs)]
    return Reply(tokens=tokens, logprobs=rows)


def controls(*sizes: float) -> list[tuple[Reply, Reply]]:
    """Legal schedules that are so far off."""
    return [(shifted(size), COLD) for size in sizes]


def test_the_greatest_difference_counts_and_never_the_average() -> None:
    """One step far off among many is as far off as that step."""
    assert difference(shifted(0.5), COLD).sup == pytest.approx(0.5)
    many = Reply(tokens=(1,) * 1000, logprobs=({1: -0.1},) * 1000)
    one = Reply(tokens=(1,) * 1000, logprobs=(*(({1: -0.1},) * 999), {1: -0.9}))
    assert difference(one, many).sup == pytest.approx(0.8)


def test_nothing_after_the_first_other_token_is_compared() -> None:
    """The contexts differ from there on; the step itself still counts."""
    assert difference(shifted(0.5, at=2, tokens=(1, 1, 3)), COLD).sup == 0
    assert difference(shifted(0.5, at=1, tokens=(1, 1, 3)), COLD).sup == pytest.approx(0.5)


def test_what_is_not_shown_is_none_and_never_zero() -> None:
    """Without log-probabilities there are tokens only, and their share is what is ranked."""
    seen = difference(Reply(tokens=(1, 9, 3)), COLD)
    assert (seen.sup, seen.step, seen.gap) == (None, 1, None)
    assert seen.size == pytest.approx(2 / 3)
    assert difference(Reply(tokens=(1, 2, 3)), Reply(tokens=(1, 2, 3))).size == 0


def test_a_token_that_one_side_hides_is_at_most_the_least_it_shows() -> None:
    """So two replies that show no token in common are not the same."""
    left = Reply(tokens=(1,), logprobs=({1: -0.5, 2: -1.0},))
    assert difference(left, Reply(tokens=(1,), logprobs=({3: -2.0, 4: -3.0},))).sup == pytest.approx(2.5)
    assert difference(left, Reply(tokens=(1,), logprobs=({1: -0.5, 4: -1.0},))).sup == 0.0


def test_nan_is_far_from_everything() -> None:
    """It is what an unwritten row looks like."""
    assert (
        difference(Reply(tokens=(1,), logprobs=({1: math.nan},)), Reply(tokens=(1,), logprobs=({1: -1.0},))).sup
        == math.inf
    )


@pytest.mark.parametrize(("e", "suspicious"), [(0.0, True), (0.79, True), (0.81, False)])
def test_another_token_stands_only_as_a_near_tie(e: float, suspicious: bool) -> None:
    """`cold[top] - cold[t] <= 2e`, e being what legal schedules show: here the gap is 1.6."""
    warm = Reply(tokens=(1, 1, 3), logprobs=COLD.logprobs)
    assert judge(warm, COLD, controls(*[e] * CONTROLS)).suspicious is suspicious


def test_a_hidden_token_is_no_near_tie() -> None:
    """It is less likely than all that are shown."""
    warm = Reply(tokens=(1, 7, 3), logprobs=COLD.logprobs)
    assert difference(warm, COLD).gap == pytest.approx(1.6)


def test_a_turn_may_be_twice_as_far_off_as_a_legal_schedule() -> None:
    """Both sides may err by as much; beyond that it is suspicious."""
    assert not judge(shifted(0.5), COLD, controls(*[0.0] * 18, 0.25)).suspicious
    assert judge(shifted(0.51), COLD, controls(*[0.0] * 18, 0.25)).suspicious


def test_a_turn_is_ranked_among_its_controls() -> None:
    """Above all 19 its p-value is 1/20; as far off as one of them, 2/20; equal to all, 1."""
    assert p_value(1.0, [0.5] * 19) == pytest.approx(1 / 20)
    assert p_value(0.5, [0.5, *[0.1] * 18]) == pytest.approx(2 / 20)
    assert p_value(0.0, [0.0] * 19) == 1


def test_e_values_have_a_mean_of_at_most_one_without_a_fault() -> None:
    """Over all ranks, equally likely: else a long campaign would find faults that are not there."""
    assert sum(e_value(k / 20) for k in range(1, 21)) / 20 <= 1


def test_one_turn_is_no_evidence_and_twelve_are() -> None:
    """The most that a turn can give is 2.236."""
    evidence = Evidence()
    for count in range(1, 13):
        evidence.add(judge(shifted(9.0), COLD, controls(*[0.1] * CONTROLS)))
        assert evidence.enough is (count == 12)
        assert not evidence.refuted
    assert evidence.product >= EVIDENCE


def test_a_run_of_plays_that_show_nothing_ends_a_suspicion() -> None:
    """One does not: a fault need not show on every text. And one that shows again starts the count anew."""
    evidence = Evidence()
    nothing, something = (judge(reply, COLD, controls(*[0.1] * CONTROLS)) for reply in (COLD, shifted(9.0)))
    for judged in (*[nothing] * (REFUTED - 1), something, *[nothing] * REFUTED):
        assert not evidence.refuted
        evidence.add(judged)
    assert evidence.refuted
    assert not evidence.enough


@pytest.mark.parametrize(("found", "bound"), [(60, 0.951), (59, 0.923), (58, 0.899), (0, 0.0)])
def test_the_lower_bound_of_detection_is_clopper_and_pearson_s(found: int, bound: float) -> None:
    """One-sided, 95 percent; of 60 sites."""
    assert round(lower_bound(found, 60), 3) == bound


def test_the_lower_bound_of_all_found_is_closed() -> None:
    """n of n: the n-th root of 0.05, to the last bits."""
    for sites in (1, 7, 60, 500):
        assert lower_bound(sites, sites) == pytest.approx(0.05 ** (1 / sites), rel=1e-14)


@pytest.mark.parametrize(
    ("found", "sites", "enough"), [(60, 60, True), (59, 60, True), (58, 60, False), (59, 59, False)]
)
def test_power_needs_sites_and_detection(found: int, sites: int, enough: bool) -> None:
    """59 of 59 would have the bound, but too few sites were asked for."""
    assert Power(found=found, sites=sites).enough is enough
    assert (Power(found=found, sites=sites).bound >= 0.9) is (found > 58)


@pytest.mark.parametrize("replies", [((1, 2), (1,)), ((), ())])
def test_replies_of_different_length_are_not_compared(replies: tuple[tuple[int, ...], tuple[int, ...]]) -> None:
    """Lengths first: a shorter reply would agree as far as it goes, and an empty one always."""
    with pytest.raises(ValueError, match="compare two of one length"):
        difference(*(Reply(tokens=tokens) for tokens in replies))


def test_no_controls_no_judgement() -> None:
    """And a count of sites that cannot be is no bound."""
    with pytest.raises(ValueError, match="no controls"):
        judge(COLD, COLD, [])
    with pytest.raises(ValueError, match="3 of 2 sites"):
        lower_bound(3, 2)


def test_nats_are_not_ranked_among_shares_of_a_reply() -> None:
    """A control that chose another token where nothing was shown tells nothing of rounding, and hides no fault."""
    blind = (Reply(tokens=(7, 2, 3), logprobs=({}, *(COLD.logprobs or ())[1:])), COLD)
    seen = judge(shifted(0.5), COLD, [blind, *controls(*[0.1] * 18)])
    assert seen.worst == pytest.approx(0.1)
    assert seen.suspicious


def test_a_turn_that_shows_nothing_is_ranked_by_tokens() -> None:
    """All of it in one unit: none of the controls changed a token."""
    seen = judge(Reply(tokens=(7, 2, 3), logprobs=({}, {}, {})), COLD, controls(*[0.1] * CONTROLS))
    assert (seen.difference.sup, seen.statistic, seen.worst) == (None, 1.0, 0.0)
    assert seen.suspicious


def test_the_resolution_is_the_last_bit_of_what_is_shown() -> None:
    """As a float32, since that is what servers compute in; nothing shown has none."""
    assert resolution(Reply(tokens=(1,), logprobs=[{1: -0.5, 2: -9.0}])) == float(np.spacing(np.float32(9.0)))
    assert resolution(Reply(tokens=(1,))) == 0.0
    assert resolution(Reply(tokens=(1,), logprobs=[{1: 0.0, 2: -math.inf}])) == 0.0
