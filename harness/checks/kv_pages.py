"""Point (a): published pages, against the step that wrote them. And which prefixes may be published at all."""

from __future__ import annotations

from ..arms.shadow import widened
from ..arms.twin import published_by
from ..contract.observation import PageKey, Pool
from .look import Look
from .registry import check


@check(order=31, needs=("state", "pool", "pages", "paged", "matched"), after_failure=True)
def kv_pages(look: Look) -> None:
    """Every published page holds, bit for bit, what the matched arm computed when that prefix was first published.

    All pages are compared after every turn, so that a later turn that writes into a shared page shows too. A prefix
    that the turn could not have published is a finding; one that is missing is legal only as an eviction under pressure.
    Cannot see: pages that are not published.
    """
    record, pool = look.record, look.record.warm.pool
    assert pool is not None
    look.compared()
    observed = set(pool.entries)
    for key in _sorted(observed - record.legal):
        message, said = "a prefix is published that was never mirrored as such", f"published, {len(key.tokens)} tokens"
        look.find("twin", message, said, "not published", component="published", phase="publish", place=_name(key))
    _missing(look, observed)
    _orphans(look, observed)
    _own_path(look, observed)
    _excess(look, observed)
    if record.warm.failed or record.agreed:
        _bytes(look, pool)


def _bytes(look: Look, pool: Pool) -> None:
    shadow = look.record.shadow_pages
    for key in _sorted(set(pool.entries) & set(shadow)):
        at = key.start(look.record.settings.page_size)
        look.kv("matched", pool.bytes[key], widened(shadow[key]), "page", at)


def _missing(look: Look, observed: set[PageKey]) -> None:
    """Prefixes that should be published and are not: without pressure there is no excuse."""
    record = look.record
    missing, free = record.required - observed, _free(look)
    if missing and record.wanted_pages <= free:
        key = _sorted(missing)[0]
        message = f"{len(missing)} prefixes are not published although the pool had room ({free} pages free)"
        expected = f"published, {len(key.tokens)} tokens"
        look.find("twin", message, "not published", expected, component="lost", phase="publish", place=_name(key))


def _orphans(look: Look, observed: set[PageKey]) -> None:
    """Leaves go first."""
    for key in _sorted(observed):
        parent = key.parent(look.record.settings.page_size)
        if parent is not None and parent not in observed:
            message = "a prefix is published whose parent page was evicted"
            look.find("twin", message, "leaf kept", "leaf first", component="orphan", phase="evict", place=_name(key))


def _excess(look: Look, observed: set[PageKey]) -> None:
    """No more goes than the turn needs pages, and one for the copy of a page that it splits."""
    record, free = look.record, _free(look)
    evicted = record.before - observed
    if len(evicted) > max(record.wanted_pages - free, 0) + 1:
        message = "more prefixes were evicted than the turn needed pages"
        said, needed = f"{len(evicted)} evicted", f"{record.wanted_pages} wanted, {free} free"
        look.find("twin", message, said, needed, component="excess", phase="evict", place="prefix cache")


def _own_path(look: Look, observed: set[PageKey]) -> None:
    """What the turn itself published is pinned while it runs: it is missing only if the turn alone filled the pool."""
    record, pages = look.record, look.record.settings.pages
    if record.warm.failed or record.plan.gate is not None:
        return
    own = published_by(record.fed, record.salt, record.settings.page_size)
    if own <= observed or (observed <= own and len(observed) >= pages - 1):
        return
    message = "prefixes on the turn's own path are gone although it did not fill the pool by itself"
    said = f"{len(own & observed)} of {len(own)} published, {len(observed - own)} others cached"
    wanted = f"all of them, or {pages - 1} of {pages} pages and no others"
    look.find("twin", message, said, wanted, component="own", phase="evict", place="prefix cache")


def _free(look: Look) -> int:
    """Pages that nobody held before the turn."""
    return look.record.settings.pages - len(look.record.before)


def _sorted(keys: set[PageKey] | frozenset[PageKey]) -> list[PageKey]:
    return sorted(keys, key=lambda key: (key.salt or "", len(key.tokens), key.tokens))


def _name(key: PageKey) -> str:
    salt = f", salt {key.salt!r}" if key.salt else ""
    return f"prefix of {len(key.tokens)} tokens ending {list(key.tokens[-4:])}{salt}"
