"""The reuse seam over `KvBuffers`: for every backend that appends into memory which we own. A rewind moves a length."""

from __future__ import annotations

from typing_extensions import override

from ..contract.arrays import Array, Device, HostArray
from ..contract.probe import Probe
from ..kv.buffers import KvBuffers
from ..kv.layout import Part, Physical
from ..kv.state import Fill, PlainKv


class BufferState(PlainKv):
    """One conversation's buffers; `device` is where they live."""

    def __init__(self, buffers: KvBuffers, device: Device, probe: Probe) -> None:
        super().__init__(buffers.geometry, device, probe)
        self.buffers = buffers

    @property
    @override
    def kv_len(self) -> int:
        return self.buffers.current_kv_len()

    @override
    def _cut(self, n: int) -> None:
        self.buffers.rewind_kv(n)

    @override
    def load(self, n: int, fill: Fill) -> None:
        self.reset()
        self.buffers.reserve(n)
        for layer in range(len(self.buffers.geometry.layers)):
            for part in Part:
                fill(layer, part, *self.buffers.present(layer, part))
        self.buffers.advance(n)

    @override
    def fork(self) -> BufferState:
        return BufferState(self.buffers.copy(), self.device, self._probe)

    @override
    def present(self, layer: int, part: Part) -> tuple[Array, Physical]:
        return self.buffers.present(layer, part)

    @override
    def physical(self, layer: int, part: int) -> HostArray:
        return self.device.to_host(self.buffers.array(layer, part))
