"""Binds tokens, positions, mask and KV to a backend's ports: the one place that says what a model call is fed."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..backends.base import Backend
from ..contract.arrays import HostArray
from ..kv.state import BackendState
from ..package.resolve import ModelSpec


class Decoder:
    """One conversation's state on a backend, fed by tokens."""

    def __init__(self, spec: ModelSpec, backend: Backend, state: BackendState) -> None:
        self.spec = spec
        self.state = state
        self._backend = backend

    def step(self, fed: Sequence[int], tokens: Sequence[int]) -> NDArray[np.float32]:
        """Run `tokens` on top of `fed` (what the state holds) and return the last row of logits, `[V]` float32.

        A decoder without state sees the whole of `fed + tokens` in every call.
        """
        rows = list(tokens) if self.state.has_state else [*fed, *tokens]
        start = self.state.kv_len
        logits = self._backend.run(self.state, self._feeds(rows, start), last_only=True)
        return np.ascontiguousarray(logits[0, -1])

    def fork(self) -> Decoder:
        """Another decoder over a fork of this one's state."""
        return Decoder(self.spec, self._backend, self.state.fork())

    def _feeds(self, rows: list[int], start: int) -> dict[str, HostArray]:
        stop = start + len(rows)
        spec = self.spec
        feeds = {spec.input_ids: self._ints(spec.input_ids, rows)}
        if spec.attention_mask is not None:
            feeds[spec.attention_mask] = self._ints(spec.attention_mask, [1] * stop)
        if spec.position_ids is not None:
            feeds[spec.position_ids] = self._ints(spec.position_ids, list(range(start, stop)))
        return feeds

    def _ints(self, port: str, values: list[int]) -> HostArray:
        return np.asarray([values], dtype=self.spec.dtypes[port])
