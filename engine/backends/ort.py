"""ONNX Runtime as a backend. Numerics are its own; KV lives in memory that we own where the graph allows it.

Two regimes, by the graph: *shared buffer* (every past input feeds an operator that can append in place: past and present
are bound to one buffer with spare capacity, `KvBuffers`) and *growing* (the present comes back as a new, longer tensor).

Two traps, measured: `OrtValue.numpy()` is a view that dangles once the OrtValue dies, and `ortvalue_from_numpy` aliases
its source. Whatever leaves this module is a copy; whatever goes in is kept alive beside its OrtValue.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from ..contract.arrays import HOST, HostArray
from ..contract.errors import BackendError, ModelError, UsageError
from ..contract.probe import Probe, no_probe
from ..kv.buffers import KvBuffers
from ..kv.layout import KvGeometry, Part, Physical, storage_dtype
from .base import BackendState, Feeds, Fill
from .buffered import BufferState

PortPairs = tuple[tuple[str, str], ...]

_PROVIDERS = {"cpu": "CPUExecutionProvider"}


@dataclass(frozen=True, kw_only=True)
class OrtModel:
    """A session and its KV ports: the immutable part, shared by every engine over the same file."""

    session: Any
    geometry: KvGeometry
    past: PortPairs
    present: PortPairs
    logits: str
    shared_buffer: bool


def open_model(
    path: Path,
    *,
    geometry: KvGeometry,
    past: PortPairs,
    present: PortPairs,
    logits: str,
    shared_buffer: bool,
    device: str = "cpu",
    threads: int = 2,
) -> OrtModel:
    """Load `path` into ONNX Runtime. ModelError when it refuses the file, UsageError when it lacks the device."""
    if device not in _PROVIDERS:
        raise UsageError(f"device {device!r}: the ort backend has {sorted(_PROVIDERS)} in this version")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    try:
        session = ort.InferenceSession(str(path), options, providers=[_PROVIDERS[device]])
    except Exception as error:  # onnxruntime raises a dozen unrelated classes for a bad file
        raise ModelError(f"{path}: ONNX Runtime {ort.__version__} refuses it: {error}") from error
    if session.get_providers()[0] != _PROVIDERS[device]:
        raise BackendError(f"asked for {_PROVIDERS[device]}, ONNX Runtime gave {session.get_providers()[0]}")
    return OrtModel(
        session=session, geometry=geometry, past=past, present=present, logits=logits, shared_buffer=shared_buffer
    )


class OrtBackend:
    """One `OrtModel` with the capacities and probes of one engine."""

    name = "ort"

    def __init__(
        self,
        model: OrtModel,
        *,
        min_capacity: int,
        max_context: int,
        poison: float | None = None,
        probe: Probe = no_probe,
    ) -> None:
        self.geometry = model.geometry
        self._model = model
        self._min_capacity = min_capacity
        self._max_context = max_context
        self._poison = poison
        self._probe = probe

    def new_state(self) -> BackendState:
        """See `Backend.new_state`."""
        if not self._model.shared_buffer:
            return OrtGrowingState(self.geometry, self._probe)
        buffers = KvBuffers(
            self.geometry,
            xp=np,
            min_capacity=self._min_capacity,
            max_context=self._max_context,
            poison=self._poison,
            probe=self._probe,
        )
        return BufferState(buffers, HOST, self._probe)

    def run(self, state: BackendState, feeds: Feeds, *, last_only: bool = False) -> NDArray[np.float32]:
        """See `Backend.run`. The graph makes every row of logits, wanted or not; `last_only` saves their copy."""
        self._probe("feed", {"feeds": feeds})
        try:
            if isinstance(state, BufferState):
                return _copied(self._run_shared(state, feeds), last_only)
            assert isinstance(state, OrtGrowingState)
            return _copied(self._run_growing(state, feeds), last_only)
        except Exception as error:  # whatever the runtime or a probe raises, the state is poisoned
            raise BackendError(f"failed on {_shapes(feeds)} over {state.kv_len} positions: {error}") from error

    def bare(self, feeds: Feeds) -> dict[str, HostArray]:
        """See `Backend.bare`."""
        names = [output.name for output in self._model.session.get_outputs()]
        return dict(zip(names, self._model.session.run(names, dict(feeds)), strict=True))

    def fallbacks(self) -> dict[str, int]:
        """None: ONNX Runtime runs every operator itself."""
        return {}

    def close(self) -> None:
        """See `Backend.close`. The session goes with its last engine."""

    def _run_shared(self, state: BufferState, feeds: Feeds) -> Any:
        """The logits as an OrtValue."""
        rows = _rows(feeds)
        state.buffers.reserve(state.kv_len + rows)
        binding = self._model.session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for layer, names in enumerate(zip(self._model.past, self._model.present, strict=True)):
            for part in Part:
                array = state.buffers.array(layer, part)
                place = ("cpu", 0, array.dtype, array.shape, array.ctypes.data)
                binding.bind_input(names[0][part], *place)
                binding.bind_output(names[1][part], *place)
        binding.bind_output(self._model.logits, "cpu")
        self._model.session.run_with_iobinding(binding)
        logits = binding.get_outputs()[-1]  # `copy_outputs_to_cpu` would copy the whole cache with them
        state.buffers.advance(rows)
        return logits

    def _run_growing(self, state: OrtGrowingState, feeds: Feeds) -> Any:
        """The logits as an OrtValue."""
        inputs = {name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)) for name, array in feeds.items()}
        for names, pair in zip(self._model.past, state.pairs(), strict=True):
            for part in Part:
                inputs[names[part]] = pair[part]
        wanted = [self._model.logits, *(name for pair in self._model.present for name in pair)]
        values = self._model.session.run_with_ort_values(wanted, inputs)
        state.replace(values[1:], _rows(feeds))
        return values[0]


class OrtGrowingState:
    """The reuse seam over past tensors that ONNX Runtime returns: a rewind slices them, a reset drops them."""

    device = HOST

    def __init__(self, geometry: KvGeometry, probe: Probe = no_probe) -> None:
        self._geometry = geometry
        self._probe = probe
        self._length = 0
        self._pairs: list[tuple[Any, Any]] | None = None

    @property
    def kv_len(self) -> int:
        """See `BackendState.kv_len`."""
        return self._length

    @property
    def has_state(self) -> bool:
        """See `BackendState.has_state`."""
        return bool(self._geometry.layers)

    def pairs(self) -> list[tuple[Any, Any]]:
        """Key and value OrtValue of each layer, `[1, H, kv_len, D]`."""
        if self._pairs is None:
            self._pairs = [(_owned(_empty(layer)), _owned(_empty(layer))) for layer in self._geometry.layers]
        return self._pairs

    def replace(self, values: list[Any], rows: int) -> None:
        """Adopt the presents of a finished step, key and value of each layer in turn."""
        self._pairs = list(zip(values[::2], values[1::2], strict=True))
        self._length += rows if self.has_state else 0

    def truncate_past(self, n: int) -> None:
        """Cut every past tensor to its first `n` positions."""
        self._pairs = [(_owned(key.numpy()[:, :, :n]), _owned(value.numpy()[:, :, :n])) for key, value in self.pairs()]
        self._length = n

    def rewind_to(self, n: int) -> bool:
        """See `BackendState.rewind_to`."""
        if n == self._length:
            return True
        if n > self._length or self._probe("rewind", {"from": self._length, "to": n}) is False:
            return False
        self.truncate_past(n)
        return True

    def reset(self) -> None:
        """See `BackendState.reset`."""
        self._pairs, self._length = None, 0

    def load(self, n: int, fill: Fill) -> None:
        """See `BackendState.load`."""
        self.reset()
        pairs = []
        for layer, spec in enumerate(self._geometry.layers):
            arrays = []
            for part in Part:
                array = np.zeros((1, spec.heads, n, spec.head_dim), dtype=storage_dtype(spec.dtype))
                fill(layer, part, array.reshape(-1), Physical(heads=spec.heads, capacity=n, head_dim=spec.head_dim))
                arrays.append(_owned(array))
            pairs.append((arrays[0], arrays[1]))
        self._pairs, self._length = pairs, n

    def fork(self) -> OrtGrowingState:
        """See `BackendState.fork`. The tensors are shared: a step reads them and returns new ones."""
        twin = OrtGrowingState(self._geometry, self._probe)
        twin._pairs, twin._length = list(self.pairs()), self._length
        return twin

    def present(self, layer: int, part: Part) -> tuple[Any, Physical]:
        """See `BackendState.present`. The view is valid while this state holds the tensor."""
        spec = self._geometry.layers[layer]
        physical = Physical(heads=spec.heads, capacity=self._length, head_dim=spec.head_dim)
        return self.pairs()[layer][part].numpy().reshape(-1), physical

    def physical(self, layer: int, part: Part) -> HostArray:
        """The array `[1, H, kv_len, D]` itself, for an observer; valid while this state holds it."""
        return np.asarray(self.pairs()[layer][part].numpy())


def _owned(array: HostArray) -> Any:
    """An OrtValue with memory of its own: `ortvalue_from_numpy` would alias the source, so it gets a private copy."""
    value = ort.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype.type, "cpu", 0)
    if array.size:
        value.update_inplace(np.ascontiguousarray(array))
    return value


def _copied(logits: Any, last_only: bool) -> NDArray[np.float32]:
    rows = logits.numpy()
    return np.array(rows[:, -1:, :] if last_only else rows, dtype=np.float32)


def _empty(layer: Any) -> HostArray:
    return np.zeros((1, layer.heads, 0, layer.head_dim), dtype=storage_dtype(layer.dtype))


def _rows(feeds: Feeds) -> int:
    return int(feeds["input_ids"].shape[1])


def _shapes(feeds: Feeds) -> str:
    return ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
