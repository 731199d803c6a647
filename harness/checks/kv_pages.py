"""Point (a): published pages, against the step that wrote them. And which prefixes may be published at all."""

from __future__ import annotations

from collections.abc import Iterable

from ..arms.record import NO_MATCHED, TurnRecord, add, compare_kv
from ..arms.shadow import widened
from ..contract.observation import PageKey
from ..contract.verdict import CheckResult


def kv_pages(record: TurnRecord) -> CheckResult:
    """Every published page holds, bit for bit, what the matched arm computed when that prefix was first published.

    All pages are compared after every turn, so that a later turn that writes into a shared page shows too. A prefix
    that the turn could not have published is a finding; one that is missing is legal only as an eviction under pressure.
    Cannot see: pages that are not published.
    """
    pool = record.warm.pool
    if not record.stateful:
        return CheckResult(not_applicable="the model carries no state")
    if pool is None and record.foreign:
        return CheckResult(not_applicable="the subject declares no page pool")
    if pool is None:
        return CheckResult(not_observable="the subject does not show its pages")
    if not record.settings.pages:
        return CheckResult(not_applicable="the scenario runs unpaged")
    if record.matched is None:
        return CheckResult(not_observable=NO_MATCHED)
    observed = set(pool.entries)
    result = CheckResult(compared=1)
    for key in sorted(observed - record.legal, key=_order):
        add(result, record, check="kv_pages", arm="twin", component="published", phase="publish", place=_name(key),
            message="a prefix is published that was never mirrored as such",
            left=f"published, {len(key[1])} tokens", right="not published")  # fmt: skip
    _missing(result, record, observed)
    agreed = record.warm.tokens == record.matched.tokens and record.warm.reused == record.plan.reused
    if record.warm.failed or agreed:
        size = record.settings.page_size
        for key in sorted(observed & set(record.shadow_pages), key=_order):
            at = (len(key[1]) - 1) // size * size
            expected = widened(record.shadow_pages[key])
            compare_kv(result, record, pool.bytes[key], expected, check="kv_pages", arm="matched",
                       phase="page", at=at)  # fmt: skip
    return result


def _missing(result: CheckResult, record: TurnRecord, observed: set[PageKey]) -> None:
    """Prefixes that should be published and are not: each must be a legal eviction, or page exhaustion."""
    size, missing = record.settings.page_size, record.required - observed
    free = record.settings.pages - len(record.before)
    pressure = record.wanted_pages > free
    if missing and not pressure:
        for key in sorted(missing, key=_order)[:1]:
            add(result, record, check="kv_pages", arm="twin", component="lost", phase="publish", place=_name(key),
                message=f"{len(missing)} prefixes are not published although the pool had room ({free} pages free)",
                left="not published", right=f"published, {len(key[1])} tokens")  # fmt: skip
    for key in sorted(observed, key=_order):
        above = (len(key[1]) - 1) // size * size
        if above and (key[0], key[1][:above]) not in observed:
            add(result, record, check="kv_pages", arm="twin", component="orphan", phase="evict", place=_name(key),
                message="a prefix is published whose parent page was evicted", left="leaf kept", right="leaf first")  # fmt: skip
    _own_path(result, record, observed)
    evicted = record.before - observed
    if len(evicted) > max(record.wanted_pages - free, 0) + 1:
        add(result, record, check="kv_pages", arm="twin", component="excess", phase="evict", place="prefix cache",
            message="more prefixes were evicted than the turn needed pages",
            left=f"{len(evicted)} evicted", right=f"{record.wanted_pages} wanted, {free} free")  # fmt: skip


def _own_path(result: CheckResult, record: TurnRecord, observed: set[PageKey]) -> None:
    """What the turn itself published is pinned while it runs: it is missing only if the turn alone filled the pool."""
    if record.warm.failed or record.plan.gate is not None:
        return
    size, pages = record.settings.page_size, record.settings.pages
    own = {(record.salt, record.fed[:stop]) for stop in (*range(size, len(record.fed), size), len(record.fed))}
    if own <= observed or (observed <= own and len(observed) >= pages - 1):
        return
    add(result, record, check="kv_pages", arm="twin", component="own", phase="evict", place="prefix cache",
        message="prefixes on the turn's own path are gone although it did not fill the pool by itself",
        left=f"{len(own & observed)} of {len(own)} published, {len(observed - own)} others cached",
        right=f"all of them, or {pages - 1} of {pages} pages and no others")  # fmt: skip


def _order(key: PageKey) -> tuple[str, int, tuple[int, ...]]:
    return (key[0] or "", len(key[1]), key[1])


def _name(key: PageKey) -> str:
    shown: Iterable[int] = key[1][-4:]
    return f"prefix of {len(key[1])} tokens ending {list(shown)}" + (f", salt {key[0]!r}" if key[0] else "")
