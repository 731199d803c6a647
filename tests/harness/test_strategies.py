"""What the generator draws: every kind of turn, every boundary, never too long, and the same from the same seed."""

from __future__ import annotations

import importlib
import sys
from collections import Counter
from functools import cache
from itertools import islice
from pathlib import Path

import pytest

from warmcold.harness.contract.scenario import NewSession, Rewind, Scenario, Settings, Turn, from_json, resolve
from warmcold.harness.conversations.drawing import drawn as seeded
from warmcold.harness.conversations.generated import KINDS, SESSIONS
from warmcold.harness.conversations.profile import Profile, boundary_lengths

PROFILE = Profile(vocab_size=61, longest=64)
COUNT = 200

Lengths = dict[str, tuple[int, int]]


def draw(seed: int, count: int) -> list[Scenario]:
    """Scenarios of one seed."""
    return list(seeded(PROFILE, count=count, seed=seed))


@cache
def drawn() -> list[Scenario]:
    """The 200 that most tests look at."""
    return draw(1, COUNT)


def lengths(scenario: Scenario) -> Lengths:
    """Prompt and context length of each turn, replies having the length that was asked for."""
    history: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
    for op in scenario.ops:
        if isinstance(op, Turn):
            prompt = resolve(op, history, None)
            history[op.name] = (prompt, (*prompt, *[0] * op.max_new_tokens))
    return {name: (len(prompt), len(context)) for name, (prompt, context) in history.items()}


def test_as_many_as_asked_for() -> None:
    """Each drawn scenario is played."""
    assert len(drawn()) == COUNT


def test_the_same_seed_draws_the_same() -> None:
    """Reproducible, and another seed draws others."""
    assert draw(1, 25) == draw(1, 25) != draw(2, 25)


def test_the_seed_alone_decides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which other modules are loaded, and what numbers their source holds, must not change what a seed draws.

    Hypothesis takes constants from the source of local modules into its draws unless it is kept from it; then a changed
    number anywhere in the program under test would be judged by other conversations.
    """
    before = draw(1, 40)
    (tmp_path / "full_of_numbers.py").write_text(f"NUMBERS = {list(range(1000, 1400, 7))}\n", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module("full_of_numbers")
    try:
        assert draw(1, 40) == before
    finally:
        del sys.modules["full_of_numbers"]


def test_they_are_made_as_they_are_asked_for() -> None:
    """The third is the same however many are wanted, and a million cost nothing until they are taken."""
    assert list(islice(seeded(PROFILE, count=1_000_000, seed=1), 3)) == draw(1, 3) == draw(1, 50)[:3]


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_each_kind_is_drawn(kind: str) -> None:
    """Over 200 conversations each kind of operation comes up; how often varies."""
    counts = Counter(kind for scenario in drawn() for kind in scenario.title.split())
    assert counts[kind] >= 5


def test_the_shapes_are_really_there() -> None:
    """What a title says is not yet a conversation: each shape is found among the operations themselves."""
    ops = [op for scenario in drawn() for op in scenario.ops]
    turns = [op for op in ops if isinstance(op, Turn)]
    shapes = {
        "new session": sum(isinstance(op, NewSession) for op in ops),
        "rewind": sum(isinstance(op, Rewind) for op in ops),
        "dropped span": sum(turn.drop is not None for turn in turns),
        "kept prefix": sum(turn.keep is not None for turn in turns),
        "identical": sum(turn.part == "prompt" and not turn.append and turn.keep is None for turn in turns),
        "salt": sum(turn.salt is not None for turn in turns),
        "declined": sum(turn.decline_rewind for turn in turns),
        "nothing sampled": sum(turn.max_new_tokens == 0 for turn in turns),
        "single token": sum(turn.base is None and len(turn.append) == 1 for turn in turns),
        **{f"session {name}": sum(turn.session == name for turn in turns) for name in SESSIONS},
    }
    assert {name: count for name, count in shapes.items() if count < 10} == {}


def test_contexts_stay_within_the_longest() -> None:
    """Prompts are never empty, and no context outgrows the profile."""
    for scenario in drawn():
        for prompt, context in lengths(scenario).values():
            assert 0 < prompt <= context <= PROFILE.longest


def test_no_keep_or_drop_is_clipped() -> None:
    """The generator knows each history's length, so that what it aims at a boundary lands there."""
    for scenario in drawn():
        known = lengths(scenario)
        for op in scenario.ops:
            if isinstance(op, Turn) and op.base is not None:
                length = known[op.base][op.part == "context"]
                assert op.keep is None or op.keep <= length
                assert op.drop is None or op.drop[0] < op.drop[1] <= length


def test_names_are_unique_and_refer_backwards() -> None:
    """A turn's base was played before it."""
    for scenario in drawn():
        seen: set[str] = set()
        for op in scenario.ops:
            if isinstance(op, Turn):
                assert op.name not in seen
                assert op.base is None or op.base in seen
                seen.add(op.name)


def test_tokens_are_of_the_vocabulary() -> None:
    """And half of the time from so small an alphabet that histories share tokens by chance."""
    appended = [op.append for scenario in drawn() for op in scenario.ops if isinstance(op, Turn) and op.append]
    assert all(isinstance(token, int) and 0 <= token < 61 for tokens in appended for token in tokens)
    small = sum(max(tokens) < 3 for tokens in appended if isinstance(tokens, tuple) and len(tokens) > 4)
    large = sum(max(tokens) >= 3 for tokens in appended if isinstance(tokens, tuple) and len(tokens) > 4)
    assert small > 25
    assert large > 25


@pytest.mark.parametrize("unit", ["page_size", "chunk_size", "min_capacity"])
@pytest.mark.parametrize("offset", [-1, 0, 1])
def test_boundaries_are_hit(unit: str, offset: int) -> None:
    """Prompts of k * unit - 1, k * unit and k * unit + 1 positions, for units large enough to tell them apart."""
    hits = 0
    for scenario in drawn():
        size = getattr(scenario.settings, unit)
        if size >= 4:
            hits += sum(
                (prompt - offset) % size == 0 and prompt >= size - 1 for prompt, _ in lengths(scenario).values()
            )
    assert hits >= 20


def test_something_follows_an_interesting_operation() -> None:
    """Half of the known faults only show later: one more turn on the same session, one on another."""
    longer = 0
    for scenario in drawn():
        sessions = [op.session for op in scenario.ops if isinstance(op, Turn)]
        kinds = scenario.title.split()
        if kinds and KINDS[kinds[0]].interesting:
            longer += len(sessions) >= 3 and len(set(sessions)) >= 2
    assert longer >= 20


def test_settings_vary() -> None:
    """Unpaged, crowded and roomy pools; odd sizes."""
    chosen = [scenario.settings for scenario in drawn()]
    assert {0, 64} < {settings.pages for settings in chosen}
    assert sum(0 < settings.pages < 9 for settings in chosen) >= 10
    assert len({settings.page_size for settings in chosen}) >= 5
    assert len({settings.chunk_size for settings in chosen}) >= 5


def test_what_is_drawn_is_a_legal_case() -> None:
    """A case file of it can be read."""
    for scenario in drawn()[:50]:
        assert from_json(scenario.to_json()) == scenario


def test_boundary_lengths() -> None:
    """One before, at and after multiples 1, 2, 3, 5 of page and chunk and 1, 2, 4 of the bucket, within the longest."""
    found = boundary_lengths(Settings(page_size=10, chunk_size=100, min_capacity=40), 200)
    assert found == [9, 10, 11, 19, 20, 21, 29, 30, 31, 39, 40, 41, 49, 50, 51, 79, 80, 81, 99, 100, 101,
                     159, 160, 161, 199, 200]  # fmt: skip
    assert boundary_lengths(Settings(page_size=1, chunk_size=1, min_capacity=1), 3) == [1, 2, 3]
