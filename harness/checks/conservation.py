"""Page accounting when no turn runs."""

from __future__ import annotations

from collections import Counter

from .look import Look
from .registry import check


@check(order=61, needs=("pool", "pages"), after_failure=True)
def conservation(look: Look) -> None:
    """`free + held == total`; the free list has no duplicates; at idle each page is held once for each published prefix
    that ends in it, and nothing else holds any.

    Cannot see: which bytes a page holds (kv_pages).
    """
    pool = look.record.warm.pool
    assert pool is not None
    look.compared()
    held = Counter(pool.entries.values())
    expected = [held.get(page, 0) for page in range(pool.total)]
    unheld = [page for page in range(pool.total) if not pool.holders[page]]
    laws = (
        ("duplicates", "the free list names a page twice", sorted(pool.free), sorted(set(pool.free))),
        ("holders", "holders at idle are not the published prefixes", list(pool.holders), expected),
        ("free", "free pages are not those that nobody holds", sorted(pool.free), unheld),
    )
    for component, message, left, right in laws:
        if left != right:
            said, wanted = _short(left, right), _short(right, left)
            look.find("law", message, said, wanted, component=component, place="page pool")


def _short(values: list[int], other: list[int]) -> str:
    """The entries around the first that differs; whole lists are noise."""
    at = next((i for i, (a, b) in enumerate(zip(values, other, strict=False)) if a != b), min(len(values), len(other)))
    return f"{values[max(at - 2, 0) : at + 3]} from entry {max(at - 2, 0)} ({len(values)} in all)"
