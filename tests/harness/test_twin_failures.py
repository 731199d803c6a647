"""The twin after what went wrong: failed turns, declined rewinds, a pool too small, sessions that nobody knows."""

from __future__ import annotations

import pytest

from warmcold.harness.arms.twin import Prediction, Twin
from warmcold.harness.contract.scenario import Settings

A = tuple(range(10))
B = tuple(range(40, 46))


def twin(*, pages: int = 64, stateful: bool = True) -> Twin:
    """A twin of an engine that has seen nothing; pages of 4."""
    return Twin(settings=Settings(page_size=4, pages=pages, chunk_size=7), stateful=stateful, max_context=100)


def play(of: Twin, session: str, prompt: tuple[int, ...], salt: str | None = None) -> Prediction:
    """One turn that samples nothing, without pressure."""
    plan = of.predict(session, prompt, salt)
    of.settle(of.finish(session, prompt, of.fed(prompt, (), plan, None), salt, plan))
    return plan


def test_a_session_that_nobody_knows_can_fail_and_begin() -> None:
    """A first turn may fail; a new session need not have been there."""
    of = twin()
    plan = of.predict("s", A, None)
    assert of.fail("s", A, None, plan) == {(None, A[:n]) for n in (4, 8, 10)}
    of.new_session("t")
    assert (of.held("s"), of.held("t")) == (0, 0)


def test_a_failed_turn_may_publish_under_its_own_salt_only() -> None:
    """Its prefixes carry its salt; what was there keeps its own."""
    of = twin()
    play(of, "s", B, "x")
    plan = of.predict("s", A, "y")
    assert of.fail("s", A, "y", plan) == {("x", B[:4]), ("x", B), ("y", A[:4]), ("y", A[:8]), ("y", A)}


def test_a_failed_turn_that_ran_unpaged_may_publish_nothing() -> None:
    """Whatever gated it, only what was published before is legal, as a set of its own."""
    of = twin(pages=2)
    play(of, "s", B)
    plan = of.predict("s", A, None)
    assert plan.gate == "pool_exhausted"
    may = of.fail("s", A, None, plan)
    assert may == {(None, B[:4]), (None, B)} == of.published
    assert may is not of.published


def test_a_failed_turn_of_a_stateless_model_publishes_nothing() -> None:
    """There is nothing to publish, gate or none."""
    of = twin(stateful=False)
    plan = of.predict("s", A, None)
    assert of.fail("s", A, None, plan) == set()


def test_a_rewound_session_keeps_its_salt() -> None:
    """What is left is still that salt's own."""
    of = twin(pages=0)
    play(of, "s", A, "x")
    of.rewind("s", 6)
    assert (of.predict("s", A, "x").reused, of.predict("s", A, None).reused) == (6, 0)


@pytest.mark.parametrize("agree", [0, 1, 2, 3, 4, 5, 9, 10])
def test_shared_tokens_are_counted_one_by_one(agree: int) -> None:
    """However many agree, odd or even: that many are kept, but for the row whose logits are wanted."""
    of = twin(pages=0)
    play(of, "s", A)
    assert of.predict("s", (*A[:agree], 90, 91), None).reused == agree


@pytest.mark.parametrize("pages", [0, 64])
@pytest.mark.parametrize("agree", [1, 2, 6])
def test_a_declined_rewind_says_what_else_there_was(agree: int, pages: int) -> None:
    """Any rewind, to a single position too: nothing is reused, yet hit, cut and gate are those of the turn."""
    of = twin(pages=pages)
    play(of, "s", A)
    plan = of.predict("s", (*A[:agree], 90, 91), None, decline_rewind=True)
    hit = agree // 4 * 4 if pages else 0
    assert (plan.reused, plan.declined, plan.reason) == (0, True, "shared")
    assert (plan.hit, plan.cut, plan.gate) == (hit, hit, None if pages else "no_pages")


def test_a_hit_serves_although_the_turn_has_no_pages_of_its_own() -> None:
    """All pages are the hit's own: it is claimed for the seed, and the gate says why nothing more is mirrored."""
    of = twin(pages=2)
    play(of, "s", A[:8])
    plan = of.predict("other", (*A[:8], 50), None)
    assert (plan.reused, plan.source, plan.gate) == (8, "paged", "pool_exhausted")


def test_a_single_token_is_a_prefix() -> None:
    """The shortest that can be published is found."""
    of = twin()
    play(of, "s", A[:1])
    plan = of.predict("other", A, None)
    assert (plan.hit, plan.cut, plan.reused, plan.source) == (1, 1, 1, "paged")


def test_a_stateless_model_hits_nothing() -> None:
    """No pages, so neither hit nor cut."""
    plan = twin(stateful=False).predict("s", A, None)
    assert (plan.hit, plan.cut, plan.gate) == (0, 0, "no_kv")
