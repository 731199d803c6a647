"""What one conversation carries inside a backend, as everything above a backend sees it."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import Protocol
from weakref import WeakSet

from typing_extensions import override

from ..contract.arrays import Array, Device, HostArray
from ..contract.probe import Probe, Rewinding
from .components import Component, all_resident
from .layout import KvGeometry, Part, Physical


class Fill(Protocol):
    """Writes one layer's keys or values into the flat buffer of a present array that is laid out as `physical` says."""

    def __call__(self, layer: int, part: Part, flat: Array, physical: Physical, /) -> None:
        """Fill it."""


class Snapshot:
    """A length that a state held; `void` once that state was cut below it, because what was held there is gone."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.void = False


class KvPrefixStore(Protocol):
    """The seam of the reuse policy: what it needs of a state, whatever that is made of."""

    @property
    def kv_len(self) -> int:
        """Positions that hold valid KV."""

    @property
    def has_state(self) -> bool:
        """Whether this decoder carries anything at all from step to step."""

    def rewind_to(self, n: int) -> bool:
        """Hold only the first `n` positions and return True, or decline: return False and change nothing.

        `n > kv_len` declines; `n == kv_len` is True and touches nothing. If it raises, the state is poisoned: only
        `reset` or dropping it is legal.
        """

    def reset(self) -> None:
        """Hold nothing. Cannot decline; raises if it cannot empty the state."""


class BackendState(KvPrefixStore, Protocol):
    """KV of one conversation inside a backend. `device` is where the arrays that `load` and `present` hand out live."""

    device: Device

    def components(self) -> Sequence[Component]:
        """How this state may be cut, as it is now; empty for a decoder without state."""

    def snapshot(self) -> Snapshot:
        """A mark of what is held now, to `restore` after more was fed. Whether it costs a copy depends on the state."""

    def restore(self, snapshot: Snapshot) -> bool:
        """Hold what was held at `snapshot` and return True, or decline as `rewind_to` does.

        It declines a snapshot of another state, and one that this state was cut below.
        """

    def load(self, n: int, fill: Fill) -> None:
        """Hold exactly `n` positions, written by `fill(layer, part, flat, physical)` into each flat buffer.

        Replaces what was held. If it raises, the state holds nothing.
        """

    def fork(self) -> BackendState:
        """Another state that holds the same positions and shares nothing that a later step of either could change."""

    def present(self, layer: int, part: Part) -> tuple[Array, Physical]:
        """Flat view of one layer's buffer and its layout; valid until the next step, rewind, load or reset."""

    def physical(self, layer: int, part: int) -> HostArray:
        """The whole array `[1, H, capacity, D]` on the host, for an observer; valid no longer than `present`."""


class PlainKv(BackendState):
    """A state that is keys and values of every position: any cut leaves a whole prefix, and a restore is a rewind.

    A subclass brings its memory: `kv_len`, `_cut`, and the way in and out.
    """

    def __init__(self, geometry: KvGeometry, device: Device, probe: Probe) -> None:
        self.device = device
        self._geometry = geometry
        self._probe = probe
        self._snapshots: WeakSet[Snapshot] = WeakSet()

    @abstractmethod
    def _cut(self, n: int) -> None:
        """Hold the first `n` positions, no more than are held."""

    @property
    @override
    def has_state(self) -> bool:
        return bool(self._geometry.layers)

    @override
    def components(self) -> Sequence[Component]:
        return all_resident(self._geometry)

    @override
    def rewind_to(self, n: int) -> bool:
        if n == self.kv_len:
            return True
        if n > self.kv_len or self._probe(Rewinding(held=self.kv_len, to=n)) is False:
            return False
        self._shorten(n)
        return True

    @override
    def reset(self) -> None:
        self._shorten(0)

    @override
    def snapshot(self) -> Snapshot:
        made = Snapshot(self.kv_len)
        self._snapshots.add(made)
        return made

    @override
    def restore(self, snapshot: Snapshot) -> bool:
        return snapshot in self._snapshots and not snapshot.void and self.rewind_to(snapshot.length)

    def _shorten(self, n: int) -> None:
        for snapshot in self._snapshots:
            snapshot.void |= snapshot.length > n
        self._cut(n)
