"""The logits of every step of a warm turn against the matched arm's."""

from __future__ import annotations

from ..arms.compare import first_difference
from ..arms.record import NO_MATCHED, TurnRecord, add
from ..contract.verdict import CheckResult


def logits(record: TurnRecord) -> CheckResult:
    """Warm and matched agree to the last bit in the last row of logits of every call.

    Cannot see: rows other than the last of a chunk, nor KV faults that move no logit (the KV checks see those).
    """
    if record.matched is None:
        return CheckResult(not_observable=NO_MATCHED)
    rows = record.warm.last_rows
    if rows is None:
        return CheckResult(not_observable="the subject does not show logits")
    result = CheckResult()
    if record.warm.reused != record.plan.reused:
        return CheckResult(not_applicable="another count was reused, so the schedules differ; see reuse and efficiency")
    for step, (row, expected) in enumerate(zip(rows, record.matched.logits, strict=False)):
        result.compared += expected.size
        found = first_difference(row, expected)
        if found is not None:
            add(result, record, check="logits", arm="matched", step=step, place=f"call {step}, token {found.index}",
                message=f"logits differ ({found.count} of {found.total})", left=found.left, right=found.right)  # fmt: skip
            break
    return result
