"""The reuse seam over `KvBuffers`: for every backend that appends into memory which we own. A rewind moves a length."""

from __future__ import annotations

from typing import Any

from ..contract.arrays import Device, HostArray
from ..contract.probe import Probe
from ..kv.buffers import KvBuffers
from ..kv.layout import Part, Physical
from .base import Fill


class BufferState:
    """One conversation's buffers as a `BackendState`; `device` is where they live."""

    def __init__(self, buffers: KvBuffers, device: Device, probe: Probe) -> None:
        self.buffers = buffers
        self.device = device
        self._probe = probe

    @property
    def kv_len(self) -> int:
        """See `BackendState.kv_len`."""
        return self.buffers.current_kv_len()

    @property
    def has_state(self) -> bool:
        """See `BackendState.has_state`."""
        return bool(self.buffers.geometry.layers)

    def rewind_to(self, n: int) -> bool:
        """See `BackendState.rewind_to`."""
        held = self.kv_len
        if n == held:
            return True
        if n > held or self._probe("rewind", {"from": held, "to": n}) is False:
            return False
        self.buffers.rewind_kv(n)
        return True

    def reset(self) -> None:
        """See `BackendState.reset`."""
        self.buffers.rewind_kv(0)

    def load(self, n: int, fill: Fill) -> None:
        """See `BackendState.load`."""
        self.reset()
        self.buffers.reserve(n)
        for layer in range(len(self.buffers.geometry.layers)):
            for part in Part:
                fill(layer, part, *self.buffers.present(layer, part))
        self.buffers.advance(n)

    def fork(self) -> BufferState:
        """See `BackendState.fork`."""
        return BufferState(self.buffers.copy(), self.device, self._probe)

    def present(self, layer: int, part: Part) -> tuple[Any, Physical]:
        """See `BackendState.present`."""
        return self.buffers.present(layer, part)

    def physical(self, layer: int, part: Part) -> HostArray:
        """See `BackendState.physical`."""
        return self.device.to_host(self.buffers.array(layer, part))
