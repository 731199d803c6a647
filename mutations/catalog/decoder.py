"""Faults in `engine/turn/decoder.py`: positions and masks."""

from __future__ import annotations

from ..mutant import Mutant

_FILE = "engine/turn/decoder.py"
_POSITIONS = ("snap-gqa-shared", "snap-decomposed")

MUTANTS = (
    Mutant(
        id="positions-restart-at-0",
        file=_FILE,
        text="list(range(start, stop))",
        replacement="list(range(start if len(rows) == 1 else 0, stop if len(rows) == 1 else len(rows)))",
        kind="position_offset_after_reuse",
        source="https://github.com/vllm-project/vllm-metal/pull/144",
        expected_check="feeds",
        note="A suffix of several tokens on a warm cache counts its positions from 0.",
        fixture=_POSITIONS,
    ),
    Mutant(
        id="positions-all-alike",
        file=_FILE,
        text="list(range(start, stop))",
        replacement="[start] * len(rows)",
        kind="position_offset_after_reuse",
        source="https://github.com/jundot/omlx/pull/2363",
        expected_check="feeds",
        note="Every row of a suffix gets the position of its first.",
        fixture=_POSITIONS,
    ),
    Mutant(
        id="mask-over-new-tokens-only",
        file=_FILE,
        text="[1] * stop)",
        replacement="[0] * start + [1] * len(rows))",
        kind="mask_length_after_reuse",
        source="https://github.com/huggingface/candle/pull/3743",
        expected_check="feeds",
        note="The mask hides what was reused.",
        fixture=("fixtures/zoo/llama-optimum-fp32",),
        backend=("ort",),
    ),
    Mutant(
        id="mask-one-short",
        file=_FILE,
        text="[1] * stop)",
        replacement="[1] * (stop - 1) + [int(start == 0)])",
        kind="mask_length_after_reuse",
        source="https://github.com/microsoft/onnxruntime/pull/29447",
        expected_check="feeds",
        note="On a warm cache the mask ends one position early.",
        fixture=("snap-decomposed",),
        backend=("native", "ort"),
    ),
    Mutant(
        id="mask-over-capacity",
        file=_FILE,
        text="[1] * stop)",
        replacement="[1] * max(8, 1 << (stop - 1).bit_length()))",
        kind="mask_length_after_reuse",
        source="https://github.com/justinchuby/onnx-genai/commit/f17f78ebfc5ee3970724f19c7cf98e49dd7b547a",
        expected_check="feeds",
        note="The mask is as long as the capacity bucket.",
        backend=("ort",),
    ),
)
