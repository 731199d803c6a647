"""Point (c): the live cache at the end of a turn."""

from __future__ import annotations

from ..arms.record import NO_MATCHED, TurnRecord, compare_kv
from ..contract.verdict import CheckResult


def kv_end(record: TurnRecord) -> CheckResult:
    """The retained cache holds exactly what was fed, and every bit is the matched arm's.

    Cannot see: rows beyond the logical length (poison sees whether anything reads them).
    """
    if not record.stateful:
        return CheckResult(not_applicable="the model carries no state")
    if record.warm.end is None:
        return CheckResult(not_observable="the subject does not show its KV")
    if record.matched is None or record.matched.end is None:
        return CheckResult(not_observable=NO_MATCHED)
    result = CheckResult()
    if record.warm.reused == record.plan.reused and record.warm.tokens == record.matched.tokens:
        compare_kv(
            result, record, record.warm.end, record.matched.end, check="kv_end", arm="matched", phase="end of turn"
        )
    else:
        result.not_applicable = "another count was reused or other tokens were fed; see reuse, efficiency and tokens"
    return result
