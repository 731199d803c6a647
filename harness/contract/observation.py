"""What an engine let us see of one turn. What it did not show is None, never a made-up value."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Tokens = tuple[int, ...]
Array = NDArray[Any]
"""A numpy array of a dtype that whoever made it chose."""

Pair = tuple[Array, Array]
Kv = tuple[Pair, ...]
"""Per layer (keys, values), each `[heads, positions, head_dim]`; a copy that the observer owns."""


class PageKey(NamedTuple):
    """Whose (the request's salt) and what (all tokens of the published prefix, up to where this page's part ends)."""

    salt: str | None
    tokens: Tokens

    def start(self, page_size: int) -> int:
        """The first position of its last page."""
        return (len(self.tokens) - 1) // page_size * page_size

    def parent(self, page_size: int) -> PageKey | None:
        """The prefix one page shorter; None for a first page."""
        above = self.start(page_size)
        return PageKey(self.salt, self.tokens[:above]) if above else None


@dataclass(frozen=True, kw_only=True)
class Call:
    """One model call: what it was fed, by what it is for and whatever the model calls it, and the last row of logits `[V]`.

    `positions` and `mask` None: the model has no such input.
    """

    ids: Array
    logits: NDArray[np.float32]
    positions: Array | None = None
    mask: Array | None = None

    @property
    def rows(self) -> int:
        """Token ids that it was fed."""
        return int(self.ids.shape[-1])


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
    """One finished turn of the subject. `failed`: the error planted in it struck, and the engine raised it as its own.

    An engine that shows whole model calls gives `calls`; else `rows`, the token ids fed by each model call in order, and
    `logits`, the last row `[V]` that each of them gave. `logprobs`: per generated token the log-probabilities shown, in nats.
    """

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
    rows: tuple[int, ...] | None = None
    logits: tuple[NDArray[np.float32], ...] | None = None
    logprobs: tuple[Mapping[int, float], ...] | None = None
    seeded: Kv | None = None
    end: Kv | None = None
    pool: Pool | None = None
    failed: bool = False

    @property
    def last_rows(self) -> tuple[NDArray[np.float32], ...] | None:
        """The last row of logits `[V]` of each model call; None where the engine does not show it."""
        return tuple(call.logits for call in self.calls) if self.calls is not None else self.logits

    @property
    def fed_rows(self) -> tuple[int, ...] | None:
        """Token ids fed by each model call; None where the engine does not show it."""
        return tuple(call.rows for call in self.calls) if self.calls is not None else self.rows
