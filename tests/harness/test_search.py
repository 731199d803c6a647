"""The shrinker on predicates whose smallest scenario is known: what it keeps, what it drops, when it stops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from msgspec.structs import replace

from warmcold.harness.contract.errors import NotShownError
from warmcold.harness.contract.scenario import NewSession, Rewind, Scenario, Settings, Turn, from_json, load, resolve
from warmcold.harness.conversations.drawing import drawn as seeded
from warmcold.harness.conversations.profile import Profile
from warmcold.harness.shrinking import moves
from warmcold.harness.shrinking.cost import cost, renamed, token_count, turns_of
from warmcold.harness.shrinking.search import search, shrink

CONVERSATIONS = sorted((Path(__file__).parents[1] / "conversations").glob("*.json"))
MOVES = (
    moves.one_or_two_ops, moves.apart, moves.sessions, moves.settings, moves.flags, moves.appended, moves.replies,
    moves.cuts, moves.small_settings, moves.small_ids, moves.names,
)  # fmt: skip

Same = Callable[[Scenario], bool]


def drawn(count: int) -> list[Scenario]:
    """Generated conversations, always the same."""
    return list(seeded(Profile(vocab_size=61, longest=64), count=count, seed=11))


ALL = [
    *((path.stem, load(path).scenario) for path in CONVERSATIONS),
    *((f"drawn {n}", s) for n, s in enumerate(drawn(12))),
]
EACH = pytest.mark.parametrize("scenario", [s for _, s in ALL], ids=[name for name, _ in ALL])


def prompts(scenario: Scenario) -> list[tuple[Turn, tuple[int, ...]]]:
    """Each turn's prompt, every reply being zeros."""
    history: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    said = []
    for turn in turns_of(scenario):
        prompt = resolve(turn, history, None)
        history[turn.name] = (prompt, (*prompt, *[0] * turn.max_new_tokens))
        said.append((turn, prompt))
    return said


def share_three(scenario: Scenario) -> bool:
    """Two turns on one session whose prompts begin with the same three tokens."""
    said = prompts(scenario)
    return any(
        one.session == other.session and len(p) >= 3 and p[:3] == q[:3]
        for n, (one, p) in enumerate(said)
        for other, q in said[n + 1 :]
    )


def smaller_steps(scenario: Scenario) -> list[Scenario]:
    """Everything that one single step makes of it and that is smaller."""
    steps = [candidate for move in MOVES for candidate in move(scenario)]
    for at, op in enumerate(scenario.ops):
        for place in range(len(op.append)) if isinstance(op, Turn) else ():
            steps += moves.says_less(at, scenario, place, place + 1)
    return [step for step in steps if cost(step) < cost(scenario)]


@EACH
def test_two_turns_that_share_three_tokens(scenario: Scenario) -> None:
    """However long the conversation: two turns on one session, three tokens, no more words than that."""
    if not share_three(scenario):
        with pytest.raises(NotShownError):
            shrink(scenario, share_three)
        return
    found = search(scenario, share_three)
    assert found.complete
    assert share_three(found.best)
    assert (len(found.best.ops), token_count(found.best), found.best.settings) == (2, 3, Settings())
    assert {token for turn in turns_of(found.best) for token in turn.append} <= {0}
    assert [turn.name for turn in turns_of(found.best)] == ["t0", "t1"]


@EACH
def test_no_single_step_makes_the_result_smaller(scenario: Scenario) -> None:
    """1-minimal under every move there is, for a property that needs several turns, a reply and a salt's absence."""

    def needs(candidate: Scenario) -> bool:
        said = prompts(candidate)
        return sum(len(prompt) > 5 for _, prompt in said) >= 2 and any(turn.max_new_tokens >= 2 for turn, _ in said)

    if needs(scenario):
        best = shrink(scenario, needs)
        assert needs(best)
        assert [step for step in smaller_steps(best) if needs(step)] == []


def test_it_is_deterministic() -> None:
    """The same conversation and property give the same result in the same number of tries."""
    first, second = (search(ALL[0][1], share_three) for _ in range(2))
    assert (first.best, first.tried) == (second.best, second.tried)


@pytest.mark.parametrize("tries", [1, 2, 5, 20])
def test_tries_bound_the_search(tries: int) -> None:
    """The property is asked for no more often, and what came out by then still has it."""
    asked = []

    def same(scenario: Scenario) -> bool:
        asked.append(scenario)
        return share_three(scenario)

    found = search(ALL[0][1], same, tries=tries)
    assert len(asked) == found.tried <= tries
    assert share_three(found.best)
    assert not found.complete


def test_time_bounds_the_search() -> None:
    """Without any, the conversation comes back as it was."""
    found = search(ALL[0][1], share_three, seconds=0.0)
    assert (found.best, found.complete) == (ALL[0][1], False)


def test_what_does_not_show_it_cannot_be_shrunk() -> None:
    """Rather than give back something that never had the property."""
    with pytest.raises(NotShownError, match="does not show"):
        shrink(ALL[0][1], lambda scenario: False)


def test_the_result_is_a_case_file() -> None:
    """It prints as JSON and reads back as itself."""
    best = shrink(ALL[0][1], share_three)
    assert from_json(best.to_json()) == best


def longest(scenario: Scenario, length: int) -> bool:
    """A prompt of that many tokens."""
    return any(len(prompt) >= length for _, prompt in prompts(scenario))


@pytest.mark.parametrize("length", [1, 2, 7, 30])
def test_what_a_dropped_turn_said_is_inherited(length: int) -> None:
    """A prompt that grew over many turns shrinks to one turn that says it all."""
    ops = [Turn(name="0", append=(5,))]
    ops += [Turn(name=str(n), base=str(n - 1), part="prompt", append=(5,)) for n in range(1, 30)]
    best = shrink(Scenario(ops=tuple(ops)), lambda s: longest(s, length))
    assert (best.turns, token_count(best)) == (1, length)


def test_cuts_move_with_the_tokens_they_are_about() -> None:
    """A rewind to one before the end of a long prompt becomes one of a short prompt."""

    def cut_by_one(scenario: Scenario) -> bool:
        said = [len(prompt) for _, prompt in prompts(scenario)]
        return any(isinstance(op, Rewind) and said and op.to == said[0] - 1 and said[0] > 1 for op in scenario.ops)

    long = Scenario(ops=(Turn(name="a", append=tuple(range(40))), Rewind(session="s", to=39), Turn(name="b", base="a")))
    best = shrink(long, cut_by_one)
    assert token_count(best) == 2
    assert Rewind(session="s", to=1) in best.ops


@pytest.mark.parametrize(
    ("fields", "needed"),
    [
        ({"salt": "tenant"}, {"salt": "x"}),
        ({"decline_rewind": True}, {"decline_rewind": True}),
        ({"drop": (4, 9)}, {"drop": (0, 1)}),
        ({"keep": -7}, {"keep": 0}),
        ({"keep": 0.7}, {"keep": 0}),
        ({"cancel_after": 3}, {"cancel_after": 0}),
        ({"fail": ("feed", 3)}, {"fail": ("feed", 1)}),
    ],
)
def test_what_is_needed_stays_and_gets_plain(fields: dict[str, object], needed: dict[str, object]) -> None:
    """An oddity that matters survives in its simplest form; all others go."""
    (name,) = fields
    odd = Turn(name="odd", salt="z", decline_rewind=True, drop=(1, 2), keep=5, cancel_after=1, append=(9,) * 8)
    scenario = Scenario(ops=(Turn(name="first", append=(1,) * 9), replace(odd, **fields)))  # type: ignore[arg-type]

    def same(candidate: Scenario) -> bool:
        return any(getattr(turn, name) is not getattr(Turn(name=""), name) for turn in turns_of(candidate))

    assert shrink(scenario, same).ops == (Turn(name="t0", max_new_tokens=0, **needed),)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("field", "value", "least"), [("page_size", 8, 6), ("pages", 3, 0), ("chunk_size", 64, 9), ("min_capacity", 1, 1)]
)
def test_a_setting_that_is_needed(field: str, value: int, least: int) -> None:
    """It is as small as will do; the others are at their defaults."""
    scenario = replace(ALL[0][1], settings=Settings(page_size=8, pages=3, chunk_size=64, min_capacity=1))
    default = getattr(Settings(), field)

    def same(candidate: Scenario) -> bool:
        got: int = getattr(candidate.settings, field)
        return got != default and got >= least

    assert getattr(scenario.settings, field) == value
    assert shrink(scenario, same).settings == replace(Settings(), **{field: least})


def test_sessions_are_merged_where_they_do_not_matter() -> None:
    """Three turns on three sessions, of which two must differ."""
    scenario = Scenario(ops=tuple(Turn(name=name, session=name, append=(1,)) for name in "abc"))
    best = shrink(scenario, lambda s: s.turns == 3 and len({op.session for op in s.ops}) >= 2)
    assert sorted({op.session for op in best.ops}) == ["s", "s1"]


def test_one_token_is_not_the_whole() -> None:
    """`keep: 1` and `keep: 1.0` are equal numbers and different conversations: each is tried."""
    scenario = Scenario(ops=(Turn(name="a", append=(1, 2, 3)), Turn(name="b", base="a", keep=1.0)))
    best = shrink(
        scenario, lambda s: any(t.keep == 1 and isinstance(t.keep, int) for t in turns_of(s)) or s == scenario
    )
    assert isinstance(turns_of(best)[-1].keep, int)


def test_names_are_made_plain() -> None:
    """In the order in which they come; a reference follows the last turn of its name, one to nobody goes."""
    scenario = Scenario(
        ops=(
            Turn(name="x", session="b", append=(1,), salt="q"),
            Turn(name="x", session="a", base="x"),
            NewSession(session="b"),
            Turn(name="y", session="b", base="x", salt="q"),
            Turn(name="z", session="b", base="nobody"),
        )
    )
    assert renamed(scenario).ops == (
        Turn(name="t0", session="s", append=(1,), salt="x"),
        Turn(name="t1", session="s1", base="t0"),
        NewSession(session="s"),
        Turn(name="t2", session="s", base="t1", salt="x"),
        Turn(name="t3", session="s"),
    )


@EACH
def test_dropping_anything_is_smaller(scenario: Scenario) -> None:
    """Any operation less is less, whatever that does to the rest."""
    for at in range(len(scenario.ops)):
        assert all(cost(left) < cost(scenario) for left in moves.without(scenario, [at]))
