"""What a backend is: one step in, logits and present KV out.

A backend holds the immutable part (weights, plan). Everything that one conversation carries lives in a `BackendState`,
so that a fresh state over the same weights is a cold start. Both backends go through the same reuse policy
(`reuse.apply_prefix_reuse`), the same page geometry (`kv.layout`) and the same loop; each brings only its mechanism.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from ..contract.arrays import Device, HostArray
from ..kv.layout import KvGeometry, Part, Physical

Feeds = Mapping[str, HostArray]
Fill = Callable[[int, Part, Any, Physical], None]


class BackendState(Protocol):
    """KV of one conversation inside a backend. Also the `KvPrefixStore` seam that the reuse policy drives.

    `device` is where the arrays that `load` and `present` hand out live.
    """

    device: Device

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

    def load(self, n: int, fill: Fill) -> None:
        """Hold exactly `n` positions, written by `fill(layer, part, flat, physical)` into each flat buffer.

        Replaces what was held. If it raises, the state holds nothing.
        """

    def fork(self) -> BackendState:
        """Another state that holds the same positions and shares nothing that a later step of either could change."""

    def present(self, layer: int, part: Part) -> tuple[Any, Physical]:
        """Flat view of one layer's buffer and its layout; valid until the next step, rewind, load or reset."""

    def physical(self, layer: int, part: Part) -> HostArray:
        """The whole array `[1, H, capacity, D]` on the host, for an observer; valid no longer than `present`."""


class Backend(Protocol):
    """Runs one model on one device. Safe to share between engines; not between threads."""

    name: str
    geometry: KvGeometry

    def new_state(self) -> BackendState:
        """An empty state of its own: nothing is shared with any other."""

    def run(self, state: BackendState, feeds: Feeds, *, last_only: bool = False) -> NDArray[np.float32]:
        """One model call on top of `state`.

        `feeds` maps the model's non-KV input names to host arrays (`input_ids [1, S]` int64, and so on). Returns the
        logits `[1, S, V]` as float32 on the host, or, where `last_only` lets it, the last row alone, `[1, 1, V]`.
        Afterwards `state.kv_len` has grown by S. If it raises, `state` is poisoned and must be dropped.
        """

    def bare(self, feeds: Feeds) -> dict[str, HostArray]:
        """One stateless call of the same kernels: past arrays among `feeds`, all outputs by name, copied to the host.

        For a harness that keeps the cache itself. No session, policy, page or capacity is involved.
        """

    def fallbacks(self) -> dict[str, int]:
        """Operators that ran on the slow generic path, with the number of calls so far."""

    def close(self) -> None:
        """Release the weights. Idempotent."""
