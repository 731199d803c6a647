"""Faults in `engine/turn/reuse.py`: the policy and its application."""

from __future__ import annotations

from ..mutant import Mutant

_FILE = "engine/turn/reuse.py"

MUTANTS = (
    Mutant(
        id="forced-reused-0",
        file=_FILE,
        text="    n = min(shared, current, wanted_from)\n",
        replacement="    n = wanted_from = 0\n",
        kind="false_miss",
        expected_check="efficiency",
        note="Nothing is ever reused; every token is right, only slow.",
        backend=("native", "ort"),
    ),
    Mutant(
        id="no-clamp",
        file=_FILE,
        text="n = min(shared, current, wanted_from)",
        replacement="n = min(shared, wanted_from)",
        kind="last_token_kv_missing",
        expected_check="efficiency",
        note="A cut beyond what the state holds: the store declines it and the turn starts cold.",
    ),
    Mutant(
        id="no-reset-after-declined-rewind",
        file=_FILE,
        text="not store.rewind_to(plan.n):\n        store.reset()\n",
        replacement="not store.rewind_to(plan.n):\n",
        kind="stale_kv_after_rewind",
        expected_check="feeds",
        note="Says that nothing is reused while the old tail is still held: the prompt runs on top of it.",
        backend=("native", "ort"),
    ),
    Mutant(
        id="declined-rewind-counted-as-done",
        file=_FILE,
        text="""not store.rewind_to(plan.n):
        store.reset()
        return ReusedPrefix(length=0, source=ReuseSource.NONE, reason=plan.reason, declined=True)
    assert store.kv_len == plan.n, f"plan says {plan.n} positions, the store holds {store.kv_len}"
""",
        replacement="not store.rewind_to(plan.n):\n        pass\n",
        kind="spec_rollback_residue",
        source="https://github.com/ml-explore/mlx-lm/pull/1109",
        expected_check="reuse",
        note="The answer of the rewind is ignored.",
    ),
    Mutant(
        id="no-reset",
        file=_FILE,
        text="    if isinstance(plan, Reset):\n        store.reset()\n",
        replacement="    if isinstance(plan, Reset):\n",
        kind="stale_kv_after_rewind",
        source="https://github.com/EricLBuehler/mistral.rs/issues/1026",
        expected_check="feeds",
        note="A prompt that shares nothing runs on top of the old conversation.",
        backend=("native", "ort"),
    ),
    Mutant(
        id="common-prefix-plus-1",
        file=_FILE,
        text="            return i\n    return bound",
        replacement="            return i + 1\n    return bound",
        kind="reuse_len_off_by_one",
        source="https://github.com/waybarrios/vllm-mlx/pull/311",
        expected_check="reuse",
        note="The first token that differs counts as shared.",
    ),
    Mutant(
        id="common-prefix-of-lengths",
        file=_FILE,
        text="        if left[i] != right[i]:\n",
        replacement="        if i and left[0] != right[0]:\n",
        kind="retokenisation_divergence",
        source="https://github.com/ggml-org/llama.cpp/issues/11970",
        expected_check="reuse",
        note="Prompts that begin alike count as shared over the shorter length, whatever their tokens.",
    ),
    Mutant(
        id="last-sampled-token-counted-as-cached",
        file=_FILE,
        text="return ReusedPrefix(length=plan.n, source=ReuseSource.RETAINED, reason=plan.reason)",
        replacement="return ReusedPrefix(\n        length=plan.n + (plan.reason is CutReason.CURRENT), "
        "source=ReuseSource.RETAINED, reason=plan.reason\n    )",
        kind="last_token_kv_missing",
        source="https://github.com/microsoft/onnxruntime-genai/pull/1110",
        expected_check="reuse",
        note="The reply's last token was sampled but never fed, and is taken for held.",
    ),
)
