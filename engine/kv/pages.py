"""The page pool: fixed-size blocks of KV positions on the host, held by reference.

A page stores float32 as `[layer, 2 (key, value), head, position in page, head_dim]`, flat, because heads and head_dim may
differ from layer to layer. Conservation: `free + held == total`, a held page has at least one holder, a free page none.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from .components import Component, all_resident
from .layout import FloatRows, KvGeometry, Part


@dataclass(frozen=True, kw_only=True)
class PoolSnapshot:
    """A pool at one moment: the numbers of its free pages, and of every page how many hold it."""

    free: tuple[int, ...]
    holders: tuple[int, ...]


class PagePool:
    """`pages` blocks of `page_size` positions. A page's bytes are allocated when it is first taken."""

    def __init__(self, geometry: KvGeometry, *, page_size: int, pages: int, poison: float | None = None) -> None:
        self.geometry = geometry
        self.page_size = page_size
        self.total = pages
        self._poison = poison
        self._free = list(range(pages - 1, -1, -1))
        self._holders = [0] * pages
        self._store: list[FloatRows | None] = [None] * pages
        self._offsets = self._layer_offsets()

    @property
    def free(self) -> int:
        """Pages that nobody holds."""
        return len(self._free)

    def holders(self, page: int) -> int:
        """How many hold `page`; 0 for a free one."""
        return self._holders[page]

    def take(self) -> int | None:
        """A page that nobody held, now held once; None when there is none."""
        if not self._free:
            return None
        page = self._free.pop()
        self._holders[page] = 1
        self._refresh(page)
        return page

    def retain(self, page: int) -> None:
        """One more holder of a held page."""
        assert self._holders[page] > 0, f"page {page} is free and cannot be retained"
        self._holders[page] += 1

    def release(self, page: int) -> bool:
        """One holder fewer; True when that freed the page."""
        assert self._holders[page] > 0, f"page {page} is free and cannot be released"
        self._holders[page] -= 1
        if self._holders[page]:
            return False
        self._free.append(page)
        return True

    def bytes_of(self, page: int) -> FloatRows:
        """The page's whole flat storage, `[page_size * position_floats]`; writes go through."""
        store = self._store[page]
        assert store is not None, f"page {page} was never taken"
        return store

    def rows(self, page: int, layer: int, part: Part) -> FloatRows:
        """One layer and part of a page as a view `[heads, page_size, head_dim]`; writes go through."""
        spec = self.geometry.layers[layer]
        size = spec.row_floats * self.page_size
        start = self._offsets[layer] + int(part) * size
        return self.bytes_of(page)[start : start + size].reshape(spec.heads, self.page_size, spec.head_dim)

    def check_invariants(self, held: Iterable[int]) -> None:
        """Assert conservation, given every reference that anybody holds (a page once per holder)."""
        counts = [0] * self.total
        for page in held:
            counts[page] += 1
        assert counts == self._holders, f"holders {self._holders} but references {counts}"
        assert len(set(self._free)) == len(self._free), f"free list has duplicates: {self._free}"
        assert {p for p in range(self.total) if not counts[p]} == set(self._free), f"free list {self._free} vs {counts}"

    def components(self) -> Sequence[Component]:
        """How what is published in pages may be cut; empty for a decoder without state."""
        return all_resident(self.geometry)

    def snapshot(self) -> PoolSnapshot:
        """For an observer: what the pool holds now, copied."""
        return PoolSnapshot(free=tuple(self._free), holders=tuple(self._holders))

    def _refresh(self, page: int) -> None:
        floats = self.geometry.position_floats * self.page_size
        store = self._store[page]
        if store is None:
            store = self._store[page] = np.zeros(floats, dtype=np.float32)
        if self._poison is not None:
            store[:] = self._poison

    def _layer_offsets(self) -> list[int]:
        offsets, at = [], 0
        for layer in self.geometry.layers:
            offsets.append(at)
            at += 2 * layer.row_floats * self.page_size
        return offsets
