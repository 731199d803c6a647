"""Point (b): the live cache after seeding or rewinding, before the first step."""

from __future__ import annotations

from .look import Look
from .registry import check


@check(order=30, needs=("state", "seed", "matched kv", "hit", "as planned"))
def kv_seed(look: Look) -> None:
    """What a warm turn starts from is bit for bit what the matched arm computed for those positions.

    Cannot see: a turn that reuses nothing (there is nothing to seed), nor a fault that an identical fault in `bare`
    would hide; the closed form sees that.
    """
    warm, matched = look.record.warm, look.record.matched
    assert warm.seeded is not None
    assert matched is not None
    assert matched.seeded is not None
    look.kv("matched", warm.seeded, matched.seeded, "seed")
