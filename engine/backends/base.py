"""What a backend is: one step in, logits and present KV out.

A backend holds the immutable part (weights, plan). Everything that one conversation carries lives in a `BackendState`,
so that a fresh state over the same weights is a cold start. Both backends go through the same reuse policy
(`turn.reuse.apply_prefix_reuse`), the same page geometry (`kv.layout`) and the same loop; each brings only its mechanism.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from ..contract.arrays import Feeds, HostArray
from ..kv.buffers import KvOptions
from ..kv.state import BackendState


@dataclass(frozen=True, kw_only=True)
class RuntimeOptions:
    """What belongs to the weights: where they live, and how they are computed with."""

    device: str = "cpu"
    numerics: str = "invariant"
    threads: int = 2


class Weights(Protocol):
    """The immutable part of a loaded model, shared by every engine over it."""

    def backend(self, options: KvOptions) -> Backend:
        """A backend over these weights, with the capacities and the probe of one engine."""


class Backend(Protocol):
    """Runs one model on one device. Safe to share between engines; not between threads."""

    def new_state(self) -> BackendState:
        """An empty state of its own: nothing is shared with any other."""

    def run(self, state: BackendState, feeds: Feeds, *, last_only: bool = False) -> NDArray[np.float32]:
        """One model call on top of `state`.

        `feeds` maps the model's non-KV input names to host arrays (token ids `[1, S]` int64, and so on). Returns the
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
