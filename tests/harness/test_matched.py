"""The schedule-matched shadow against the fixtures' closed forms: integers, so any legal schedule gives the same bits."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from warmcold.fixtures import closed_forms
from warmcold.fixtures.snap_oracle import SnapOracle
from warmcold.harness.arms.oracle import BareLoop, RawModel
from warmcold.harness.arms.shadow import MatchedTurn, Shadow
from warmcold.harness.arms.twin import Prediction, Twin
from warmcold.harness.contract.observation import Kv, PageKey
from warmcold.harness.contract.scenario import Settings, Turn

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
STATEFUL = sorted(
    path.name for path in MODELS.iterdir() if path.name.startswith("snap-") and path.name != "snap-stateless"
)
TOKENS = tuple((7 * i * i + 3) % 61 for i in range(12))
SETTINGS = Settings(page_size=4, pages=64, chunk_size=5)

Loaded = tuple[BareLoop, SnapOracle]
_LOADED: dict[str, Loaded] = {}


def loaded(name: str) -> Loaded:
    """The bare loop and the closed form of a fixture, loaded once."""
    if name not in _LOADED:
        raw, closed = RawModel(MODELS / name, threads=1), closed_forms.load(MODELS / name)
        assert closed is not None
        _LOADED[name] = BareLoop(raw.ports, raw.run), closed
    return _LOADED[name]


def same_bits(left: NDArray[Any], right: NDArray[np.int64]) -> None:
    """Equal as integers, which have no -0.0; exact in 16 bits too."""
    assert left.dtype in (np.float32, np.float16)
    np.testing.assert_array_equal(left.astype(np.float32), right.astype(np.float32), strict=True)


def same_kv(kv: Kv, closed: SnapOracle, tokens: Sequence[int]) -> None:
    """The cache is what the closed form says of `tokens`."""
    for layer, (keys, values) in enumerate(kv):
        same_bits(keys, closed.keys(tokens)[layer])
        same_bits(values, closed.values(tokens)[layer])


class Driver:
    """Twin and shadow in lock-step, as the runner drives them."""

    def __init__(self, loop: BareLoop, settings: Settings = SETTINGS) -> None:
        self.twin = Twin(settings=settings, stateful=loop.stateful, max_context=128)
        self.shadow = Shadow(loop, page_size=settings.page_size, max_context=128)

    def turn(
        self, session: str, prompt: tuple[int, ...], count: int, salt: str | None = None
    ) -> tuple[Prediction, MatchedTurn]:
        """Predict, play, publish."""
        plan = self.twin.predict(session, prompt, salt)
        op = Turn(name="t", session=session, salt=salt, max_new_tokens=count)
        done = self.shadow.turn(op, prompt, plan)
        fed = self.twin.fed(prompt, done.tokens, plan, None)
        keys = self.twin.finish(session, (*prompt, *done.tokens), fed, salt, plan)
        self.shadow.publish(keys, prompt, salt, plan, done.end)
        self.twin.settle(keys)
        return plan, done


@pytest.mark.parametrize("name", [*STATEFUL, "snap-stateless"])
def test_one_pass_equals_the_closed_form(name: str) -> None:
    """The whole context from nothing gives the integers that the fixture means."""
    loop, closed = loaded(name)
    same_bits(loop.recompute(TOKENS), closed.logits(TOKENS))


@pytest.mark.parametrize("name", STATEFUL)
@pytest.mark.parametrize("schedule", [[1] * 12, [5, 7], [11, 1], [1, 11], [3, 3, 3, 3], [7, 1, 1, 3]], ids=str)
def test_every_chunking_gives_the_same_bits(name: str, schedule: list[int]) -> None:
    """Rows fed together or apart: the same logits."""
    loop, closed = loaded(name)
    same_bits(loop.recompute(TOKENS, schedule), closed.logits(TOKENS))


def test_a_schedule_must_cover_the_context() -> None:
    """One that ends early or late is a fault of the caller."""
    loop, _ = loaded("snap-gqa-shared")
    with pytest.raises(AssertionError, match="schedule covers 5 of 12 tokens"):
        loop.recompute(TOKENS, [2, 3])


@pytest.mark.parametrize("name", STATEFUL)
def test_a_step_adds_its_rows_and_leaves_the_past_alone(name: str) -> None:
    """`present` is past plus the new positions; the past arrays are the caller's."""
    loop, closed = loaded(name)
    _, past = loop.step(loop.empty(), TOKENS[:7])
    kept = tuple((keys.copy(), values.copy()) for keys, values in past)
    _, present = loop.step(past, TOKENS[7:])
    same_kv(past, closed, TOKENS[:7])
    same_kv(kept, closed, TOKENS[:7])
    same_kv(present, closed, TOKENS)


@pytest.mark.parametrize("name", STATEFUL)
def test_nothing_is_held_at_first(name: str) -> None:
    """Empty past arrays of each layer's own shape."""
    loop, closed = loaded(name)
    assert loop.stateful
    assert [keys.shape for keys, _ in loop.empty()] == [
        (closed.config.kv_heads, 0, closed.config.head_dim)
    ] * closed.config.layers


@pytest.mark.parametrize("name", [*STATEFUL, "snap-stateless"])
def test_a_conversation_equals_the_closed_form(name: str) -> None:
    """Cold, retained, paged with a split page, and back again: tokens, logits of the last rows, seed and end."""
    loop, closed = loaded(name)
    driver, context = Driver(loop), TOKENS
    for session, extra, count in (
        ("s", (), 3),
        ("s", (5,), 2),
        ("other", (6, 7), 3),
        ("s", (8, 9), 0),
        ("third", (), 2),
    ):
        prompt = (*context, *extra)
        plan, done = driver.turn(session, prompt, count)
        assert list(done.tokens) == closed.greedy(prompt, count)
        context = (*prompt, *done.tokens)
        fed = context[: len(prompt) + max(count - 1, 0)]
        ends = [plan.reused + sum(done.rows[: i + 1]) for i in range(len(done.rows))]
        assert ends[-1] == len(fed)
        same_bits(np.stack(done.logits), closed.logits(fed)[[end - 1 for end in ends]])
        if loop.stateful:
            same_kv(done.seeded, closed, fed[: plan.reused])
            same_kv(done.end, closed, fed)
    assert (plan.source == "paged") == loop.stateful


def test_the_rows_are_the_schedule() -> None:
    """The rest of the prompt in chunks, then one row a token that is fed."""
    loop, _ = loaded("snap-gqa-shared")
    driver = Driver(loop)
    assert driver.turn("s", TOKENS, 3)[1].rows == (5, 5, 2, 1, 1)
    assert driver.turn("t", TOKENS[:6], 0)[1].rows == (2,)  # 4 positions from the first page


def test_a_cancelled_turn_stops_after_its_calls() -> None:
    """The arrays hold the chunks that ran, and a fork holds the same."""
    loop, closed = loaded("snap-gqa-shared")
    driver = Driver(loop)
    plan = driver.twin.predict("s", TOKENS, None)
    done = driver.shadow.turn(Turn(name="t", max_new_tokens=3, cancel_after=2), TOKENS, plan)
    assert (done.rows, done.tokens) == ((5, 5), ())
    driver.shadow.fork("s", "t")
    driver.shadow.rewind("s", 1)
    same_kv(driver.shadow.held("t"), closed, TOKENS[:10])


def test_published_pages_hold_their_rows() -> None:
    """Each published prefix keeps the rows of its last page, and nothing of another prefix."""
    loop, closed = loaded("snap-gqa-shared")
    driver = Driver(loop)
    _, done = driver.turn("s", TOKENS, 2, "x")
    fed = (*TOKENS, done.tokens[0])
    assert {key: keys[0][0].shape[1] for key, keys in driver.shadow.pages.items()} == {
        ("x", fed[:4]): 4, ("x", fed[:8]): 4, ("x", fed[:12]): 4, ("x", fed): 1,
    }  # fmt: skip
    for (_, prefix), rows in driver.shadow.pages.items():
        start = (len(prefix) - 1) // 4 * 4
        for layer, (keys, values) in enumerate(rows):
            same_bits(keys, closed.keys(prefix)[layer][:, start:])
            same_bits(values, closed.values(prefix)[layer][:, start:])


def test_rewind_new_and_forget() -> None:
    """The arrays follow what the session and the cache are told to hold."""
    loop, closed = loaded("snap-gqa-shared")
    driver = Driver(loop)
    driver.turn("s", TOKENS, 1)
    driver.shadow.rewind("s", 5)
    same_kv(driver.shadow.held("s"), closed, TOKENS[:5])
    driver.shadow.new_session("s")
    assert [keys.shape[1] for keys, _ in driver.shadow.held("s")] == [0, 0]
    driver.shadow.forget({PageKey(None, TOKENS[:4])})
    assert list(driver.shadow.pages) == [(None, TOKENS[:4])]


def test_the_first_publisher_stays() -> None:
    """A prefix published once keeps its rows, whatever a later turn computed."""
    loop, _ = loaded("snap-gqa-shared")
    driver = Driver(loop)
    plan, done = driver.turn("s", TOKENS, 1)
    key = PageKey(None, TOKENS[:4])
    before = driver.shadow.pages[key]
    other = tuple((keys + 1, values) for keys, values in done.end)
    driver.shadow.publish({key}, TOKENS, None, plan, other)
    assert driver.shadow.pages[key] is before


def test_only_rows_that_this_arm_computed_are_republished() -> None:
    """Under pressure a page may be replaced by the turn's own rows, never by what the engine happens to show."""
    loop, _ = loaded("snap-gqa-shared")
    driver = Driver(loop)
    plan, done = driver.turn("s", TOKENS, 1)
    key = PageKey(None, TOKENS[:4])
    before = driver.shadow.pages[key]
    wrong = tuple((keys + 1, values) for keys, values in before)
    driver.shadow.republish({key: wrong}, TOKENS, None, plan, done.end)
    assert driver.shadow.pages[key] is before
    end = tuple((keys + 1, values) for keys, values in done.end)
    driver.shadow.republish({key: wrong}, TOKENS, None, plan, end)
    np.testing.assert_array_equal(driver.shadow.pages[key][0][0], wrong[0][0])


def test_a_model_file_is_as_good_as_its_directory() -> None:
    """`RawModel` takes either."""
    by_file, by_directory = RawModel(MODELS / "snap-square" / "model.onnx"), RawModel(MODELS / "snap-square")
    assert by_file.ports == by_directory.ports
    assert by_file.ports.vocab == 61


@given(st.lists(st.integers(0, 60), min_size=1, max_size=20), st.lists(st.integers(1, 6), min_size=20, max_size=20))
def test_any_tokens_under_any_schedule(tokens: list[int], rows: list[int]) -> None:
    """The closed form, for every context and every way to feed it."""
    loop, closed = loaded("snap-gqa-growing")
    schedule, left = [], len(tokens)
    for count in rows:
        if left:
            schedule.append(min(count, left))
            left -= schedule[-1]
    same_bits(loop.recompute(tokens, schedule), closed.logits(tokens))
