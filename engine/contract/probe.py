"""Named points at which tests and tools may observe, raise, or (at `rewind`) decline.

A probe is a callable `(point, data) -> object | None`; it is passed in at `Engine.load` and never read from anywhere else.
`data` is a mapping that belongs to the call and may not be changed. What a probe raises reaches the caller as if the
component had failed there. Points:

| point | data | when |
|---|---|---|
| `planned` | source, reused, reason, gate | reuse is decided; nothing has been fed |
| `rewind` | from, to | before a rewind; returning False declines it |
| `seeded` | state, n | after seeding or rewinding, before the first step |
| `feed` | feeds | the named inputs of one model call, as the backend gets them |
| `step` | tokens, start, logits, state | after a model call, before mirroring |
| `append` | layer, part | before a layer's keys or values are written (native) |
| `grow` | layer, from, to | before a layer's buffers are relocated |
| `mirror` | start, stop | before positions are copied into pages |
| `publish` | length | before a prefix is published |
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

Probe = Callable[[str, Mapping[str, Any]], object]


def no_probe(point: str, data: Mapping[str, Any]) -> object:
    """Observe nothing."""
    return None
