"""The native backend: runs a compiled plan on NumPy or CuPy arrays, with the cache in its own buffers.

`CompiledModel` holds the weights and may be shared; `NativeBackend` adds what one engine chooses (capacity, poison,
probe); `BufferState` is one conversation.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ..contract.arrays import Array, Feeds, HostArray
from ..contract.errors import BackendError, UsageError, WarmcoldError
from ..contract.probe import Feeding, no_probe
from ..graph.compile import compile_model
from ..graph.load import GraphModel
from ..graph.plan import CompiledModel
from ..graph.signature import Signature
from ..kv.buffers import KvBuffers, KvOptions, KvSlot
from ..kv.layout import LayerKv, Part
from ..kv.state import BackendState
from .base import Backend, RuntimeOptions, Weights
from .buffered import BufferState


@dataclass(frozen=True)
class NativeWeights(Weights):
    """A compiled plan, shared by every engine over it."""

    compiled: CompiledModel

    @override
    def backend(self, options: KvOptions) -> NativeBackend:
        return NativeBackend(self.compiled, options)


def load(graph: GraphModel, signature: Signature, options: RuntimeOptions) -> NativeWeights:
    """Compile `graph`. ModelError for an operator that is not known, UsageError for a device that does not exist."""
    return NativeWeights(compile_model(graph, signature, device=options.device, numerics=options.numerics))


class NativeBackend(Backend):
    """`Backend` over a compiled plan; where its arrays live is `compiled.device`."""

    def __init__(self, compiled: CompiledModel, options: KvOptions) -> None:
        self._compiled: CompiledModel | None = compiled
        self._signature = compiled.signature
        self._options = options
        self._calls: Counter[str] = Counter()

    @property
    def compiled(self) -> CompiledModel:
        """The plan. UsageError once the backend is closed."""
        if self._compiled is None:
            raise UsageError("the backend is closed; load the model again")
        return self._compiled

    @override
    def new_state(self) -> BackendState:
        return BufferState(self._buffers(self._options), self.compiled.device, self._options.probe)

    @override
    def run(self, state: BackendState, feeds: Feeds, *, last_only: bool = False) -> NDArray[np.float32]:
        assert isinstance(state, BufferState)
        rows = self._rows(feeds)
        try:
            self._options.probe(Feeding(feeds=feeds))
            if state.has_state:
                state.buffers.reserve(state.kv_len + rows)
            found = self._execute(state.buffers, feeds, last_only=last_only)
        except WarmcoldError:
            raise
        except Exception as error:  # a kernel may raise what it likes; where the state stood is what helps
            raise BackendError(f"{type(error).__name__} before {rows} rows at {state.kv_len}: {error}") from error
        if state.has_state:
            state.buffers.advance(rows)
        logits = self.compiled.device.to_host(found[self._signature.logits])
        return np.asarray(logits, dtype=np.float32)

    @override
    def bare(self, feeds: Feeds) -> dict[str, HostArray]:
        """As `Backend.bare`. UsageError when a past array is missing or is not shaped `[1, H, n, D]` as its layer."""
        past = self._past_arrays(feeds)
        held = past[0][0].shape[2] if past else 0
        room = max(1, held + self._rows(feeds))
        buffers = self._buffers(replace(self._options, min_capacity=1, max_context=room, probe=no_probe))
        if past:
            buffers.reserve(room)
        for layer, pair in enumerate(past):
            for part in Part:
                rows = self.compiled.device.from_host(np.asarray(pair[part]))
                buffers.array(layer, part)[:, :, :held, :] = rows
        if past:
            buffers.advance(held)
        found = self._execute(buffers, feeds)
        return {name: np.array(self.compiled.device.to_host(value)) for name, value in found.items()}

    @override
    def fallbacks(self) -> dict[str, int]:
        return dict(self._calls)

    @override
    def close(self) -> None:
        self._compiled = None

    def _execute(self, buffers: KvBuffers, feeds: Feeds, *, last_only: bool = False) -> dict[str, Array]:
        slots = {
            name: KvSlot(buffers, layer, Part(part))
            for layer, pair in enumerate(self._signature.past)
            for part, name in enumerate(pair)
        }
        self._calls.update(self.compiled.fallbacks)
        return self.compiled.execute(feeds, slots, last_only=last_only)

    def _buffers(self, options: KvOptions) -> KvBuffers:
        return KvBuffers(self._signature.geometry, self.compiled.device.xp, options)

    def _rows(self, feeds: Feeds) -> int:
        return int(feeds[self._signature.input_ids].shape[1])

    def _past_arrays(self, feeds: Feeds) -> list[tuple[HostArray, HostArray]]:
        pairs = []
        for layer, names in zip(self._signature.states, self._signature.past, strict=True):
            for name in names:
                _check_past(feeds, name, layer)
            pairs.append((feeds[names[0]], feeds[names[1]]))
        lengths = {array.shape[2] for pair in pairs for array in pair}
        if len(lengths) > 1:
            raise UsageError(f"past arrays of different lengths {sorted(lengths)}; all layers hold the same positions")
        return pairs


def _check_past(feeds: Feeds, name: str, layer: LayerKv) -> None:
    shape = feeds[name].shape if name in feeds else None
    if shape is None or len(shape) != 4 or (shape[0], shape[1], shape[3]) != (1, layer.heads, layer.head_dim):
        raise UsageError(f"past {name!r}: shape {shape}, wanted [1, {layer.heads}, length, {layer.head_dim}]")
