"""Raw ONNX Runtime on the same file: the leanest loop there is, as the yardstick of the bench.

One binding for the whole conversation, no copy of logits, no sampling, no pages. It shares the session of a loaded `ort`
engine, so the graph, the providers and the threads are the same.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..contract.arrays import HostArray
from ..kv.layout import Part, storage_dtype
from ..package.resolve import ModelSpec


class RawLoop:
    """One conversation. `model` is the `OrtModel` of an `ort` engine over `spec`; `capacity` the most positions held."""

    def __init__(self, spec: ModelSpec, model: Any, *, capacity: int) -> None:
        self._spec = spec
        self._model = model
        self._capacity = capacity
        self._buffers = [[_noise(capacity, layer) for _ in Part] for layer in spec.geometry.layers]
        self._bound: list[tuple[str, Any]] = []
        self.hold(0)

    def hold(self, n: int) -> None:
        """Hold `n` positions of noise, whatever was held before."""
        self.length = n
        if self._model.shared_buffer:
            return
        names = [name for pair in self._spec.past for name in pair]
        arrays = [np.ascontiguousarray(array[:, :, :n]) for pair in self._buffers for array in pair]
        self._bound = list(zip(names, arrays, strict=True))

    def step(self, tokens: Sequence[int]) -> Any:
        """One model call on top of what is held. Returns the logits `[1, S, V]` where they are, as an OrtValue."""
        binding = self._model.session.io_binding()
        feeds = self._feeds(tokens)
        for name, array in feeds.items():
            binding.bind_cpu_input(name, array)
        binding.bind_output(self._spec.logits, "cpu")
        present = [name for pair in self._spec.present for name in pair]
        if self._model.shared_buffer:
            self._bind_shared(binding, present)
        else:
            self._bind_growing(binding, present)
        self._model.session.run_with_iobinding(binding)
        logits, *values = binding.get_outputs()
        self.length += len(tokens)
        if not self._model.shared_buffer:
            self._bound = [(name, value) for (name, _), value in zip(self._bound, values, strict=True)]
        return logits

    def _bind_shared(self, binding: Any, present: Sequence[str]) -> None:
        past = [name for pair in self._spec.past for name in pair]
        arrays = [array for pair in self._buffers for array in pair]
        for taken, made, array in zip(past, present, arrays, strict=True):
            place = ("cpu", 0, array.dtype, array.shape, array.ctypes.data)
            binding.bind_input(taken, *place)
            binding.bind_output(made, *place)

    def _bind_growing(self, binding: Any, present: Sequence[str]) -> None:
        for (name, value), made in zip(self._bound, present, strict=True):
            if isinstance(value, np.ndarray):
                binding.bind_input(name, "cpu", 0, value.dtype, value.shape, value.ctypes.data)
            else:
                binding.bind_ortvalue_input(name, value)
            binding.bind_output(made, "cpu")

    def _feeds(self, tokens: Sequence[int]) -> dict[str, HostArray]:
        spec, stop = self._spec, self.length + len(tokens)
        values = {
            spec.input_ids: np.asarray([tokens]),
            spec.attention_mask: np.ones((1, stop)),
            spec.position_ids: np.arange(self.length, stop)[None],
        }
        return {name: array.astype(spec.dtypes[name]) for name, array in values.items() if name is not None}


def _noise(capacity: int, layer: Any) -> HostArray:
    shape = (1, layer.heads, capacity, layer.head_dim)
    return np.random.default_rng(0).standard_normal(shape, dtype=np.float32).astype(storage_dtype(layer.dtype))
