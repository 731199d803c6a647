"""The same request on an engine that has never seen anything."""

from __future__ import annotations

from ..arms.compare import elided, first_difference, first_token_difference
from ..arms.near_tie import explained_by_schedule
from ..arms.record import TurnRecord, add, compare_kv
from ..contract.verdict import CheckResult, Level


def cold(record: TurnRecord) -> CheckResult:
    """Cold and warm agree: to the last bit where the numerics do not depend on the schedule, else in tokens.

    The cold arm proves that it is one: it must report `reused == 0`. Where bits may legally differ, a differing token
    passes only as a near-tie that other legal schedules of the oracle show too.
    Cannot see: a fault that cold and warm share (closed form and oracle see that).
    """
    if record.cold is None:
        return CheckResult(not_applicable="the cold arm was not run")
    result = CheckResult(compared=1)
    uncounted = record.cold.reused is None and record.capabilities.level < Level.L1  # the adapter alone vouches for it
    if record.cold.reused != 0 and not uncounted:
        add(result, record, check="cold", arm="cold", component="control", place="reused count of the cold arm",
            message="the cold arm is not cold", left="0 expected", right=str(record.cold.reused))  # fmt: skip
        return result
    at = first_token_difference(record.warm.tokens, record.cold.tokens)
    exact = record.capabilities.invariant or record.closed is not None
    if at is not None and (exact or not explained_by_schedule(record, record.cold.tokens, at)):
        add(result, record, check="cold", arm="cold", component="tokens", step=at, place=f"generated token {at}",
            message=f"the reply differs from token {at} on",
            left=elided(record.warm.tokens, at), right=elided(record.cold.tokens, at))  # fmt: skip
    if exact and at is None:
        _bits(result, record)
    return result


def _bits(result: CheckResult, record: TurnRecord) -> None:
    assert record.cold is not None
    warm, cold_turn = record.warm, record.cold
    warm_rows, cold_rows = warm.last_rows, cold_turn.last_rows
    if warm_rows and cold_rows:
        replies = max(len(warm.tokens), 1)
        pairs = zip(warm_rows[-replies:], cold_rows[-replies:], strict=True)
        for step, (left, right) in enumerate(pairs):
            result.compared += right.size
            found = first_difference(left, right)
            if found is not None:
                add(result, record, check="cold", arm="cold", component="logits", step=step,
                    place=f"logits of token {step}, entry {found.index}",
                    message=f"logits differ ({found.count} of {found.total})", left=found.left, right=found.right)  # fmt: skip
                break
    if warm.end is not None and cold_turn.end is not None:
        compare_kv(result, record, warm.end, cold_turn.end, check="cold", arm="cold", phase="end of turn")
