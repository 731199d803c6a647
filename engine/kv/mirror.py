"""Present KV -> pages, and pages -> seed. One geometry for both backends.

A `PageTable` is one turn's claim: the pages that cover the positions mirrored so far, and pages reserved for more. It
holds one reference on each until `release`. Writing to a page that somebody else holds too copies it first.
"""

from __future__ import annotations

from collections.abc import Sequence

from ..contract.request import Identity, MirrorStop
from .layout import Part, Physical, append_token_kv, extract_present_tokens, narrow, write_present
from .pages import PagePool
from .prefix_cache import Node, PrefixCache
from .state import BackendState


def seed(state: BackendState, pool: PagePool, pages: Sequence[int], n: int) -> None:
    """Make `state` hold exactly the first `n` positions that `pages` cover."""

    def fill(layer: int, part: Part, flat: object, physical: Physical) -> None:
        dtype = pool.geometry.layers[layer].dtype
        for index, page in enumerate(pages):
            start = index * pool.page_size
            count = min(pool.page_size, n - start)
            if count > 0:
                rows = pool.rows(page, layer, part)[:, :count]
                write_present(flat, physical, start, state.device.from_host(narrow(rows, dtype)))

    state.load(n, fill)


class PageTable:
    """The pages of one running turn. `length` positions are mirrored; `stopped` says why no more will be."""

    def __init__(self, pool: PagePool, cache: PrefixCache) -> None:
        self._pool = pool
        self._cache = cache
        self._pages: list[int] = []
        self._reserved: list[int] = []
        self._tip: Node | None = None
        self.length = 0
        self.stopped: MirrorStop | None = None

    def claim(self, hit: Node | None, n: int, need: int) -> bool:
        """Hold the pages of the first `n` positions of `hit` and reserve `need` more; False, and nothing held, if not.

        `hit` must be pinned by the caller, so that making room cannot evict it.
        """
        short = need - self._pool.free
        if short > self._cache.evictable():
            return False
        if short > 0:
            self._cache.evict(short)
        if hit is not None and n:
            self._pages = hit.pages()[: -(-n // self._pool.page_size)]
            for held in self._pages:
                self._pool.retain(held)
            self._adopt(self._ancestor(hit, n))
        self._reserved = [page for _ in range(need) if (page := self._pool.take()) is not None]
        self.length = n
        return True

    def mirror(self, state: BackendState, stop: int) -> None:
        """Copy positions [length, stop) of the present KV into pages, as far as there are pages."""
        while self.length < stop and self.stopped is None:
            page = self._writable()
            if page is None:
                return
            at = self.length % self._pool.page_size
            count = min(stop - self.length, self._pool.page_size - at)
            self._copy_rows(state, page, at, count)
            self.length += count

    def publish(self, identity: Identity, context: Sequence[int], *, partial: bool) -> None:
        """Publish every page boundary mirrored so far and, with `partial`, the full mirrored length."""
        size = self._pool.page_size
        done = self._tip.length if self._tip is not None else 0
        while done < self.length:
            stop = min(done + size, self.length)
            if stop - done < size and not partial:
                return
            tokens = tuple(context[done:stop])
            node = self._cache.publish(identity, self._tip, tokens, self._pages[done // size])
            if stop - done < size:
                return
            self._adopt(node)
            done = stop

    def release(self) -> None:
        """Give up every page held and the pin. Idempotent."""
        for held in self._pages + self._reserved:
            self._pool.release(held)
        self._pages, self._reserved = [], []
        self._adopt(None)

    def held_pages(self) -> list[int]:
        """A page once for each reference that this table holds."""
        return self._pages + self._reserved

    def _adopt(self, node: Node | None) -> None:
        """Keep the deepest full page on the way pinned: publishing continues behind it."""
        if node is not None:
            self._cache.pin(node)
        if self._tip is not None:
            self._cache.unpin(self._tip)
        self._tip = node

    def _ancestor(self, hit: Node, n: int) -> Node | None:
        full = [node for node in hit.path() if node.length <= n and len(node.tokens) == self._pool.page_size]
        return full[-1] if full else None

    def _writable(self) -> int | None:
        """The page that holds position `length`, ours alone; None (and `stopped` says why) when there is none."""
        index = self.length // self._pool.page_size
        if index == len(self._pages):
            page = self._fresh()
            if page is None:
                self.stopped = MirrorStop.POOL_EXHAUSTED
                return None
            self._pages.append(page)
        elif self._pool.holders(self._pages[index]) > 1:
            fresh = self._fresh()
            if fresh is None:
                self.stopped = MirrorStop.NO_PAGE_FOR_COPY
                return None
            self._pool.bytes_of(fresh)[:] = self._pool.bytes_of(self._pages[index])
            self._pool.release(self._pages[index])
            self._pages[index] = fresh
        return self._pages[index]

    def _fresh(self) -> int | None:
        if self._reserved:
            return self._reserved.pop()
        if not self._pool.free:
            self._cache.evict(1)
        return self._pool.take()

    def _copy_rows(self, state: BackendState, page: int, at: int, count: int) -> None:
        start = self.length
        for layer in range(len(self._pool.geometry.layers)):
            for part in Part:
                flat, physical = state.present(layer, part)
                rows = [
                    state.device.to_host(row) for row in extract_present_tokens(flat, physical, start, start + count)
                ]
                append_token_kv(self._pool.rows(page, layer, part), at, rows)
