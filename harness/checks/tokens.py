"""The tokens of a warm turn against the matched arm's."""

from __future__ import annotations

from ..arms.compare import elided, first_token_difference
from ..arms.record import NO_MATCHED, TurnRecord, add
from ..contract.verdict import CheckResult


def tokens(record: TurnRecord) -> CheckResult:
    """Warm and matched give the same tokens, and as many as were asked for.

    Cannot see: most faults. Tokens often do not notice; see the other checks and `warmcold sensitivity`.
    """
    if record.matched is None:
        return CheckResult(not_observable=NO_MATCHED)
    result = CheckResult(compared=1)
    at = first_token_difference(record.warm.tokens, record.matched.tokens)
    if at is not None:
        add(result, record, check="tokens", arm="matched", step=at, place=f"generated token {at}",
            message=f"the reply differs from token {at} on",
            left=elided(record.warm.tokens, at), right=elided(record.matched.tokens, at))  # fmt: skip
    return result
