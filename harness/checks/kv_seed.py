"""Point (b): the live cache after seeding or rewinding, before the first step."""

from __future__ import annotations

from ..arms.record import NO_MATCHED, TurnRecord, compare_kv
from ..contract.verdict import CheckResult


def kv_seed(record: TurnRecord) -> CheckResult:
    """What a warm turn starts from is bit for bit what the matched arm computed for those positions.

    Cannot see: a turn that reuses nothing (there is nothing to seed), nor a fault that an identical fault in `bare`
    would hide; the closed form sees that.
    """
    if not record.stateful:
        return CheckResult(not_applicable="the model carries no state")
    if record.warm.seeded is None:
        return CheckResult(not_observable="the subject does not show its KV")
    if record.matched is None or record.matched.seeded is None:
        return CheckResult(not_observable=NO_MATCHED)
    result = CheckResult()
    if not record.warm.reused:
        return CheckResult(not_applicable="nothing was reused")
    if record.warm.reused == record.plan.reused:
        compare_kv(
            result, record, record.warm.seeded, record.matched.seeded, check="kv_seed", arm="matched", phase="seed"
        )
    else:
        result.not_applicable = "another count was reused; see reuse and efficiency"
    return result
