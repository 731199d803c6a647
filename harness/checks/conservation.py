"""Page accounting when no turn runs."""

from __future__ import annotations

from collections import Counter

from ..arms.record import TurnRecord, add
from ..contract.verdict import CheckResult


def conservation(record: TurnRecord) -> CheckResult:
    """`free + held == total`; the free list has no duplicates; at idle each page is held once for each published prefix
    that ends in it, and nothing else holds any.

    Cannot see: which bytes a page holds (kv_pages).
    """
    pool = record.warm.pool
    if pool is None and record.foreign:
        return CheckResult(not_applicable="the subject declares no page pool")
    if pool is None:
        return CheckResult(not_observable="the subject does not show its page accounting")
    result = CheckResult(compared=1)
    held = Counter(pool.entries.values())
    expected = [held.get(page, 0) for page in range(pool.total)]
    laws = (
        ("duplicates", "the free list names a page twice", sorted(pool.free), sorted(set(pool.free))),
        ("holders", "holders at idle are not the published prefixes", list(pool.holders), expected),
        ("free", "free pages are not those that nobody holds", sorted(pool.free),
         [page for page in range(pool.total) if not pool.holders[page]]),
    )  # fmt: skip
    for component, message, left, right in laws:
        if left != right:
            add(result, record, check="conservation", arm="law", component=component, place="page pool",
                message=message, left=_short(left, right), right=_short(right, left))  # fmt: skip
    return result


def _short(values: list[int], other: list[int]) -> str:
    """The entries around the first that differs; whole lists are noise."""
    at = next((i for i, (a, b) in enumerate(zip(values, other, strict=False)) if a != b), min(len(values), len(other)))
    return f"{values[max(at - 2, 0) : at + 3]} from entry {max(at - 2, 0)} ({len(values)} in all)"
