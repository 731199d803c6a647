"""The native backend: exporter output gives the exporter's tokens, and no schedule changes a bit."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import warmcold.fixtures
from warmcold.engine.backends.buffered import BufferState
from warmcold.engine.backends.native import NativeBackend
from warmcold.engine.contract.errors import BackendError, UsageError
from warmcold.engine.contract.probe import Probe, ProbeEvent, Rewinding, no_probe
from warmcold.engine.graph.compile import compile_model
from warmcold.engine.graph.plan import CompiledModel
from warmcold.engine.kv.buffers import KvOptions
from warmcold.engine.kv.layout import Part
from warmcold.engine.package.resolve import ModelSpec, resolve
from warmcold.fixtures.closed_forms import load as load_closed_form

ROOT = Path(warmcold.fixtures.__file__).parent
BUILT = Path(__file__).parents[2] / "models"
ZOO = sorted(path.name for path in (ROOT / "zoo").iterdir() if path.is_dir())
SNAP = ["snap-decomposed", "snap-gqa-growing", "snap-gqa-shared", "snap-square"]
NAN = float("nan")


@cache
def loaded(name: str, numerics: str = "invariant") -> tuple[ModelSpec, CompiledModel]:
    """Models are compiled once for all tests: a plan is immutable."""
    folders = (ROOT / "zoo" / name, ROOT / "models" / name, BUILT / name)
    folder = next((folder for folder in folders if (folder / "model.onnx").exists()), None)
    if folder is None:
        pytest.fail(f"{BUILT / name} is not built; run `make models`")
    spec, graph = resolve(folder)
    return spec, compile_model(graph, spec, numerics=numerics)


class Runner:
    """Feeds token ids to a state of its own; knows nothing of reuse."""

    def __init__(
        self, name: str, numerics: str = "invariant", *, min_capacity: int = 8, probe: Probe = no_probe
    ) -> None:
        self.spec, compiled = loaded(name, numerics)
        options = KvOptions(min_capacity=min_capacity, max_context=self.spec.context_length, poison=NAN, probe=probe)
        self.backend = NativeBackend(compiled, options)
        state = self.backend.new_state()
        assert isinstance(state, BufferState)
        self.state = state

    def feeds(self, ids: Sequence[int], start: int) -> dict[str, Any]:
        stop = start + len(ids)
        every = {
            self.spec.input_ids: np.asarray([ids], np.int64),
            self.spec.attention_mask: np.ones((1, stop), np.int64),
            self.spec.position_ids: np.arange(start, stop, dtype=np.int64)[None],
        }
        return {name: value for name, value in every.items() if name}

    def feed(self, ids: Sequence[int], **options: Any) -> Any:
        """One call on the next positions; returns logits `[S, V]`."""
        return self.backend.run(self.state, self.feeds(ids, self.state.kv_len), **options)[0]

    def feed_all(self, ids: Sequence[int], chunk: int) -> Any:
        return np.concatenate([self.feed(ids[at : at + chunk]) for at in range(0, len(ids), chunk)])

    def continue_greedily(self, context: list[int], count: int) -> list[int]:
        """Feed what of `context` is not held, then `count` greedy tokens, each appended to `context`."""
        made: list[int] = []
        while len(made) < count:
            made.append(int(self.feed(context[self.state.kv_len :])[-1].argmax()))
            context.append(made[-1])
        return made

    def held(self) -> bytes:
        """All valid keys and values, byte by byte."""
        buffers, length = self.state.buffers, self.state.kv_len
        layers = range(len(self.spec.geometry.layers))
        return b"".join(buffers.view(layer, part, length).tobytes() for layer in layers for part in Part)


def expected(name: str) -> Any:
    return json.loads((ROOT / "zoo" / name / "expected.json").read_text())


@pytest.mark.parametrize("name", ZOO)
def test_a_zoo_model_gives_the_expected_tokens(name: str) -> None:
    """What transformers computes with the whole context at each step, in one turn and in two on one cache."""
    for case in expected(name)["cases"]:
        assert Runner(name).continue_greedily(list(case["prompt"]), case["max_new_tokens"]) == case["tokens"]
    for case in expected(name)["cases_two_turn"]:
        runner, context = Runner(name), []
        for turn in case["turns"]:
            context += turn["prompt_suffix"]
            assert runner.continue_greedily(context, turn["max_new_tokens"]) == turn["tokens"]


@pytest.mark.parametrize("name", ZOO)
def test_no_chunking_changes_a_bit(name: str) -> None:
    """Logits and cache of 150 positions are the same bytes, fed at once or in chunks of any size."""
    longest = max((case["prompt"] for case in expected(name)["cases"]), key=len)
    ids = (longest * 150)[:150]
    whole = Runner(name)
    logits = whole.feed(ids)
    for chunk in (1, 7, 16, 64, 100):
        parts = Runner(name, min_capacity=1)
        assert parts.feed_all(ids, chunk).tobytes() == logits.tobytes()
        assert parts.held() == whole.held()


@pytest.mark.parametrize("numerics", ["invariant", "fast"])
@pytest.mark.parametrize("name", SNAP)
def test_a_snap_model_computes_its_closed_form(name: str, numerics: str) -> None:
    """Logits, keys and values are the integers of the closed form, for every chunking and in both numerics."""
    oracle = load_closed_form(ROOT / "models" / name)
    assert oracle is not None
    ids = [int(t) for t in np.random.default_rng(0).integers(0, oracle.config.vocab, 100)]
    for chunk in (100, 1, 9, 64):
        runner = Runner(name, numerics)
        np.testing.assert_array_equal(runner.feed_all(ids, chunk), oracle.logits(ids))
        for layer in range(oracle.config.layers):
            for part, truth in ((Part.KEY, oracle.keys(ids)), (Part.VALUE, oracle.values(ids))):
                np.testing.assert_array_equal(runner.state.buffers.view(layer, part, len(ids))[0], truth[layer])


def test_a_graph_without_a_cache_holds_nothing() -> None:
    """has_state is False and kv_len stays 0; each call is the whole context."""
    runner, oracle = Runner("snap-stateless"), load_closed_form(ROOT / "models" / "snap-stateless")
    assert oracle is not None
    for ids in ([3, 1, 4], [3, 1, 4, 1, 5]):
        np.testing.assert_array_equal(runner.feed(ids), oracle.logits(ids))
        assert (runner.state.has_state, runner.state.kv_len) == (False, 0)


@pytest.mark.parametrize("name", ["llama-genai-fp32", "llama-optimum-fp32", "snap-stateless"])
def test_the_last_row_alone_is_the_last_row(name: str) -> None:
    """`last_only` skips work and changes no bit of what it returns; the cache is filled all the same."""
    ids = list(range(1, 30))
    every, last = Runner(name), Runner(name)
    assert every.feed(ids)[-1:].tobytes() == last.feed(ids, last_only=True)[-1:].tobytes()
    assert every.held() == last.held()


def test_a_rewound_state_is_the_shorter_state() -> None:
    """After a rewind, what follows has the bits it has on a state that never held more."""
    ids, other = list(range(1, 40)), list(range(50, 80))
    rewound, fresh = Runner("llama-genai-fp32"), Runner("llama-genai-fp32")
    rewound.feed(ids)
    assert rewound.state.rewind_to(17)
    fresh.feed(ids[:17])
    assert rewound.feed(other).tobytes() == fresh.feed(other).tobytes()
    assert rewound.held() == fresh.held()


def test_rewinding_does_exactly_that_or_nothing() -> None:
    """Beyond the held length it declines; to that length it is True without asking; a probe may decline the rest."""
    asked: list[ProbeEvent] = []

    def declining(event: ProbeEvent) -> object:
        if isinstance(event, Rewinding):
            asked.append(event)
        return False if isinstance(event, Rewinding) and event.to == 2 else None

    runner = Runner("snap-gqa-shared", probe=declining)
    runner.feed([1, 2, 3, 4])
    before = runner.held()
    assert not runner.state.rewind_to(5)
    assert runner.state.rewind_to(4)
    assert not asked
    assert not runner.state.rewind_to(2)
    assert (runner.state.kv_len, runner.held()) == (4, before)
    assert runner.state.rewind_to(3)
    assert (runner.state.kv_len, asked[-1]) == (3, Rewinding(held=4, to=3))
    runner.state.reset()
    assert runner.state.kv_len == 0


def test_a_loaded_state_continues_like_the_one_it_was_copied_from() -> None:
    """`load` fills every layer through its flat buffer and geometry, whatever the two capacities."""
    source, target = Runner("snap-square"), Runner("snap-square", min_capacity=64)
    source.feed([5, 6, 7, 8, 9])
    target.feed([1, 1])

    def copy(layer: int, part: Part, flat: Any, physical: Any) -> None:
        theirs = source.state.present(layer, part)
        for head in range(physical.heads):
            flat[physical.span(head, 0, 5)] = theirs[0][theirs[1].span(head, 0, 5)]

    target.state.load(5, copy)
    assert target.held() == source.held()
    assert target.feed([3, 4]).tobytes() == source.feed([3, 4]).tobytes()


def test_a_load_that_fails_leaves_nothing() -> None:
    """The state is empty, not half the old and half the new."""
    runner = Runner("snap-gqa-shared")
    runner.feed([1, 2, 3])

    def broken(*_: Any) -> None:
        raise OSError("no page")

    with pytest.raises(OSError, match="no page"):
        runner.state.load(2, broken)
    assert runner.state.kv_len == 0


@pytest.mark.parametrize("point", ["feed", "append", "grow"])
def test_what_fails_inside_a_step_is_chained(point: str) -> None:
    """The caller gets a BackendError with the cause; the failed step's rows never became valid."""
    armed = False

    def failing(event: ProbeEvent) -> object:
        if armed and event.point == point and getattr(event, "layer", 1) == 1:
            raise OSError("injected")
        return None

    runner = Runner("snap-gqa-growing", min_capacity=4, probe=failing)
    runner.feed([1, 2, 3])
    armed = True
    with pytest.raises(BackendError, match="injected") as caught:
        runner.feed([4, 5])
    assert isinstance(caught.value.__cause__, OSError)
    assert runner.state.kv_len == 3


def test_two_states_share_weights_and_nothing_else() -> None:
    """Interleaved conversations on one plan, with buffers of different sizes, are the conversations apart."""
    a, b, alone = Runner("llama-genai-fp32"), Runner("llama-genai-fp32", min_capacity=100), Runner("llama-genai-fp32")
    assert a.backend.compiled is b.backend.compiled
    for at in range(0, 30, 3):
        a.feed(range(at, at + 3))
        b.feed([300 - at])
    alone.feed(range(30))
    assert a.held() == alone.held()


def past_of(runner: Runner) -> dict[str, Any]:
    buffers, length = runner.state.buffers, runner.state.kv_len
    return {
        name: buffers.view(layer, Part(part), length).copy()
        for layer, pair in enumerate(runner.spec.past)
        for part, name in enumerate(pair)
    }


@pytest.mark.parametrize("name", ["llama-genai-fp32", "qwen2-optimum-fp32", "snap-square"])
def test_a_bare_call_is_the_same_step(name: str) -> None:
    """Past arrays in, every output out: the bytes that a step on a state gives, present included."""
    runner, ids = Runner(name), [3, 1, 4, 1, 5, 9, 2, 6]
    empty = runner.backend.bare({**runner.feeds(ids[:5], 0), **past_of(runner)})
    first = runner.feed(ids[:5])
    assert empty["logits"][0].tobytes() == first.tobytes()
    found = runner.backend.bare({**runner.feeds(ids[5:], 5), **past_of(runner)})
    assert found["logits"][0].tobytes() == runner.feed(ids[5:]).tobytes()
    present = [found[port] for pair in runner.spec.present for port in pair]
    assert b"".join(array.tobytes() for array in present) == runner.held()
    assert set(found) == {"logits", *(port for pair in runner.spec.present for port in pair)}


def test_what_a_bare_call_returns_is_the_callers() -> None:
    """Outputs are copies: a later call does not change them, and they may be written to."""
    runner = Runner("snap-decomposed")
    found = runner.backend.bare({**runner.feeds([1, 2], 0), **past_of(runner)})
    kept = {name: array.copy() for name, array in found.items()}
    runner.backend.bare({**runner.feeds([3, 4], 0), **past_of(runner)})
    for name, array in found.items():
        np.testing.assert_array_equal(array, kept[name])
        array[...] = 0


@pytest.mark.parametrize("wrong", ["missing", "shape", "lengths"])
def test_a_bare_call_checks_its_past(wrong: str) -> None:
    """A past array that is missing, of another geometry or of another length is the caller's mistake, and is named."""
    runner = Runner("snap-decomposed")
    runner.feed([1, 2, 3])
    past = past_of(runner)
    name = runner.spec.past[1][0]
    changed = {"missing": None, "shape": past[name].swapaxes(1, 2), "lengths": past[name][:, :, :2]}[wrong]
    feeds = {**runner.feeds([4], 3), **past, name: changed}
    with pytest.raises(UsageError, match=r"different lengths \[2, 3\]" if wrong == "lengths" else name):
        runner.backend.bare({key: value for key, value in feeds.items() if value is not None})


def test_a_closed_backend_says_so() -> None:
    """Closing twice is fine; using it afterwards is the caller's mistake."""
    runner = Runner("snap-decomposed")
    runner.backend.close()
    runner.backend.close()
    with pytest.raises(UsageError, match="closed"):
        runner.feed([1])


def test_nothing_in_the_zoo_takes_the_slow_path() -> None:
    """The hot path is ours: no operator of these models falls back to the reference."""
    for name in ZOO:
        runner = Runner(name)
        runner.feed([1, 2, 3])
        assert runner.backend.fallbacks() == {}


@pytest.mark.real_model
@pytest.mark.parametrize("name", ["smollm2-fused", "smollm2-decomposed"])
def test_the_real_model_gives_the_expected_tokens(name: str) -> None:
    """SmolLM2-135M in both dialects continues as transformers does."""
    for case in json.loads((ROOT / "smollm2_expected.json").read_text())["cases"][:2]:
        assert Runner(name).continue_greedily(list(case["prompt"]), len(case["tokens"])) == case["tokens"]


@pytest.mark.real_model
@pytest.mark.parametrize("name", ["smollm2-fused", "smollm2-decomposed"])
def test_no_chunking_of_the_real_model_changes_a_bit(name: str) -> None:
    """Thirty layers deep: logits and cache of 80 positions are the same bytes for every chunking."""
    ids = [int(t) for t in np.random.default_rng(0).integers(100, 40000, 80)]
    whole = Runner(name)
    logits = whole.feed(ids)
    for split in ([1] * 3, [16, 49], [63], [64, 1]):
        edges = [0, *np.cumsum(split), len(ids)]
        parts = Runner(name, min_capacity=1)
        fed = [parts.feed(ids[a:b]) for a, b in pairwise(edges)]
        assert np.concatenate(fed).tobytes() == logits.tobytes()
        assert parts.held() == whole.held()
