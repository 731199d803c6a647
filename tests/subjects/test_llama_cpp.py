"""The subject `llama_cpp` on a tiny random llama: healthy, and with faults planted around the library."""

from __future__ import annotations

import copy
import ctypes
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from warmcold.fixtures.tiny_gguf import TinyLlama, write_tiny_gguf
from warmcold.harness.arms.arms import Arms
from warmcold.harness.contract.errors import RefusedError, SubjectError
from warmcold.harness.contract.scenario import Fork, NewSession, Scenario, Turn
from warmcold.harness.contract.verdict import Level
from warmcold.harness.conversations.drawing import drawn
from warmcold.harness.conversations.profile import Profile
from warmcold.harness.play.exact import Lineup, ScenarioResult, run_scenario
from warmcold.harness.subjects.llama_cpp.replay import read_state
from warmcold.harness.subjects.llama_cpp.subject import LlamaCpp

pytestmark = pytest.mark.llama_cpp

TALK = Scenario(
    ops=(
        Turn(name="a", session="a", append=tuple(range(10, 22)), max_new_tokens=3),
        Turn(name="b", session="b", append=tuple(range(40, 52)), max_new_tokens=3),
        Turn(name="more", session="a", base="a", append=(60, 61), max_new_tokens=3),
        Turn(name="other", session="a", base="more", keep=-5, append=(70, 71, 72), max_new_tokens=3),
        Turn(name="back", session="b", base="b", append=(62, 63), max_new_tokens=2),
    )
)
"""Two sessions side by side; a plain extension; a rewind into a reply; a session that was left and entered again."""


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny llama."""
    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.fixture
def open_subject(model: Path) -> Iterator[Callable[..., LlamaCpp]]:
    """`open_subject(kind, **options)`: closed when the test ends."""
    opened: list[LlamaCpp] = []

    def make(kind: type[LlamaCpp] = LlamaCpp, **options: str) -> LlamaCpp:
        opened.append(kind(model, threads=1, **options))
        return opened[-1]

    yield make
    for subject in opened:
        subject.close()


def play(subject: LlamaCpp, scenario: Scenario) -> ScenarioResult:
    """The scenario on every arm that there is."""
    return run_scenario(Arms.of(subject, threads=1), scenario, Lineup(poison=False))


def checks(result: ScenarioResult) -> set[str]:
    """Which checks found something."""
    return {finding.check for finding in result.findings}


@pytest.mark.parametrize(
    "options",
    [
        {"n_batch": "7"},
        {"n_batch": "5", "kv": "f32", "way": "eval", "sessions": "objects"},
        {"n_batch": "16", "flash_attn": "on", "sessions": "reload"},
    ],
    ids=["state", "eval-objects", "reload"],
)
def test_a_healthy_release_shows_no_difference(
    open_subject: Callable[..., LlamaCpp], options: Mapping[str, str]
) -> None:
    """Drawn conversations of several sessions, forks and cancelled turns give the same bits warm and matched."""
    subject = open_subject(**options)
    able = subject.capabilities
    profile = Profile(vocab_size=subject.vocab_size, longest=64, operations=able.operations,
                      boundaries=able.boundaries, plain=True)  # fmt: skip
    results = [play(subject, scenario) for scenario in drawn(profile, count=8, seed=1)]
    assert not [finding for result in results for finding in result.findings]
    assert sum(result.reused_turns for result in results) > 0
    assert able.level is Level.L4


class Planted(LlamaCpp):
    """The subject over a library in which something is wrong: `spoil` is given every `Llama` that is made."""

    def load(self) -> Any:
        """See `LlamaCpp.load`."""
        llama = super().load()
        self.spoil(llama)
        return llama

    def spoil(self, llama: Any) -> None:
        """Put the fault in."""


class KeysAreValues(Planted):
    """A restored state has keys and values swapped."""

    def spoil(self, llama: Any) -> None:
        """See `Planted.spoil`."""
        _after_load(llama, lambda layers: np.concatenate(np.split(layers, 2)[::-1]))


class OneLate(Planted):
    """A restored state has every row at the position after its own."""

    def spoil(self, llama: Any) -> None:
        """See `Planted.spoil`."""
        _after_load(llama, lambda layers: np.roll(layers, 1, axis=1))


class StaleTail(Planted):
    """One position more than what the prompt shares with the cache is kept."""

    def spoil(self, llama: Any) -> None:
        """See `Planted.spoil`."""
        generate = llama.generate

        def late(tokens: list[int], **more: Any) -> Any:
            held = llama.input_ids[: llama.n_tokens].tolist()
            same = next((at for at, pair in enumerate(zip(held, tokens, strict=False)) if pair[0] != pair[1]), None)
            if same is not None and same + 1 < len(tokens):
                llama.input_ids[same] = tokens[same]
            return generate(tokens, **more)

        llama.generate = late


class WrongSession(Planted):
    """A session of the same length gets the first one's keys and values."""

    def spoil(self, llama: Any) -> None:
        """See `Planted.spoil`."""
        load, first = llama.load_state, {}

        def mixed(state: Any) -> None:
            other = first.setdefault(state.n_tokens, state)
            state = copy.copy(state)
            state.llama_state = other.llama_state
            load(state)

        llama.load_state = mixed


def _after_load(llama: Any, change: Callable[[NDArray[Any]], NDArray[Any]]) -> None:
    """Have what `load_state` restored changed: `change` gets rows `[2 * layers, positions, bytes]`, keys before values."""
    import llama_cpp

    load = llama.load_state

    def spoilt(state: Any) -> None:
        load(state)
        size = llama_cpp.llama_state_seq_get_size(llama.ctx, 0)
        buffer = (ctypes.c_uint8 * size)()
        llama_cpp.llama_state_seq_get_data(llama.ctx, buffer, size, 0)
        data = np.frombuffer(buffer, np.uint8)
        cells = int(data[12:16].view(np.int32)[0])
        start, layers = 24 + 12 * cells, int(data[20 + 12 * cells : 24 + 12 * cells].view(np.int32)[0])
        blocks = data[start:].reshape(2 * layers, -1)  # each: type and row size, 12 bytes, then the rows
        rows = blocks[:, 12:].reshape(2 * layers, cells, -1).copy()
        blocks[:, 12:] = change(rows).reshape(2 * layers, -1)
        assert llama_cpp.llama_state_seq_set_data(llama.ctx, buffer, size, 0) == size

    llama.load_state = spoilt


@pytest.mark.parametrize(
    ("fault", "found"),
    [
        (KeysAreValues, {"kv_seed", "kv_end", "logits"}),
        (OneLate, {"kv_seed", "kv_end", "logits"}),
        (StaleTail, {"reuse", "kv_seed"}),
        (WrongSession, {"kv_seed", "kv_end", "logits"}),
    ],
)
def test_a_planted_fault_is_found(
    open_subject: Callable[..., LlamaCpp], fault: type[LlamaCpp], found: set[str]
) -> None:
    """The conversation that a healthy release passes shows each fault, and the checks say where it sits."""
    options = {"flash_attn": "on", "sessions": "reload"}
    assert not play(open_subject(**options), TALK).findings
    assert checks(play(open_subject(fault, **options), TALK)) & found


def test_fork_and_new_session_are_what_they_say(open_subject: Callable[..., LlamaCpp]) -> None:
    """A fork retains what its origin does, and neither touches the other; a new session retains nothing."""
    scenario = Scenario(
        ops=(
            Turn(name="a", session="a", append=(5, 6, 7, 8), max_new_tokens=3),
            Fork(session="a", to="b"),
            Turn(name="b", session="b", base="a", append=(9,), max_new_tokens=2),
            Turn(name="again", session="a", base="a", append=(10,), max_new_tokens=2),
            NewSession(session="a"),
            Turn(name="anew", session="a", base="a", append=(11,), max_new_tokens=2),
        )
    )
    for sessions in ("state", "reload", "objects"):
        result = play(open_subject(sessions=sessions), scenario)
        assert not result.findings
        assert result.reused_turns == 2


def test_values_are_read_from_both_layouts(open_subject: Callable[..., LlamaCpp]) -> None:
    """The first layer's keys and values depend on tokens and positions alone: transposed or not, they are the same."""
    read = []
    for flash_attn in ("off", "on"):
        subject = open_subject(kv="f32", flash_attn=flash_attn)
        llama = subject.load()
        llama.eval([5, 6, 7])
        seen = read_state(subject.library, llama.ctx, subject.heads)
        assert seen is not None
        read.append(seen[0])
        llama.close()
    (keys, values), (other_keys, other_values) = read
    assert keys.shape == values.shape == (2, 3, 16)
    np.testing.assert_array_equal(keys, other_keys)
    np.testing.assert_array_equal(values, other_values)


def test_no_step_changes_a_past(open_subject: Callable[..., LlamaCpp]) -> None:
    """Two continuations of one past, cut within a call, are what each is on a loop of its own."""
    subject = open_subject()
    shared, alone = subject.loop(), subject.loop()
    assert shared is not None
    assert alone is not None
    _, past = shared.step(shared.empty(), (5, 6, 7, 8, 9))
    kept = shared.cut(past, 3)
    first, _ = shared.step(kept, (10, 11))
    second, _ = shared.step(kept, (12,))
    _, other = alone.step(alone.empty(), (5, 6, 7, 8, 9))
    again, _ = alone.step(alone.cut(other, 3), (12,))
    np.testing.assert_array_equal(second, again)
    assert (first != second).any()


def test_a_full_context_ends_a_turn(open_subject: Callable[..., LlamaCpp]) -> None:
    """The last position takes the second token's predecessor; a prompt beyond it, and an empty one, are refused."""
    instance = open_subject(n_ctx="256").open(Scenario(ops=()).settings, poison=None)
    seen = instance.turn(Turn(name="full", max_new_tokens=5), [5] * 255)
    assert len(seen.tokens) == 2
    for prompt in ([5] * 257, []):
        with pytest.raises(RefusedError, match="n_ctx=256"):
            instance.turn(Turn(name="no"), prompt)


@pytest.mark.parametrize(
    ("options", "message"),
    [({"kv": "f64"}, "kv=f64"), ({"n_ctx": "many"}, "n_ctx=many"), ({"way": "chat"}, "way=chat")],
)
def test_an_option_that_will_not_do_is_named(model: Path, options: dict[str, str], message: str) -> None:
    """The error names the option and its value."""
    with pytest.raises(SubjectError, match=message):
        LlamaCpp(model, **options)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    """The error names the file."""
    with pytest.raises(SubjectError, match=r"nothing\.gguf: no such file"):
        LlamaCpp(tmp_path / "nothing.gguf")


def test_the_tiny_model_is_the_same_every_time(tmp_path: Path) -> None:
    """The bytes depend on the sizes and the seed alone."""
    files = [write_tiny_gguf(tmp_path / name) for name in ("one.gguf", "two.gguf")]
    assert files[0].read_bytes() == files[1].read_bytes()
    other = write_tiny_gguf(tmp_path / "other.gguf", TinyLlama(seed=1))
    assert other.read_bytes() != files[0].read_bytes()
