"""The ends of a page's life: clearing, what an observer sees, misuse that is said, and the cache that keeps nothing."""

from __future__ import annotations

import numpy as np
import pytest

from warmcold.engine.kv.layout import KvGeometry, LayerKv, Part
from warmcold.engine.kv.pages import PagePool
from warmcold.engine.kv.prefix_cache import Node, NullPrefixCache, PagedPrefixCache

ID, OTHER = b"one", b"two"
GEOMETRY = KvGeometry(layers=(LayerKv(heads=2, head_dim=3), LayerKv(heads=1, head_dim=5)))


def paging(pages: int = 6) -> tuple[PagePool, PagedPrefixCache]:
    """A pool with pages of 2 positions, and its cache."""
    pool = PagePool(GEOMETRY, page_size=2, pages=pages)
    return pool, PagedPrefixCache(pool)


def publish(
    pool: PagePool, cache: PagedPrefixCache, tokens: tuple[int, ...], identity: bytes = ID, parent: Node | None = None
) -> Node:
    """Publish one page behind `parent`; nobody but the cache holds it afterwards."""
    page = pool.take()
    assert page is not None
    node = cache.publish(identity, parent, tokens, page)
    pool.release(page)
    return node


def test_clear_drops_every_entry_of_every_identity() -> None:
    """Nothing is found and every page is free."""
    pool, cache = paging()
    publish(pool, cache, (3,), parent=publish(pool, cache, (1, 2)))
    publish(pool, cache, (1, 2), OTHER)
    assert pool.free == 3
    cache.clear()
    assert (pool.free, list(cache.nodes()), cache.look_up(ID, (1, 2)), cache.held_pages()) == (6, [], None, [])
    pool.check_invariants([])


def test_clear_under_a_running_turn_is_our_bug() -> None:
    """What is pinned is in use."""
    pool, cache = paging()
    cache.pin(publish(pool, cache, (1, 2)))
    with pytest.raises(AssertionError, match=r"^clear while a turn is running"):
        cache.clear()


def test_a_pin_is_undone_once() -> None:
    """One more is our bug."""
    pool, cache = paging()
    node = publish(pool, cache, (1, 2))
    cache.pin(node)
    cache.unpin(node)
    with pytest.raises(AssertionError, match=r"^unpin without pin"):
        cache.unpin(node)
    assert node.pins == 0


def test_a_node_stays_while_anybody_pins_it() -> None:
    """Pins are counted: two turns, and the first to end does not let go for the other."""
    pool, cache = paging()
    node = publish(pool, cache, (1, 2))
    cache.pin(node)
    cache.pin(node)
    cache.unpin(node)
    assert (cache.evictable(), cache.evict(1), cache.look_up(ID, (1, 2))) == (0, 0, node)
    cache.unpin(node)
    assert (cache.evictable(), cache.evict(1), cache.look_up(ID, (1, 2))) == (1, 1, None)


@pytest.mark.parametrize("tokens", [(), (1, 2, 3)])
def test_a_node_is_one_token_to_one_page(tokens: tuple[int, ...]) -> None:
    """Nothing, and more than a page, cannot be published."""
    pool, cache = paging()
    with pytest.raises(AssertionError):
        publish(pool, cache, tokens)


@pytest.mark.parametrize("pages", [0, 1, 3])
def test_pages_are_taken_in_order_and_an_observer_sees_a_copy(pages: int) -> None:
    """`free` and `holders` as they were, whatever happens to the pool afterwards."""
    pool, _ = paging(3)
    assert [pool.take() for _ in range(pages)] == list(range(pages))
    seen = pool.snapshot()
    assert (seen.free, seen.holders) == ((2, 1, 0)[: 3 - pages], (1,) * pages + (0,) * (3 - pages))
    pool.take()
    assert pool.snapshot() != seen or pages == 3


def test_misuse_of_a_page_names_the_page() -> None:
    """A free one retained or released, one that was never taken looked into."""
    pool, _ = paging(3)
    with pytest.raises(AssertionError, match=r"^page 1 is free and cannot be retained"):
        pool.retain(1)
    with pytest.raises(AssertionError, match=r"^page 2 is free and cannot be released"):
        pool.release(2)
    with pytest.raises(AssertionError, match=r"^page 0 was never taken"):
        pool.bytes_of(0)


def test_a_fresh_page_without_poison_is_zero_float32() -> None:
    """Every position of every layer, key and value: 2 * (6 + 5) floats a position."""
    pool, _ = paging(1)
    page = pool.take()
    assert page is not None
    assert (pool.bytes_of(page).dtype, pool.bytes_of(page).size) == (np.dtype(np.float32), 2 * 2 * (6 + 5))
    assert not pool.bytes_of(page).any()


def test_every_layer_and_part_has_floats_of_its_own() -> None:
    """Filled with numbers of their own, all regions keep them, in order, and together they are the page."""
    layers = (*GEOMETRY.layers, LayerKv(heads=3, head_dim=1), LayerKv(heads=1, head_dim=2))
    pool = PagePool(KvGeometry(layers=layers), page_size=2, pages=1)
    page = pool.take()
    assert page is not None
    regions = [pool.rows(page, layer, part) for layer in range(len(layers)) for part in Part]
    for number, region in enumerate(regions):
        region[:] = number
    assert [set(region.ravel().tolist()) for region in regions] == [{float(number)} for number in range(8)]
    assert sum(region.size for region in regions) == pool.bytes_of(page).size
    assert pool.bytes_of(page).tolist() == sorted(pool.bytes_of(page).tolist())


def test_a_page_taken_again_is_the_same_memory() -> None:
    """Allocated when first taken, and never again."""
    pool, _ = paging(1)
    page = pool.take()
    assert page is not None
    memory = pool.bytes_of(page)
    pool.release(page)
    assert pool.take() == page
    assert np.shares_memory(pool.bytes_of(page), memory)


def test_the_pool_notices_what_does_not_add_up() -> None:
    """A reference too many or too few, and free lists that are wrong, each named."""
    pool, _ = paging(2)
    page = pool.take()
    assert page == 0
    pool.check_invariants([0])
    for held in ([], [0, 0], [1]):
        with pytest.raises(AssertionError, match=r"^holders \[1, 0\] but references"):
            pool.check_invariants(held)
    pool._free.append(1)
    with pytest.raises(AssertionError, match=r"^free list has duplicates: \[1, 1\]"):
        pool.check_invariants([0])
    pool._free[:] = [0]
    with pytest.raises(AssertionError, match=r"^free list \[0\] vs \[1, 0\]"):
        pool.check_invariants([0])


@pytest.mark.parametrize("spoil", ["length", "tokens", "pins"])
def test_the_tree_notices_a_wrong_node(spoil: str) -> None:
    """A wrong length, a child filed under other tokens, a pin too few."""
    pool, cache = paging()
    node = publish(pool, cache, (3,), parent=publish(pool, cache, (1, 2)))
    cache.check_invariants()
    wrong = {"length": node.length + 1, "tokens": (4,), "pins": -1}
    setattr(node, spoil, wrong[spoil])
    with pytest.raises((AssertionError, KeyError)):
        cache.check_invariants()


def test_the_tree_notices_a_child_behind_a_partial_page() -> None:
    """Positions would be missing between the two."""
    pool, cache = paging()
    publish(pool, cache, (3,), parent=publish(pool, cache, (1,)))
    with pytest.raises(AssertionError, match=r"^an inner page is not full"):
        cache.check_invariants()


def test_the_null_cache_makes_true_nodes() -> None:
    """A node that nobody finds still says what it covers, so that publishing can go on behind it."""
    cache = NullPrefixCache()
    first = cache.publish(ID, None, (1, 2), 7)
    second = cache.publish(ID, first, (3,), 8)
    assert (first.tokens, first.page, first.parent, first.length) == ((1, 2), 7, None, 2)
    assert (second.tokens, second.page, second.parent, second.length) == ((3,), 8, first, 3)
    assert second.pages() == [7, 8]
