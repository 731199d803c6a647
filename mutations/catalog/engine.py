"""Faults in `engine/engine.py`: what goes into the identity, and which requests are paged."""

from __future__ import annotations

from ..mutant import Mutant

_FILE = "engine/engine.py"

MUTANTS = (
    Mutant(
        id="identity-ignores-salt",
        file=_FILE,
        text='"salt": salt,',
        replacement='"salt": None,',
        kind="cache_key_missing_adapter",
        source="https://github.com/xLLM-AI/xllm/pull/2047",
        expected_check="reuse",
        note="Two tenants with the same words share KV.",
    ),
    Mutant(
        id="paged-gate-reverted",
        file=_FILE,
        text="        if not self.spec.has_state:\n            return GateReason.NO_KV\n",
        replacement="",
        kind="recurrent_not_restored_on_hit",
        expected_check="reuse",
        note="A decoder without KV is sent down the paged path.",
        fixture=("snap-stateless",),
        backend=("native", "ort"),
    ),
)
