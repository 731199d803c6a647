"""Faults in `engine/kernels/attention.py`.

The matched arm computes with the same kernels, so an independent witness must see them.
"""

from __future__ import annotations

from ..mutant import Mutant

_FILE = "engine/kernels/attention.py"

MUTANTS = (
    Mutant(
        id="kv-head-by-modulo",
        file=_FILE,
        text="        grouped = xp.reshape(query, (rows, heads.kv, group, width))\n",
        replacement="        grouped = xp.reshape(query, (rows, group, heads.kv, width))\n"
        "        grouped = xp.permute_dims(grouped, (0, 2, 1, 3))\n",
        kind="gqa_head_mapping",
        source="https://github.com/EricLBuehler/candle-vllm/pull/52",
        expected_check="closed_form",
        note="Query heads find their key/value head by modulo instead of by group.",
    ),
    Mutant(
        id="kernel-mask-one-later",
        file=_FILE,
        text="seen = keys <= at\n",
        replacement="seen = keys <= at + 1\n",
        kind="chunked_prefill_boundary",
        source="https://github.com/GeeeekExplorer/nano-vllm/pull/213",
        expected_check="closed_form",
        note="Inside a chunk a row sees the next one.",
    ),
    Mutant(
        id="kernel-mask-without-past",
        file=_FILE,
        text="positions = start + xp.arange(first, stop, dtype=xp.int64) // group",
        replacement="positions = xp.arange(first, stop, dtype=xp.int64) // group",
        kind="mask_length_after_reuse",
        source="https://github.com/huggingface/candle/pull/3743",
        expected_check="closed_form",
        note="The causal mask ignores how much was held.",
    ),
    Mutant(
        id="rotary-restarts-at-0",
        file=_FILE,
        text="cache[start : start + rows, :]",
        replacement="cache[:rows, :]",
        kind="position_offset_after_reuse",
        source="https://github.com/huggingface/transformers/pull/37986",
        expected_check="cold",
        note="Every call is turned as if it began the text.",
        fixture=("fixtures/zoo/llama-genai-fp32",),
    ),
    Mutant(
        id="grouped-rows-by-head",
        file=_FILE,
        text="positions = start + xp.arange(first, stop, dtype=xp.int64) // group",
        replacement="positions = start + xp.arange(first, stop, dtype=xp.int64) % (rows // group)",
        kind="gqa_head_mapping",
        source="https://github.com/ekzhang/jax-js/pull/180",
        expected_check="closed_form",
        note="Rows are ordered by head, then position, in the mask alone.",
    ),
)
