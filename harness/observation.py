"""What an engine let us see of one turn. What it did not show is None, never a made-up value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Tokens = tuple[int, ...]
Pair = tuple[NDArray[Any], NDArray[Any]]
Kv = tuple[Pair, ...]
"""Per layer (keys, values), each `[heads, positions, head_dim]`; a copy that the observer owns."""

PageKey = tuple[str | None, Tokens]
"""Whose (the request's salt) and what (all tokens of the published prefix, up to where this page's part ends)."""


@dataclass(frozen=True, kw_only=True)
class Call:
    """One model call: the named inputs as the backend got them, and the last row of logits `[V]` that it gave."""

    feeds: Mapping[str, NDArray[Any]]
    logits: NDArray[np.float32]

    @property
    def rows(self) -> int:
        """Token ids that it was fed."""
        return int(self.feeds["input_ids"].shape[-1])


@dataclass(frozen=True, kw_only=True)
class Pool:
    """Page accounting at a moment when no turn runs: free list, holders per page, published prefixes with their last page.

    `bytes` has, for each published key, the rows of its last page as `Kv`, cut to the positions it covers.
    """

    total: int
    free: tuple[int, ...]
    holders: tuple[int, ...]
    entries: Mapping[PageKey, int]
    bytes: Mapping[PageKey, Kv]


@dataclass(frozen=True, kw_only=True)
class Observation:
    """One finished turn of the subject. `failed`: the error planted in it struck, and the engine raised it as its own."""

    tokens: Tokens
    stop: str
    reused: int | None = None
    prefilled: int | None = None
    source: str | None = None
    reason: str | None = None
    gate: str | None = None
    mirror_stop: str | None = None
    declined: bool | None = None
    calls: tuple[Call, ...] | None = None
    seeded: Kv | None = None
    end: Kv | None = None
    pool: Pool | None = None
    failed: bool = False
