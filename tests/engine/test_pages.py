"""The page pool and the prefix cache: conservation after every operation, exact tokens, eviction by the rules."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from warmcold.engine.kv.layout import KvGeometry, LayerKv, Part
from warmcold.engine.kv.pages import PagePool
from warmcold.engine.kv.prefix_cache import Node, NullPrefixCache, PagedPrefixCache

ID = b"one"
OTHER = b"two"
GEOMETRY = KvGeometry(layers=(LayerKv(heads=2, head_dim=3), LayerKv(heads=1, head_dim=5)))


def pool_of(pages: int, page_size: int = 2) -> PagePool:
    """A pool over two layers of different shapes."""
    return PagePool(GEOMETRY, page_size=page_size, pages=pages)


def publish(cache: PagedPrefixCache, pool: PagePool, tokens: tuple[int, ...], identity: bytes = ID) -> Node:
    """Publish every page boundary of `tokens` and their whole length, from pages of their own."""
    node: Node | None = None
    for at in range(0, len(tokens), pool.page_size):
        page = pool.take()
        assert page is not None
        node = cache.publish(identity, node, tokens[at : at + pool.page_size], page)
        pool.release(page)
    assert node is not None
    return node


def test_layers_of_different_shapes_lie_side_by_side() -> None:
    """Each layer and part is its own region: writing one changes no other."""
    pool = pool_of(1)
    page = pool.take()
    assert page is not None
    pool.rows(page, 1, Part.KEY)[:] = 7
    assert pool.bytes_of(page).sum() == 7 * pool.rows(page, 1, Part.KEY).size
    assert pool.rows(page, 0, Part.VALUE).shape == (2, 2, 3)
    assert pool.bytes_of(page).size == 2 * GEOMETRY.position_floats


def test_a_page_is_free_when_its_last_holder_lets_go() -> None:
    """Holders are counted; only the last release frees."""
    pool = pool_of(1)
    page = pool.take()
    assert page is not None
    pool.retain(page)
    assert (pool.take(), pool.release(page), pool.release(page), pool.free) == (None, False, True, 1)


def test_using_a_free_page_is_our_bug() -> None:
    """Releasing or retaining a page that nobody holds asserts."""
    pool = pool_of(2)
    page = pool.take()
    assert page is not None
    pool.release(page)
    with pytest.raises(AssertionError, match="free"):
        pool.release(page)
    with pytest.raises(AssertionError, match="free"):
        pool.retain(page)


def test_fresh_pages_are_poisoned_every_time() -> None:
    """A page taken again holds the pattern, not what its last holder left."""
    pool = PagePool(GEOMETRY, page_size=2, pages=1, poison=4.5)
    for _ in range(2):
        page = pool.take()
        assert page is not None
        assert np.all(pool.bytes_of(page) == 4.5)
        pool.bytes_of(page)[:] = 1
        pool.release(page)


def test_lookup_finds_the_longest_published_prefix() -> None:
    """Page boundaries and the full length are published lengths; lengths between them are not."""
    pool = pool_of(8)
    cache = PagedPrefixCache(pool)
    publish(cache, pool, (1, 2, 3, 4, 5))
    for tokens, length in (((1, 2, 3, 4, 5, 9), 5), ((1, 2, 3, 4, 9), 4), ((1, 2, 3, 9), 2), ((1, 2, 3), 2)):
        hit = cache.look_up(ID, tokens)
        assert hit is not None
        assert hit.length == length
    assert cache.look_up(ID, (2, 1)) is None
    assert cache.look_up(OTHER, (1, 2, 3, 4)) is None


def test_the_first_publishers_page_stays() -> None:
    """Publishing a prefix again keeps the page that is there and retains no other."""
    pool = pool_of(4)
    cache = PagedPrefixCache(pool)
    first = publish(cache, pool, (1, 2))
    page = first.page
    publish(cache, pool, (1, 2))
    assert (first.page, pool.free) == (page, 3)


def test_eviction_takes_leaves_least_recently_used_first() -> None:
    """An inner page outlives the leaves behind it; a hit makes its whole path recent."""
    pool = pool_of(8)
    cache = PagedPrefixCache(pool)
    publish(cache, pool, (1, 2, 3, 4))
    publish(cache, pool, (1, 2, 5, 6))
    hit = cache.look_up(ID, (1, 2, 3, 4))
    assert hit is not None
    cache.pin(hit)
    cache.unpin(hit)
    assert cache.evict(1) == 1
    assert cache.look_up(ID, (1, 2, 5, 6)).length == 2  # type: ignore[union-attr]  # the shared page is still there
    assert cache.look_up(ID, (1, 2, 3, 4)).length == 4  # type: ignore[union-attr]  # found just above


def test_an_inner_page_is_as_recent_as_what_was_used_behind_it() -> None:
    """When its last leaf goes, the page competes with the age of that leaf, not of its own last touch."""
    pool = pool_of(8)
    cache = PagedPrefixCache(pool)
    publish(cache, pool, (1, 2))
    publish(cache, pool, (8, 9))
    publish(cache, pool, (1, 2, 3))
    assert cache.evict(1) == 1
    assert cache.look_up(ID, (8, 9)) is None


def test_what_is_pinned_is_not_evicted_nor_anything_above_it() -> None:
    """Making room frees nothing of a pinned path and says how little it freed."""
    pool = pool_of(4)
    cache = PagedPrefixCache(pool)
    node = publish(cache, pool, (1, 2, 3))
    cache.pin(node)
    assert (cache.evictable(), cache.evict(2)) == (0, 0)
    cache.unpin(node)
    assert (cache.evictable(), cache.evict(2), pool.free) == (2, 2, 4)


def test_a_page_that_somebody_else_holds_does_not_count_as_freed() -> None:
    """Eviction goes on until pages are really free, and ends when there are no more leaves."""
    pool = pool_of(4)
    cache = PagedPrefixCache(pool)
    node = publish(cache, pool, (1, 2))
    assert node.page is not None
    pool.retain(node.page)
    assert (cache.evictable(), cache.evict(1), pool.free) == (0, 0, 3)


def test_the_null_cache_is_a_cache_without_memory() -> None:
    """The dumb twin publishes into nowhere and finds nothing."""
    cache = NullPrefixCache()
    node = cache.publish(ID, None, (1, 2), 0)
    cache.pin(node)
    cache.unpin(node)
    assert (cache.look_up(ID, (1, 2)), cache.evict(1), cache.evictable(), list(cache.nodes())) == (None, 0, 0, [])
    cache.clear()


class CacheMachine(RuleBasedStateMachine):
    """Random traffic against a set of token prefixes: the same answers, and conservation after every step."""

    def __init__(self) -> None:
        super().__init__()
        self.pool = pool_of(6)
        self.cache = PagedPrefixCache(self.pool)
        self.model: set[tuple[bytes, tuple[int, ...]]] = set()
        self.pinned: list[tuple[bytes, tuple[int, ...], Node]] = []

    tokens = st.lists(st.integers(0, 1), min_size=1, max_size=5).map(tuple)
    ids = st.sampled_from((ID, OTHER))

    @rule(tokens=tokens, identity=ids)
    def publish(self, tokens: tuple[int, ...], identity: bytes) -> None:
        """Publish as far as there are pages."""
        node: Node | None = None
        for at in range(0, len(tokens), 2):
            page = self.pool.take()
            if page is None:
                return
            node = self.cache.publish(identity, node, tokens[at : at + 2], page)
            self.pool.release(page)
            self.model.add((identity, tokens[: at + 2]))

    @rule(tokens=tokens, identity=ids)
    def look_up(self, tokens: tuple[int, ...], identity: bytes) -> None:
        """The longest prefix in the set is what the tree finds."""
        best = max((len(p) for i, p in self.model if i == identity and tokens[: len(p)] == p), default=0)
        hit = self.cache.look_up(identity, tokens)
        assert (hit.length if hit is not None else 0) == best

    @rule(tokens=tokens, identity=ids)
    def pin(self, tokens: tuple[int, ...], identity: bytes) -> None:
        """Pin what a look-up finds."""
        hit = self.cache.look_up(identity, tokens)
        if hit is not None:
            self.cache.pin(hit)
            self.pinned.append((identity, tokens[: hit.length], hit))

    @precondition(lambda self: self.pinned)
    @rule()
    def unpin(self) -> None:
        """Undo the latest pin."""
        self.cache.unpin(self.pinned.pop()[2])

    @rule(pages=st.integers(1, 3))
    def evict(self, pages: int) -> None:
        """What went was allowed to go: nothing pinned or above it, children before parents, no more than asked for."""
        promised = self.cache.evictable()
        freed = self.cache.evict(pages)
        left = self._published()
        gone = self.model - left
        assert len(gone) == freed == min(pages, promised)
        for identity, prefix, _ in self.pinned:
            assert not gone & {(identity, step) for step in self._steps(prefix)}
        assert all(len(p) <= 2 or (i, p[: (len(p) - 1) // 2 * 2]) in left for i, p in left)
        self.model = left

    @invariant()
    def conserved(self) -> None:
        """Every page is free or held by exactly one published prefix."""
        self.cache.check_invariants()
        self.pool.check_invariants(self.cache.held_pages())
        assert self._published() == self.model

    def _steps(self, prefix: tuple[int, ...]) -> list[tuple[int, ...]]:
        """The published prefixes on the way to `prefix`: each page boundary before it, and itself."""
        return [*(prefix[:at] for at in range(self.pool.page_size, len(prefix), self.pool.page_size)), prefix]

    def _published(self) -> set[tuple[bytes, tuple[int, ...]]]:
        return {(i, tuple(t for step in node.path() for t in step.tokens)) for i, node in self.cache.nodes()}


def test_a_partial_page_beside_the_pinned_path_may_go() -> None:
    """A prefix of the pinned tokens that is no page of the pinned path protects nobody, so it is evicted."""
    machine = CacheMachine()
    machine.publish(tokens=(0, 0, 0), identity=ID)
    machine.evict(pages=1)
    machine.pin(tokens=(0, 0), identity=ID)
    machine.publish(tokens=(0,), identity=ID)
    machine.evict(pages=1)
    machine.conserved()
    assert machine.model == {(ID, (0, 0))}


CacheMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30, deadline=None)
TestCacheMachine = CacheMachine.TestCase
