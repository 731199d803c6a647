"""Our own operator `warmcold.KvAppend(past, new) -> present`: a concatenation along positions, done in the cache."""

from __future__ import annotations

from .call import Kernel, Table, versions

APPEND = ("warmcold", "KvAppend")

TABLE: Table = versions(
    APPEND[1],
    Kernel(lambda call: lambda slot, rows: slot.append(rows), moves=True, appends=((0, 0),)),
    1,
    domain=APPEND[0],
)
