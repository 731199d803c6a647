"""ONNX Runtime as a backend. Numerics are its own; KV lives in memory that we own where the graph allows it.

Two regimes, by the graph: *shared buffer* (every past input feeds an operator that can append in place: past and present
are bound to one buffer with spare capacity, `KvBuffers`) and *growing* (the present comes back as a new, longer tensor).

Two traps, measured: `OrtValue.numpy()` is a view that dangles once the OrtValue dies, and `ortvalue_from_numpy` aliases
its source. Whatever leaves this module is a copy; whatever goes in is kept alive beside its OrtValue.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray
from typing_extensions import override

from ..contract.arrays import HOST, Array, Feeds, HostArray
from ..contract.errors import BackendError, ModelError, UsageError
from ..contract.probe import Feeding, Probe, no_probe
from ..graph.signature import Signature
from ..kv.buffers import KvBuffers, KvOptions
from ..kv.layout import KvGeometry, LayerKv, Part, Physical, storage_dtype
from ..kv.state import BackendState, Fill, PlainKv
from .base import Backend, RuntimeOptions, Weights
from .buffered import BufferState

try:
    import onnxruntime as ort
except ImportError as error:
    raise UsageError("the ort backend needs onnxruntime; run: pip install 'warmcold[cpu]'") from error

OrtValue: TypeAlias = ort.OrtValue

_PROVIDERS = {"cpu": "CPUExecutionProvider"}


@dataclass(frozen=True, kw_only=True)
class OrtModel(Weights):
    """A session and its ports: the immutable part, shared by every engine over the same file.

    `shared_buffer`: past and present may be one buffer.
    """

    session: ort.InferenceSession
    signature: Signature
    shared_buffer: bool

    @override
    def backend(self, options: KvOptions) -> OrtBackend:
        return OrtBackend(self, options)


def load(path: Path, signature: Signature, options: RuntimeOptions, *, shared_buffer: bool) -> OrtModel:
    """Load `path` into ONNX Runtime. ModelError when it refuses the file, UsageError when it lacks the device."""
    if options.device not in _PROVIDERS:
        raise UsageError(f"device {options.device!r}: the ort backend has {sorted(_PROVIDERS)} in this version")
    provider = _PROVIDERS[options.device]
    try:
        session = ort.InferenceSession(str(path), _session_options(options.threads), providers=[provider])
    except Exception as error:  # onnxruntime raises a dozen unrelated classes for a bad file
        raise ModelError(f"{path}: ONNX Runtime {ort.__version__} refuses it: {error}") from error
    if session.get_providers()[0] != provider:
        raise BackendError(f"asked for {provider}, ONNX Runtime gave {session.get_providers()[0]}")
    return OrtModel(session=session, signature=signature, shared_buffer=shared_buffer)


def _session_options(threads: int) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    return options


class OrtBackend(Backend):
    """One `OrtModel` with the capacities and probes of one engine."""

    def __init__(self, model: OrtModel, options: KvOptions) -> None:
        self._model = model
        self._signature = model.signature
        self._options = options

    @override
    def new_state(self) -> BackendState:
        geometry, probe = self._signature.geometry, self._options.probe
        if not self._model.shared_buffer:
            return OrtGrowingState(geometry, probe)
        return BufferState(KvBuffers(geometry, np, self._options), HOST, probe)

    @override
    def run(self, state: BackendState, feeds: Feeds, *, last_only: bool = False) -> NDArray[np.float32]:
        """As `Backend.run`. The graph makes every row of logits, wanted or not; `last_only` saves their copy."""
        self._options.probe(Feeding(feeds=feeds))
        try:
            if isinstance(state, BufferState):
                return _copied(self._run_shared(state, feeds), last_only)
            assert isinstance(state, OrtGrowingState)
            return _copied(self._run_growing(state, feeds), last_only)
        except Exception as error:  # whatever the runtime or a probe raises, the state is poisoned
            raise BackendError(f"failed on {_shapes(feeds)} over {state.kv_len} positions: {error}") from error

    @override
    def bare(self, feeds: Feeds) -> dict[str, HostArray]:
        names = [output.name for output in self._model.session.get_outputs()]
        return dict(zip(names, self._model.session.run(names, dict(feeds)), strict=True))

    @override
    def fallbacks(self) -> dict[str, int]:
        """None: ONNX Runtime runs every operator itself."""
        return {}

    @override
    def close(self) -> None:
        """Nothing: the session goes with its last engine."""

    def _run_shared(self, state: BufferState, feeds: Feeds) -> OrtValue:
        """The logits as an OrtValue."""
        rows = self._rows(feeds)
        state.buffers.reserve(state.kv_len + rows)
        binding = self._model.session.io_binding()
        for name, array in feeds.items():
            binding.bind_cpu_input(name, np.ascontiguousarray(array))
        for layer, names in enumerate(zip(self._signature.past, self._signature.present, strict=True)):
            for part in Part:
                array = state.buffers.array(layer, part)
                place = ("cpu", 0, array.dtype, array.shape, array.ctypes.data)
                binding.bind_input(names[0][part], *place)
                binding.bind_output(names[1][part], *place)
        binding.bind_output(self._signature.logits, "cpu")
        self._model.session.run_with_iobinding(binding)
        logits = binding.get_outputs()[-1]  # `copy_outputs_to_cpu` would copy the whole cache with them
        state.buffers.advance(rows)
        return logits

    def _run_growing(self, state: OrtGrowingState, feeds: Feeds) -> OrtValue:
        """The logits as an OrtValue."""
        inputs = {name: ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(array)) for name, array in feeds.items()}
        for names, pair in zip(self._signature.past, state.pairs(), strict=True):
            for part in Part:
                inputs[names[part]] = pair[part]
        wanted = [self._signature.logits, *(name for pair in self._signature.present for name in pair)]
        values = self._model.session.run_with_ort_values(wanted, inputs)
        state.replace(values[1:], self._rows(feeds))
        return values[0]

    def _rows(self, feeds: Feeds) -> int:
        return int(feeds[self._signature.input_ids].shape[1])


class OrtGrowingState(PlainKv):
    """Past tensors that ONNX Runtime returns: a rewind slices them, a reset drops them."""

    def __init__(self, geometry: KvGeometry, probe: Probe = no_probe) -> None:
        super().__init__(geometry, HOST, probe)
        self._length = 0
        self._pairs: list[tuple[OrtValue, OrtValue]] | None = None

    @property
    @override
    def kv_len(self) -> int:
        return self._length

    def pairs(self) -> list[tuple[OrtValue, OrtValue]]:
        """Key and value of each layer, `[1, H, kv_len, D]`."""
        if self._pairs is None:
            self._pairs = [(_owned(_empty(layer, 0)), _owned(_empty(layer, 0))) for layer in self._geometry.layers]
        return self._pairs

    def replace(self, values: list[OrtValue], rows: int) -> None:
        """Adopt the presents of a finished step, key and value of each layer in turn."""
        self._pairs = list(zip(values[::2], values[1::2], strict=True))
        self._length += rows if self.has_state else 0

    def truncate_past(self, n: int) -> None:
        """Cut every past tensor to its first `n` positions."""
        self._pairs = [(_owned(key.numpy()[:, :, :n]), _owned(value.numpy()[:, :, :n])) for key, value in self.pairs()]
        self._length = n

    @override
    def _cut(self, n: int) -> None:
        if n:
            self.truncate_past(n)
        else:
            self._pairs, self._length = None, 0

    @override
    def load(self, n: int, fill: Fill) -> None:
        self.reset()
        pairs = []
        for layer, spec in enumerate(self._geometry.layers):
            arrays = []
            for part in Part:
                array = _empty(spec, n)
                fill(layer, part, array.reshape(-1), Physical(heads=spec.heads, capacity=n, head_dim=spec.head_dim))
                arrays.append(_owned(array))
            pairs.append((arrays[0], arrays[1]))
        self._pairs, self._length = pairs, n

    @override
    def fork(self) -> OrtGrowingState:
        """As `BackendState.fork`. The tensors are shared: a step reads them and returns new ones."""
        twin = OrtGrowingState(self._geometry, self._probe)
        twin._pairs, twin._length = list(self.pairs()), self._length
        return twin

    @override
    def present(self, layer: int, part: Part) -> tuple[Array, Physical]:
        spec = self._geometry.layers[layer]
        physical = Physical(heads=spec.heads, capacity=self._length, head_dim=spec.head_dim)
        return self.pairs()[layer][part].numpy().reshape(-1), physical

    @override
    def physical(self, layer: int, part: int) -> HostArray:
        return np.asarray(self.pairs()[layer][part].numpy())


def _owned(array: HostArray) -> OrtValue:
    """An OrtValue with memory of its own: `ortvalue_from_numpy` would alias the source, so it gets a private copy."""
    value = ort.OrtValue.ortvalue_from_shape_and_type(array.shape, array.dtype.type, "cpu", 0)
    if array.size:
        value.update_inplace(np.ascontiguousarray(array))
    return value


def _copied(logits: OrtValue, last_only: bool) -> NDArray[np.float32]:
    rows = logits.numpy()
    return np.array(rows[:, -1:, :] if last_only else rows, dtype=np.float32)


def _empty(layer: LayerKv, length: int) -> HostArray:
    return np.zeros((1, layer.heads, length, layer.head_dim), dtype=storage_dtype(layer.dtype))


def _shapes(feeds: Feeds) -> str:
    return ", ".join(f"{name} {list(array.shape)}" for name, array in feeds.items())
