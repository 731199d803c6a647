"""The same request on an engine that has never seen anything."""

from __future__ import annotations

from ..arms.compare import first_token_difference
from ..arms.near_tie import explained_by_schedule
from ..contract.observation import Observation
from ..contract.verdict import Level
from .look import Look
from .registry import check


@check(order=51, needs=("cold",))
def cold(look: Look) -> None:
    """Cold and warm agree: to the last bit where the numerics do not depend on the schedule, else in tokens.

    The cold arm proves that it is one: it must report `reused == 0`. Where bits may legally differ, a differing token
    passes only as a near-tie that other legal schedules of the oracle show too.
    Cannot see: a fault that cold and warm share (closed form and oracle see that).
    """
    record, other = look.record, look.record.cold
    assert other is not None
    look.compared()
    uncounted = other.reused is None and record.capabilities.level < Level.L1  # the adapter alone vouches for it
    if other.reused != 0 and not uncounted:
        place = "reused count of the cold arm"
        look.find("cold", "the cold arm is not cold", "0 expected", other.reused, component="control", place=place)
        return
    at = first_token_difference(record.warm.tokens, other.tokens)
    exact = record.capabilities.invariant or record.closed is not None
    if at is not None and (exact or not explained_by_schedule(record, other.tokens, at)):
        look.tokens("cold", other.tokens)
    if exact and at is None:
        _bits(look, record.warm, other)


def _bits(look: Look, warm: Observation, other: Observation) -> None:
    if warm.last_rows and other.last_rows:
        replies = max(len(warm.tokens), 1)
        look.logits("cold", zip(warm.last_rows[-replies:], other.last_rows[-replies:], strict=True), of="reply token")
    if warm.end is not None and other.end is not None:
        look.kv("cold", warm.end, other.end, "end of turn")
