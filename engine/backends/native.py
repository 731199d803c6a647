"""The native backend: runs a compiled plan on NumPy or CuPy arrays, with the cache in its own buffers.

`CompiledModel` holds the weights and may be shared; `NativeBackend` adds what one engine chooses (capacity, poison,
probe); `BufferState` is one conversation.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contract.arrays import HostArray
from ..contract.errors import BackendError, UsageError, WarmcoldError
from ..contract.probe import Probe, no_probe
from ..graph.compile import compile_model
from ..graph.plan import CompiledModel
from ..kv.buffers import KvBuffers, KvSlot
from ..kv.layout import LayerKv, Part
from .base import BackendState, Feeds
from .buffered import BufferState

__all__ = ["NativeBackend", "compile_model"]

_TOKEN_PORTS = ("input_ids", "inputs_embeds")


class NativeBackend:
    """`Backend` over a compiled plan. Its name carries nothing of the device: see `compiled.device`."""

    name = "native"

    def __init__(
        self,
        compiled: CompiledModel,
        *,
        min_capacity: int = 256,
        max_context: int,
        poison: float | None = None,
        probe: Probe = no_probe,
    ) -> None:
        self.geometry = compiled.geometry
        self._compiled: CompiledModel | None = compiled
        self._min_capacity, self._max_context = min_capacity, max_context
        self._poison, self._probe = poison, probe
        self._rows_port = _rows_port(compiled)
        self._calls: Counter[str] = Counter()

    @property
    def compiled(self) -> CompiledModel:
        """The plan. UsageError once the backend is closed."""
        if self._compiled is None:
            raise UsageError("the backend is closed; load the model again")
        return self._compiled

    def new_state(self) -> BackendState:
        buffers = self._buffers(self._min_capacity, self._max_context, self._probe)
        return BufferState(buffers, self.compiled.device, self._probe)

    def run(self, state: BackendState, feeds: Feeds, *, last_only: bool = False) -> NDArray[np.float32]:
        """As `Backend.run`; with `last_only` the logits may be `[1, 1, V]`, the last row alone, if the graph allows."""
        assert isinstance(state, BufferState)
        rows = feeds[self._rows_port].shape[1]
        try:
            self._probe("feed", {"feeds": feeds})
            if state.has_state:
                state.buffers.reserve(state.kv_len + rows)
            found = self._execute(state.buffers, feeds, last_only=last_only)
        except WarmcoldError:
            raise
        except Exception as error:
            raise BackendError(f"{type(error).__name__} before {rows} rows at {state.kv_len}: {error}") from error
        if state.has_state:
            state.buffers.advance(rows)
        logits = self.compiled.device.to_host(found[self.compiled.logits])
        return np.asarray(logits, dtype=np.float32)

    def bare(self, feeds: Feeds) -> dict[str, HostArray]:
        """As `Backend.bare`. UsageError when a past array is missing or is not shaped `[1, H, n, D]` as its layer."""
        past = self._past_arrays(feeds)
        held = past[0][0].shape[2] if past else 0
        room = max(1, held + feeds[self._rows_port].shape[1])
        buffers = self._buffers(1, room, no_probe)
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

    def fallbacks(self) -> dict[str, int]:
        return dict(self._calls)

    def close(self) -> None:
        self._compiled = None

    def _execute(self, buffers: KvBuffers, feeds: Feeds, *, last_only: bool = False) -> dict[str, Any]:
        slots = {
            name: KvSlot(buffers, layer, Part(part))
            for layer, pair in enumerate(self.compiled.past)
            for part, name in enumerate(pair)
        }
        self._calls.update(self.compiled.fallbacks)
        return self.compiled.execute(feeds, slots, last_only=last_only)

    def _buffers(self, min_capacity: int, max_context: int, probe: Probe) -> KvBuffers:
        return KvBuffers(
            self.geometry,
            xp=self.compiled.device.xp,
            min_capacity=min_capacity,
            max_context=max_context,
            poison=self._poison,
            probe=probe,
        )

    def _past_arrays(self, feeds: Mapping[str, Any]) -> list[tuple[Any, Any]]:
        pairs = []
        for layer, names in zip(self.geometry.layers, self.compiled.past, strict=True):
            for name in names:
                _check_past(feeds, name, layer)
            pairs.append((feeds[names[0]], feeds[names[1]]))
        lengths = {array.shape[2] for pair in pairs for array in pair}
        if len(lengths) > 1:
            raise UsageError(f"past arrays of different lengths {sorted(lengths)}; all layers hold the same positions")
        return pairs


def _check_past(feeds: Mapping[str, Any], name: str, layer: LayerKv) -> None:
    shape = feeds[name].shape if name in feeds else None
    if shape is None or len(shape) != 4 or (shape[0], shape[1], shape[3]) != (1, layer.heads, layer.head_dim):
        raise UsageError(f"past {name!r}: shape {shape}, wanted [1, {layer.heads}, length, {layer.head_dim}]")


def _rows_port(compiled: CompiledModel) -> str:
    """The input whose axis 1 counts the rows of a step."""
    names = [port.name for port in compiled.inputs]
    return next((name for name in _TOKEN_PORTS if name in names), names[0])
