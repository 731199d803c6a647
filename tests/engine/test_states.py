"""What every kind of state promises: marks that are restored exactly or declined, and its own word on where it may be cut."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from warmcold.engine.backends.base import Backend, RuntimeOptions
from warmcold.engine.backends.registry import BACKENDS
from warmcold.engine.kv.buffers import KvOptions
from warmcold.engine.kv.components import FullAttention, Window, all_resident
from warmcold.engine.kv.layout import KvGeometry, LayerKv, Part
from warmcold.engine.kv.state import BackendState
from warmcold.engine.package.resolve import resolve

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
Feed = Callable[..., None]
KINDS = {
    "buffers": ("native", "snap-gqa-shared"),
    "bound": ("ort", "snap-gqa-shared"),
    "growing": ("ort", "snap-decomposed"),
}


def backend_of(name: str, model: str) -> tuple[Backend, Feed]:
    """A backend over a model, and how to feed tokens to a state of it."""
    spec, graph = resolve(MODELS / model)
    backend = BACKENDS[name](spec, graph, RuntimeOptions()).backend(KvOptions(min_capacity=4, max_context=64))

    def feed(state: BackendState, *tokens: int) -> None:
        start, stop = state.kv_len, state.kv_len + len(tokens)
        feeds = {spec.input_ids: np.asarray([tokens], np.int64), spec.attention_mask: np.ones((1, stop), np.int64)}
        feeds[spec.position_ids] = np.arange(start, stop, dtype=np.int64)[None]
        backend.run(state, {port: array for port, array in feeds.items() if port is not None})

    return backend, feed


@pytest.fixture(params=KINDS)
def kind(request: pytest.FixtureRequest) -> tuple[BackendState, Feed]:
    """A state of each kind that holds five positions."""
    backend, feed = backend_of(*KINDS[request.param])
    state = backend.new_state()
    feed(state, 1, 2, 3, 4, 5)
    return state, feed


def held(state: BackendState) -> list[bytes]:
    """All valid keys and values."""
    parts = (state.physical(layer, part) for layer in range(2) for part in Part)
    return [array[:, :, : state.kv_len].tobytes() for array in parts]


def test_a_restored_state_holds_what_it_held(kind: tuple[BackendState, Feed]) -> None:
    """After more was fed, and again after that."""
    state, feed = kind
    mark, before = state.snapshot(), held(state)
    for tokens in ((7,), (8, 9, 10)):
        feed(state, *tokens)
        assert state.restore(mark)
        assert (state.kv_len, held(state)) == (5, before)


def test_a_mark_above_a_cut_is_gone(kind: tuple[BackendState, Feed]) -> None:
    """Other tokens may lie there by now: it declines and changes nothing. A mark below the cut is as good as before."""
    state, feed = kind
    low, high = state.snapshot(), None
    feed(state, 6, 7)
    high = state.snapshot()
    assert state.rewind_to(6)
    feed(state, 8, 9)
    assert not state.restore(high)
    assert state.kv_len == 8
    assert state.restore(low)
    state.reset()
    assert not state.restore(low)


def test_a_mark_is_for_its_own_state(kind: tuple[BackendState, Feed]) -> None:
    """A fork holds the same and has marks of its own."""
    state, feed = kind
    mark, fork = state.snapshot(), state.fork()
    feed(fork, 6)
    assert not fork.restore(mark)
    assert (fork.kv_len, state.restore(mark)) == (6, True)


def test_a_state_says_how_it_may_be_cut(kind: tuple[BackendState, Feed]) -> None:
    """Keys and values of every position: anywhere."""
    state, _ = kind
    assert list(state.components()) == [FullAttention()]


def test_a_state_without_kv_has_no_components() -> None:
    """And so nothing that could be reused."""
    for name in BACKENDS:
        backend, _ = backend_of(name, "snap-stateless")
        assert list(backend.new_state().components()) == []


def test_windows_are_the_layers_own() -> None:
    """Each width once, in order; where every position stays they are masks, and any cut is admitted."""
    widths = (8, None, 4, 8)
    layers = tuple(LayerKv(heads=1, head_dim=2, window=width) for width in widths)
    found = all_resident(KvGeometry(layers=layers))
    assert found == (FullAttention(), Window(4), Window(8))
    assert all(component.admits(m, 20) for component in found for m in range(1, 21))


def test_a_window_is_read_off_the_nodes_that_use_it() -> None:
    """Both exporters' dialects: an attribute of the fused operator, and the configuration beside a decomposed graph."""
    for name in ("mistral-genai0114-fp32", "mistral-optimum-fp32"):
        spec, _ = resolve(MODELS.parent / "zoo" / name)
        assert len(spec.windows) == 1
        assert {layer.window for layer in spec.states} == spec.windows
