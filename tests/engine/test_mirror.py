"""Present KV into pages, and pages into a seed: each position at its place, and no byte that somebody else holds."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from warmcold.engine.backends.buffered import BufferState
from warmcold.engine.contract.arrays import HOST
from warmcold.engine.contract.probe import no_probe
from warmcold.engine.contract.request import MirrorStop
from warmcold.engine.kv.buffers import KvBuffers, KvOptions
from warmcold.engine.kv.layout import KvGeometry, LayerKv, Part, storage_dtype
from warmcold.engine.kv.mirror import PageTable, seed
from warmcold.engine.kv.pages import PagePool
from warmcold.engine.kv.prefix_cache import Node, PagedPrefixCache

ID = b"one"
GEOMETRY = KvGeometry(layers=(LayerKv(heads=2, head_dim=3), LayerKv(heads=3, head_dim=2)))
TOKENS = tuple(range(1, 21))
NOISE = -1.0


def numbers(layer: int, part: Part, start: int, stop: int, geometry: KvGeometry = GEOMETRY) -> np.ndarray[Any, Any]:
    """What positions [start, stop) of one layer and part hold, `[heads, n, head_dim]`: the number says where it lies."""
    spec = geometry.layers[layer]
    head, position, channel = np.ogrid[: spec.heads, start:stop, : spec.head_dim]
    values: np.ndarray[Any, Any] = layer * 1024 + part * 512 + head * 128 + position * 4 + channel
    return values.astype(storage_dtype(spec.dtype))


def state_of(length: int, geometry: KvGeometry = GEOMETRY, residue: float | None = NOISE) -> BufferState:
    """A state that holds `length` positions in buffers with spare capacity full of `residue`."""
    buffers = KvBuffers(geometry, np, KvOptions(min_capacity=8, max_context=64, poison=residue))
    buffers.reserve(max(length, 1))
    for layer in range(len(geometry.layers)):
        for part in Part:
            buffers.append(layer, part, numbers(layer, part, 0, length, geometry)[None])
    buffers.advance(length)
    return BufferState(buffers, HOST, no_probe)


class Paging:
    """A pool, its cache, and tables over both. Pages of 4 positions."""

    def __init__(self, pages: int, geometry: KvGeometry = GEOMETRY) -> None:
        self.pool = PagePool(geometry, page_size=4, pages=pages, poison=NOISE)
        self.cache = PagedPrefixCache(self.pool)

    def table(self, hit: Node | None = None, n: int = 0, need: int = 0) -> PageTable:
        """A table that claimed."""
        table = PageTable(self.pool, self.cache)
        assert table.claim(hit, n, need)
        return table

    def published(self, length: int, tokens: tuple[int, ...] = TOKENS, *, partial: bool = True) -> Node:
        """The node of a prefix that an earlier turn mirrored and published; its table is gone."""
        table = self.table()
        table.mirror(state_of(length), length)
        table.publish(ID, tokens, partial=partial)
        table.release()
        hit = self.cache.look_up(ID, tokens[:length])
        assert hit is not None
        return hit

    def rows(self, page: int, layer: int, part: Part) -> np.ndarray[Any, Any]:
        """The positions of a page, `[heads, 4, head_dim]`."""
        return self.pool.rows(page, layer, part)

    def balance(self, *tables: PageTable) -> None:
        """Conservation: every reference is a table's or the cache's."""
        self.cache.check_invariants()
        self.pool.check_invariants([*self.cache.held_pages(), *(page for t in tables for page in t.held_pages())])


def assert_covers(paging: Paging, pages: list[int], length: int) -> None:
    """`pages` hold positions [0, length), and noise behind them."""
    assert len(pages) == -(-length // 4)
    for index, page in enumerate(pages):
        for layer in range(len(GEOMETRY.layers)):
            for part in Part:
                count = min(4, length - index * 4)
                rows = paging.rows(page, layer, part)
                assert np.array_equal(rows[:, :count], numbers(layer, part, index * 4, index * 4 + count))
                assert np.all(rows[:, count:] == NOISE)


@pytest.mark.parametrize("stops", [(1,), (3, 4), (4, 8), (2, 3, 7, 9), (11,), (12,), (5, 5, 6)])
def test_pages_hold_each_position_at_its_place(stops: tuple[int, ...]) -> None:
    """However the steps cut the context: every layer, part and head; as many pages as needed; noise behind the last."""
    paging = Paging(4)
    table = paging.table()
    for stop in stops:
        table.mirror(state_of(stop), stop)
        assert (table.length, table.stopped) == (stop, None)
    assert_covers(paging, table.held_pages(), stops[-1])
    paging.balance(table)


def test_nothing_new_takes_nothing() -> None:
    """Mirroring up to where the table is, at a page boundary too, asks for no page and writes none."""
    paging = Paging(2)
    table = paging.table()
    table.mirror(state_of(4), 4)
    table.mirror(state_of(4), 4)
    table.mirror(state_of(4), 3)
    assert (table.length, len(table.held_pages()), paging.pool.free) == (4, 1, 1)


def test_only_what_is_new_is_written() -> None:
    """Positions that are mirrored already keep their bytes, whatever the state holds there now."""
    paging = Paging(2)
    table = paging.table()
    table.mirror(state_of(2), 2)
    changed = state_of(6)
    for layer in range(2):
        for part in Part:
            changed.buffers.array(layer, part)[:, :, :2] = 99
    table.mirror(changed, 6)
    assert_covers(paging, table.held_pages(), 6)


@pytest.mark.parametrize("n", [1, 3, 4, 5, 8, 9, 10])
def test_a_seed_is_what_was_mirrored(n: int) -> None:
    """From pages of 10 positions a state gets exactly its first n, and nothing behind them; what it held is replaced."""
    paging = Paging(3)
    table = paging.table()
    table.mirror(state_of(10), 10)
    state = state_of(2, residue=7.0)
    state.buffers.reserve(12)
    seed(state, paging.pool, table.held_pages(), n)
    assert state.kv_len == n
    for layer in range(2):
        for part in Part:
            array = state.physical(layer, part)[0]
            assert np.array_equal(array[:, :n], numbers(layer, part, 0, n))
            assert np.all(array[:, max(n, 2) :] == 7.0)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_seed_has_the_dtype_of_its_layer(dtype: str) -> None:
    """Layers of different dtypes in one model: pages are float32, buffers what each layer declares, bits unchanged."""
    layers = (LayerKv(heads=1, head_dim=2), LayerKv(heads=2, head_dim=2, dtype=dtype))
    geometry = KvGeometry(layers=layers)
    paging = Paging(2, geometry)
    source, table = state_of(6, geometry), paging.table()
    table.mirror(source, 6)
    state = state_of(0, geometry)
    seed(state, paging.pool, table.held_pages(), 6)
    for layer in range(2):
        for part in Part:
            left, right = state.physical(layer, part), source.physical(layer, part)
            assert left.dtype == right.dtype == storage_dtype(layers[layer].dtype)
            assert left[:, :, :6].tobytes() == right[:, :, :6].tobytes()


def test_a_partial_page_that_was_published_is_copied_before_more_goes_in() -> None:
    """The published page keeps its bytes to the last; the copy holds the old positions and the new."""
    paging = Paging(3)
    table = paging.table()
    table.mirror(state_of(6), 6)
    table.publish(ID, TOKENS, partial=True)
    before = table.held_pages()
    table.mirror(state_of(8), 8)
    after = table.held_pages()
    assert (before[0], len(after)) == (after[0], 2)
    assert before[1] != after[1]
    assert_covers(paging, before, 6)
    assert_covers(paging, after, 8)
    assert [paging.pool.holders(page) for page in (*before, after[1])] == [2, 1, 1]
    paging.balance(table)


def test_a_page_of_ones_own_is_written_where_it_is() -> None:
    """Nobody else holds it, so no copy is made and no second page is needed."""
    paging = Paging(1)
    table = paging.table()
    table.mirror(state_of(2), 2)
    before = table.held_pages()
    table.mirror(state_of(4), 4)
    assert (table.held_pages(), table.length, table.stopped) == (before, 4, None)
    assert_covers(paging, before, 4)


def test_a_full_page_that_was_published_needs_no_copy() -> None:
    """The next position lies in the next page."""
    paging = Paging(2)
    table = paging.table()
    table.mirror(state_of(4), 4)
    table.publish(ID, TOKENS, partial=True)
    table.mirror(state_of(5), 5)
    assert (table.stopped, paging.pool.free) == (None, 0)
    assert_covers(paging, table.held_pages(), 5)


def test_an_exhausted_pool_stops_mirroring_for_good() -> None:
    """What fits is mirrored, the reason is kept, and a page that becomes free later changes nothing: no gap arises."""
    paging = Paging(3)
    other = paging.table(need=1)
    table = paging.table()
    table.mirror(state_of(9), 9)
    assert (table.length, table.stopped) == (8, MirrorStop.POOL_EXHAUSTED)
    assert_covers(paging, table.held_pages(), 8)
    other.release()
    table.mirror(state_of(12), 12)
    assert (table.length, paging.pool.free) == (8, 1)
    paging.balance(table)


def test_no_page_for_the_copy_stops_before_the_write() -> None:
    """The shared page keeps its bytes and both its holders."""
    paging = Paging(2)
    hit = paging.published(6)
    paging.cache.pin(hit)
    table = paging.table(hit, 6)
    table.mirror(state_of(8), 8)
    assert (table.length, table.stopped) == (6, MirrorStop.NO_PAGE_FOR_COPY)
    assert table.held_pages() == hit.pages()
    assert_covers(paging, hit.pages(), 6)
    paging.balance(table)


def test_room_comes_from_the_cache_one_page_at_a_time() -> None:
    """With no free page the oldest unpinned leaf goes, and not one more than is needed now."""
    paging = Paging(3)
    paging.published(12)
    table = paging.table()
    table.mirror(state_of(4), 4)
    assert (len(paging.cache.held_pages()), table.stopped) == (2, None)
    table.mirror(state_of(5), 5)
    assert (len(paging.cache.held_pages()), table.stopped) == (1, None)
    assert_covers(paging, table.held_pages(), 5)


def test_a_free_page_is_taken_before_any_is_evicted() -> None:
    """What is cached stays while the pool has room."""
    paging = Paging(3)
    paging.published(4)
    table = paging.table()
    table.mirror(state_of(8), 8)
    assert (len(paging.cache.held_pages()), paging.pool.free) == (1, 0)


@pytest.mark.parametrize(
    ("length", "partial", "hits"),
    [(3, False, 0), (3, True, 3), (4, False, 4), (7, False, 4), (7, True, 7), (8, True, 8), (11, False, 8)],
)
def test_published_are_boundaries_and_with_partial_the_whole(length: int, partial: bool, hits: int) -> None:
    """Never past what was mirrored, each behind the last, and only under its identity."""
    paging = Paging(4)
    table = paging.table()
    table.mirror(state_of(length), length)
    table.publish(ID, TOKENS, partial=partial)
    hit = paging.cache.look_up(ID, TOKENS)
    assert (hit.length if hit is not None else 0) == hits
    assert (hit.pages() if hit is not None else []) == table.held_pages()[: -(-hits // 4)]
    assert {i for i, _ in paging.cache.nodes()} == ({ID} if hits else set())
    assert len(list(paging.cache.nodes())) == -(-hits // 4)
    paging.balance(table)


def test_publishing_goes_on_where_it_ended() -> None:
    """Step by step gives the tree that one publication gives; doing it twice changes nothing; tokens are the context's."""
    paging = Paging(4)
    table = paging.table()
    for length in (2, 5, 5, 9, 12):
        table.mirror(state_of(length), length)
        table.publish(ID, TOKENS, partial=False)
    assert sorted(node.length for _, node in paging.cache.nodes()) == [4, 8, 12]
    hit = paging.cache.look_up(ID, TOKENS)
    assert hit is not None
    assert [node.tokens for node in hit.path()] == [TOKENS[0:4], TOKENS[4:8], TOKENS[8:12]]
    paging.balance(table)


def test_who_publishes_second_goes_on_behind_the_first() -> None:
    """The first publisher's pages stay in the tree; the second's own are free once it lets go."""
    paging = Paging(6)
    first = paging.published(8)
    pages = first.pages()
    table = paging.table()
    table.mirror(state_of(12), 12)
    table.publish(ID, TOKENS, partial=True)
    hit = paging.cache.look_up(ID, TOKENS)
    assert hit is not None
    assert (hit.pages()[:2], hit.pages()[2]) == (pages, table.held_pages()[2])
    table.release()
    assert paging.pool.free == 3
    paging.balance()
