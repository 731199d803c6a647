"""The twin, computed by hand from the glossary: what is reused, from where, why not more, and what gets published."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcold.harness.arms.components import FullAttention, Window
from warmcold.harness.arms.twin import Prediction, Twin, published_by
from warmcold.harness.contract.observation import PageKey
from warmcold.harness.contract.scenario import Settings

A = tuple(range(10))
REPLY = (20, 21, 22)
CONTEXT = (*A, *REPLY)
B = tuple(range(40, 46))

lists = st.lists(st.integers(0, 1), min_size=1, max_size=12).map(tuple)


def twin(*, pages: int = 64, page_size: int = 4, chunk_size: int = 7, stateful: bool = True) -> Twin:
    """A twin of an engine that has seen nothing."""
    settings = Settings(page_size=page_size, pages=pages, chunk_size=chunk_size)
    return Twin(settings=settings, stateful=stateful, max_context=100)


def play(
    of: Twin, session: str, prompt: tuple[int, ...], reply: tuple[int, ...] = (), salt: str | None = None
) -> Prediction:
    """One turn as the runner drives it, without pressure."""
    plan = of.predict(session, prompt, salt)
    of.settle(of.finish(session, (*prompt, *reply), of.fed(prompt, reply, plan, None), salt, plan))
    return plan


def after_a(pages: int = 64) -> Twin:
    """A twin whose session `s` has answered A; 12 positions were fed."""
    of = twin(pages=pages)
    play(of, "s", A, REPLY)
    return of


def said(plan: Prediction) -> tuple[int, str, str]:
    """Count, source and reason of a cut."""
    return plan.reused, plan.source, plan.reason


def test_the_first_turn_is_cold() -> None:
    """No state and no pages: nothing under another identity or none."""
    plan = twin().predict("s", A, None)
    assert said(plan) == (0, "none", "identity")
    assert (plan.hit, plan.cut, plan.gate, plan.declined) == (0, 0, None, False)


def test_prompt_reply_and_one_token_reuses_all_but_two() -> None:
    """The last sampled token was not fed: len - 2 reused, 2 prefilled."""
    plan = after_a().predict("s", (*CONTEXT, 5), None)
    assert said(plan) == (12, "retained", "current")
    assert (len(CONTEXT) + 1 - plan.reused, plan.prefill) == (2, (2,))


def test_the_identical_prompt_keeps_one_row_to_compute() -> None:
    """The caller wants the last row's logits."""
    plan = after_a().predict("s", A, None)
    assert said(plan) == (9, "retained", "wanted")
    assert plan.prefill == (1,)


def test_the_identical_context_wants_and_holds_the_same() -> None:
    """12 held, 12 wanted of 13: the first reason in order is `wanted`."""
    assert said(after_a().predict("s", CONTEXT, None)) == (12, "retained", "wanted")


def test_divergence_is_where_the_tokens_differ() -> None:
    """Shared tokens bound the cut; the pages up to 4 do not beat the 6 retained positions."""
    plan = after_a().predict("s", (*A[:6], 50, 51, 52), None)
    assert said(plan) == (6, "retained", "shared")
    assert (plan.hit, plan.cut, plan.prefill) == (4, 4, (3,))


def test_nothing_shared() -> None:
    """Another prompt altogether reuses nothing, and the reason is what it shares."""
    assert said(after_a().predict("s", B, None)) == (0, "none", "shared")


def test_one_token_can_reuse_nothing() -> None:
    """A single-token prompt wants its only row."""
    assert said(after_a().predict("s", A[:1], None)) == (0, "none", "wanted")


def test_back_to_the_older_branch_comes_from_pages() -> None:
    """A, B, A: the session holds B, the prefix cache still has A up to its last published prefix."""
    of = after_a()
    play(of, "s", B, (60,))
    plan = of.predict("s", (*CONTEXT, 5, 6, 7), None)
    assert said(plan) == (12, "paged", "current")
    assert (plan.hit, plan.cut, plan.prefill) == (12, 12, (4,))


def test_another_session_takes_the_pages() -> None:
    """A prompt ends at 10, but only 4, 8 and 12 are published: 8 is the longest that its tokens equal."""
    assert said(after_a().predict("other", A, None)) == (8, "paged", "current")
    assert said(after_a().predict("other", A[:9], None)) == (8, "paged", "wanted")
    assert said(after_a().predict("other", A[:8], None)) == (7, "paged", "wanted")


def test_a_hit_may_end_inside_a_page() -> None:
    """The whole prompt is published at its full length 10; the cut 9 splits the page."""
    of = twin()
    play(of, "s", A)
    plan = of.predict("other", A, None)
    assert (plan.hit, plan.cut, plan.reused, plan.reason) == (10, 9, 9, "wanted")


def test_on_a_tie_the_retained_state_wins() -> None:
    """Pages and state both offer 12: no copy is made."""
    assert after_a().predict("s", (*CONTEXT, 5), None).source == "retained"


def test_salts_share_nothing() -> None:
    """Neither state nor pages cross a salt, in any direction; the same salt shares."""
    of = twin()
    play(of, "s", A, REPLY, "x")
    for salt in (None, "y", ""):
        assert said(of.predict("s", (*CONTEXT, 5), salt)) == (0, "none", "identity")
        assert of.predict("other", A, salt).hit == 0
    assert of.predict("s", (*CONTEXT, 5), "x").reused == 12
    assert of.predict("other", (*CONTEXT, 5), "x").reused == 12


def test_a_turn_that_samples_nothing_still_holds_its_prompt() -> None:
    """All 10 prompt positions are held, so an extension reuses 10."""
    of = twin(pages=0)
    play(of, "s", A)
    assert (of.held("s"), of.predict("s", (*A, 5), None).reused) == (10, 10)


def test_rewind() -> None:
    """It declines beyond what is held and changes nothing then; to what is held it is True."""
    of = after_a(pages=0)
    assert [of.rewinds("s", n) for n in (13, 12, 5, 0)] == [False, True, True, True]
    assert (of.held("s"), of.rewinds("t", 0)) == (12, False)
    of.rewind("s", 12)
    assert of.held("s") == 12
    of.rewind("s", 5)
    assert of.held("s") == 5
    assert said(of.predict("s", CONTEXT, None)) == (5, "retained", "current")
    assert of.rewinds("s", 6) is False
    assert of.rewinds("nobody", 0) is False


def test_after_a_rewind_the_pages_have_more() -> None:
    """The published prefix survives a rewind of the session, and the larger n* wins."""
    of = after_a()
    of.rewind("s", 5)
    assert said(of.predict("s", (*CONTEXT, 5), None)) == (12, "paged", "current")


def test_a_new_session_holds_nothing() -> None:
    """Its pages stay."""
    of = after_a()
    of.new_session("s")
    assert of.held("s") == 0
    assert said(of.predict("s", (*CONTEXT, 5), None)) == (12, "paged", "current")


def test_a_declined_rewind_reuses_nothing() -> None:
    """Whatever was planned, the store was reset; the reason stays that of the plan."""
    plan = after_a(pages=0).predict("s", (*A[:6], 50, 51), None, decline_rewind=True)
    assert said(plan) == (0, "none", "shared")
    assert (plan.declined, plan.prefill) == (True, (7, 1))


@pytest.mark.parametrize(
    ("prompt", "reused", "source"),
    [((*CONTEXT, 5), 12, "retained"), (B, 0, "none"), ((*A[:3], 50), 3, "retained")],
    ids=["keep", "reset", "rewind"],
)
def test_only_a_rewind_can_be_declined(prompt: tuple[int, ...], reused: int, source: str) -> None:
    """Keeping all and dropping all ask the store for no rewind."""
    rewinds = 0 < reused < 12
    plan = after_a(pages=0).predict("s", prompt, None, decline_rewind=True)
    assert (plan.declined, plan.reused) == (rewinds, 0 if rewinds else reused)
    assert plan.source == ("none" if rewinds else source)


@pytest.mark.parametrize(
    ("calls", "reply", "fed"),
    [(None, REPLY, 12), (1, (), 7), (2, REPLY[:1], 10), (3, REPLY[:2], 11), (None, (), 10)],
)
def test_what_was_fed(calls: int | None, reply: tuple[int, ...], fed: int) -> None:
    """All but the last sampled token; a turn cancelled between chunks fed the chunks that ran."""
    of = twin()
    assert of.fed(A, reply, of.predict("s", A, None), calls) == (*A, *reply)[:fed]


def test_a_failed_turn_drops_its_session() -> None:
    """The state is gone; what was published before stays, and the turn's own prefixes may be there."""
    of = after_a()
    plan = of.predict("s", B, None)
    may = of.fail("s", B, None, plan)
    assert may == of.published | published_by(B, None, 4)
    assert (of.held("s"), of.predict("s", (*CONTEXT, 5), None).source) == (0, "paged")


def test_a_fork_holds_the_same_and_goes_its_own_way() -> None:
    """Both reuse the common history; a turn or a rewind of one leaves the other alone."""
    of = after_a(pages=0)
    of.fork("s", "t")
    assert (of.held("t"), of.predict("t", (*CONTEXT, 5), None).reused) == (12, 12)
    of.rewind("s", 3)
    play(of, "t", B, (1,))
    assert (of.held("s"), of.held("t")) == (3, 6)
    of.fork("nobody", "t")
    assert of.held("t") == 0


def test_without_state_nothing_is_reused() -> None:
    """A stateless decoder recomputes in one call, publishes nothing, and the gate says why."""
    of = twin(stateful=False)
    play(of, "s", A, REPLY)
    plan = of.predict("s", (*CONTEXT, 5), None)
    assert said(plan) == (0, "none", "stateless")
    assert (plan.gate, plan.prefill, of.published) == ("no_kv", (14,), set())


@pytest.mark.parametrize(
    ("length", "prefill"), [(1, (1,)), (6, (6,)), (7, (7,)), (8, (7, 1)), (14, (7, 7)), (20, (7, 7, 6))]
)
def test_the_prompt_is_prefilled_in_chunks(length: int, prefill: tuple[int, ...]) -> None:
    """Whole chunks, then the rest."""
    assert twin().predict("s", tuple(range(length)), None).prefill == prefill


def test_published_are_the_boundaries_and_the_full_length() -> None:
    """10 + 3 tokens, 12 fed in pages of 4: 4, 8 and 12. With one token less also the part of a page."""
    assert after_a().published == {(None, CONTEXT[:n]) for n in (4, 8, 12)}
    of = twin()
    play(of, "s", A, REPLY[:2], "x")
    assert of.published == {("x", CONTEXT[:n]) for n in (4, 8, 11)}


@pytest.mark.parametrize(("fed", "lengths"), [(1, [1]), (3, [3]), (4, [4]), (5, [4, 5]), (8, [4, 8]), (9, [4, 8, 9])])
def test_keys_by_length(fed: int, lengths: list[int]) -> None:
    """Every boundary below, and the whole, once."""
    assert sorted(len(key.tokens) for key in published_by(tuple(range(fed)), None, 4)) == lengths


@pytest.mark.parametrize(("length", "above"), [(1, None), (4, None), (5, 4), (8, 4), (9, 8), (11, 8)])
def test_the_parent_is_one_page_shorter(length: int, above: int | None) -> None:
    """The boundary strictly below; a first page has none."""
    parent = PageKey("x", tuple(range(length))).parent(4)
    assert parent == (("x", tuple(range(above))) if above else None)


@pytest.mark.parametrize(
    ("fed", "cut", "pages"),
    [(0, 0, 0), (1, 0, 1), (4, 0, 1), (5, 0, 2), (8, 4, 1), (8, 8, 0), (10, 8, 1), (10, 9, 1), (10, 5, 2), (4, 3, 1)],
)
def test_pages_wanted(fed: int, cut: int, pages: int) -> None:
    """Pages beyond the cut, and one for the copy when the cut splits a page."""
    assert twin().pages_wanted(fed, cut) == pages


@pytest.mark.parametrize(("pages", "gate"), [(0, "no_pages"), (1, "pool_exhausted"), (2, "pool_exhausted"), (3, None)])
def test_a_prompt_of_three_pages_needs_three(pages: int, gate: str | None) -> None:
    """Too small a pool runs unpaged and says so; no pool has its own word. Nothing is published then."""
    of = twin(pages=pages)
    assert play(of, "s", A).gate == gate
    assert bool(of.published) == (gate is None)


def test_pages_on_the_path_cannot_be_evicted() -> None:
    """All three pages are A's own and pinned: one more is not to be had, though the retained state still serves."""
    of = after_a(pages=3)
    plan = of.predict("s", (*CONTEXT, 5), None)
    assert (plan.gate, plan.reused, plan.source) == ("pool_exhausted", 12, "retained")
    assert of.predict("other", B, None).gate is None  # two pages of A can go


def test_a_gated_turn_publishes_nothing_and_loses_nothing() -> None:
    """What was published stays legal; the session still holds what it fed."""
    of = after_a(pages=3)
    before = set(of.published)
    play(of, "s", (*CONTEXT, 5), (6, 7))
    assert (of.published, of.held("s")) == (before, 15)


def test_the_twin_carries_on_from_what_is_left() -> None:
    """After an eviction that was legal, predictions follow what is really published."""
    of = after_a()
    of.settle({(None, A[:4])})
    assert said(of.predict("other", A, None)) == (4, "paged", "current")


@given(st.lists(st.tuples(st.sampled_from("st"), lists, st.sampled_from((None, "x"))), min_size=1, max_size=6))
def test_laws_of_every_prediction(turns: list[tuple[str, tuple[int, ...], str | None]]) -> None:
    """Reuse is within every bound, the schedule covers the rest in chunks, and asking changes nothing."""
    of = twin(page_size=2, chunk_size=3, pages=50)
    for session, prompt, salt in turns:
        before = deepcopy(of)
        plan = of.predict(session, prompt, salt)
        assert of == before
        assert 0 <= plan.reused <= len(prompt) - 1
        assert plan.reused + sum(plan.prefill) == len(prompt)
        assert all(rows == 3 for rows in plan.prefill[:-1])
        assert 0 < plan.prefill[-1] <= 3
        assert plan.reused <= (plan.hit if plan.source == "paged" else of.held(session))
        assert (plan.source == "none") == (plan.reused == 0)
        of.settle(of.finish(session, (*prompt, 0, 1), of.fed(prompt, (0, 1), plan, None), salt, plan))
        assert of.held(session) == len(prompt) + 1


@given(lists, lists)
def test_a_longer_common_prefix_never_means_less(held: tuple[int, ...], prompt: tuple[int, ...]) -> None:
    """A prompt that agrees with the held context one token longer reuses at least as much."""
    of = twin()
    play(of, "s", held, (0,))
    context = (*held, 0)
    shared = next((i for i, (a, b) in enumerate(zip(context, prompt, strict=False)) if a != b), None)
    if shared is not None:
        closer = (*context[: shared + 1], *prompt[shared + 1 :])
        assert of.predict("s", closer, None).reused >= of.predict("s", prompt, None).reused


@pytest.mark.parametrize(("resident_from", "expected"), [(0, (10, "shared")), (8, (0, "window")), (12, (0, "window"))])
def test_what_is_gone_from_a_window_forbids_a_cut(resident_from: int, expected: tuple[int, str]) -> None:
    """A cut at 10 needs positions 7 to 9: with those evicted nothing can be kept, and the window is why."""
    of = after_a(pages=0)
    of.components = (FullAttention(), Window(4))
    of.sessions["s"] = replace(of.sessions["s"], resident_from=resident_from)
    plan = of.predict("s", (*A, 50, 51), None)
    assert (plan.reused, plan.reason) == expected
    assert plan.bound == plan.reused


def test_a_subject_that_says_its_calls_has_fed_what_they_say() -> None:
    """What was reused and the rows of its calls, whatever was planned."""
    of = after_a()
    plan = replace(of.predict("s", (*A, 50, 51), None), reused=4, rows=(3, 2))
    assert of.fed((*A, 50, 51), (7, 8), plan, None) == A[:9]
