"""What a running turn holds: claimed pages, reserved pages, one pin; room made by the rules, everything given back."""

from __future__ import annotations

import numpy as np
import pytest

from warmcold.engine.backends.buffered import BufferState
from warmcold.engine.contract.arrays import HOST
from warmcold.engine.contract.probe import no_probe
from warmcold.engine.kv.buffers import KvBuffers, KvOptions
from warmcold.engine.kv.layout import KvGeometry, LayerKv, Part
from warmcold.engine.kv.mirror import PageTable
from warmcold.engine.kv.pages import PagePool
from warmcold.engine.kv.prefix_cache import Node, PagedPrefixCache

ID = b"one"
GEOMETRY = KvGeometry(layers=(LayerKv(heads=1, head_dim=1),))
TOKENS = tuple(range(1, 21))


def state_of(length: int) -> BufferState:
    """A state in which position p holds p."""
    buffers = KvBuffers(GEOMETRY, np, KvOptions(min_capacity=8, max_context=64))
    buffers.reserve(max(length, 1))
    for part in Part:
        buffers.append(0, part, np.arange(length, dtype=np.float32).reshape(1, 1, length, 1))
    buffers.advance(length)
    return BufferState(buffers, HOST, no_probe)


def paging(pages: int) -> tuple[PagePool, PagedPrefixCache]:
    """A pool with pages of 4 positions, and its cache."""
    pool = PagePool(GEOMETRY, page_size=4, pages=pages)
    return pool, PagedPrefixCache(pool)


def published(pool: PagePool, cache: PagedPrefixCache, length: int, first: int = 1) -> Node:
    """A prefix of `length` positions that an earlier turn left, beginning with the token `first`."""
    tokens = (first, *TOKENS[1:length])
    table = PageTable(pool, cache)
    assert table.claim(None, 0, 0)
    table.mirror(state_of(length), length)
    table.publish(ID, tokens, partial=True)
    table.release()
    hit = cache.look_up(ID, tokens)
    assert hit is not None
    assert hit.length == length
    return hit


def balance(pool: PagePool, cache: PagedPrefixCache, *tables: PageTable) -> None:
    """Conservation: every reference is a table's or the cache's."""
    cache.check_invariants()
    pool.check_invariants([*cache.held_pages(), *(page for table in tables for page in table.held_pages())])


@pytest.mark.parametrize(
    ("n", "pages", "pinned"), [(10, 3, 8), (9, 3, 8), (8, 2, 8), (7, 2, 4), (4, 1, 4), (3, 1, 0), (1, 1, 0), (0, 0, 0)]
)
def test_a_claim_holds_the_pages_that_its_positions_need(n: int, pages: int, pinned: int) -> None:
    """The first pages of the hit, one reference on each, and a pin on the deepest full page within the cut."""
    pool, cache = paging(6)
    hit = published(pool, cache, 10)
    cache.pin(hit)
    table = PageTable(pool, cache)
    assert table.claim(hit, n, 2)
    assert (table.length, table.held_pages()[:pages]) == (n, hit.pages()[:pages])
    assert [pool.holders(page) for page in hit.pages()] == [2] * pages + [1] * (3 - pages)
    assert [pool.holders(page) for page in table.held_pages()[pages:]] == [1, 1]
    cache.unpin(hit)
    assert {node.length for _, node in cache.nodes() if node.pins} == ({pinned} if pinned else set())
    balance(pool, cache, table)


@pytest.mark.parametrize(("need", "left"), [(0, 3), (1, 3), (2, 3), (3, 2), (4, 1), (5, 0)])
def test_room_is_made_for_what_is_missing_and_no_more(need: int, left: int) -> None:
    """Free pages first; then as many evictions as pages are short."""
    pool, cache = paging(5)
    published(pool, cache, 12)
    table = PageTable(pool, cache)
    assert table.claim(None, 0, need)
    assert (len(table.held_pages()), len(cache.held_pages())) == (need, left)
    assert pool.free == 5 - need - left
    balance(pool, cache, table)


def test_a_claim_that_cannot_be_met_holds_nothing_and_evicts_nothing() -> None:
    """One page more than is free or could be: False, and the cache is as it was."""
    pool, cache = paging(5)
    hit = published(pool, cache, 12)
    table = PageTable(pool, cache)
    assert not table.claim(None, 0, 6)
    cache.pin(hit)
    assert not table.claim(hit, 12, 3)
    assert (table.held_pages(), table.length, len(cache.held_pages()), pool.free) == ([], 0, 3, 2)
    assert [node.pins for node in hit.path()] == [0, 0, 1]
    balance(pool, cache, table)


def test_room_never_comes_out_of_what_is_claimed() -> None:
    """The pinned hit stays although it is the oldest; the other prefix goes."""
    pool, cache = paging(4)
    hit = published(pool, cache, 8)
    published(pool, cache, 8, first=9)
    cache.pin(hit)
    table = PageTable(pool, cache)
    assert table.claim(hit, 8, 2)
    assert cache.look_up(ID, TOKENS) is hit
    assert cache.look_up(ID, (9, *TOKENS[1:])) is None
    balance(pool, cache, table)


def test_reserved_pages_are_used_before_the_pool_is_asked() -> None:
    """What was reserved serves the turn: the pool keeps its free pages until the reserve is used up."""
    pool, cache = paging(4)
    table = PageTable(pool, cache)
    assert table.claim(None, 0, 2)
    reserved = set(table.held_pages())
    table.mirror(state_of(8), 8)
    assert (set(table.held_pages()), pool.free) == (reserved, 2)
    table.mirror(state_of(9), 9)
    assert (len(table.held_pages()), pool.free) == (3, 1)


def test_a_claim_that_splits_a_page_writes_into_a_copy() -> None:
    """The published page keeps its bytes; the table's copy has the shared head of it and the new tail."""
    pool, cache = paging(4)
    hit = published(pool, cache, 8)
    cache.pin(hit)
    table = PageTable(pool, cache)
    assert table.claim(hit, 6, 1)
    cache.unpin(hit)
    other = state_of(8)
    for part in Part:
        other.buffers.array(0, part)[:, :, 6:] += 100
    table.mirror(other, 8)
    copy = table.held_pages()[1]
    assert pool.rows(hit.pages()[1], 0, Part.KEY).ravel().tolist() == [4, 5, 6, 7]
    assert pool.rows(copy, 0, Part.KEY).ravel().tolist() == [4, 5, 106, 107]
    assert pool.rows(copy, 0, Part.VALUE).ravel().tolist() == [4, 5, 106, 107]
    assert [pool.holders(page) for page in (*hit.pages(), copy)] == [2, 1, 1]
    balance(pool, cache, table)


def test_a_claim_publishes_behind_what_it_claimed() -> None:
    """A cut inside a page goes on behind the last full one, beside what is there; the branch shares the pages above."""
    pool, cache = paging(6)
    hit = published(pool, cache, 8)
    cache.pin(hit)
    table = PageTable(pool, cache)
    assert table.claim(hit, 6, 2)
    cache.unpin(hit)
    context = (*TOKENS[:6], 30, 31, 32)
    table.mirror(state_of(9), 9)
    table.publish(ID, context, partial=True)
    branch = cache.look_up(ID, context)
    assert branch is not None
    assert [node.tokens for node in branch.path()] == [TOKENS[:4], (5, 6, 30, 31), (32,)]
    assert branch.pages() == table.held_pages()
    assert branch.pages()[0] == hit.pages()[0]
    assert cache.look_up(ID, TOKENS) is hit
    balance(pool, cache, table)


def test_the_deepest_full_page_is_pinned_while_the_turn_runs() -> None:
    """One pin in all, which moves on with each publication, and goes with the table."""
    pool, cache = paging(4)
    table = PageTable(pool, cache)
    assert table.claim(None, 0, 0)
    for length, pinned in ((3, []), (4, [4]), (9, [8]), (12, [12])):
        table.mirror(state_of(length), length)
        table.publish(ID, TOKENS, partial=True)
        assert [node.length for _, node in cache.nodes() if node.pins] == pinned
        assert all(node.pins <= 1 for _, node in cache.nodes())
    table.release()
    assert not any(node.pins for _, node in cache.nodes())


def test_release_gives_everything_back_once() -> None:
    """Claimed, mirrored and reserved pages and the pin; a second release finds nothing to give."""
    pool, cache = paging(6)
    hit = published(pool, cache, 8)
    cache.pin(hit)
    table = PageTable(pool, cache)
    assert table.claim(hit, 8, 3)
    table.mirror(state_of(10), 10)
    assert len(table.held_pages()) == 5
    for _ in range(2):
        table.release()
        assert (table.held_pages(), pool.free) == ([], 4)
        balance(pool, cache)
    cache.unpin(hit)
    cache.clear()
    assert pool.free == pool.total
