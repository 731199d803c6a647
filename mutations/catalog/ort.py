"""Faults in `engine/backends/ort.py`: past tensors that come and go, and buffers bound in place."""

from __future__ import annotations

from ..mutant import Mutant

_FILE = "engine/backends/ort.py"
_GROWING = ("snap-gqa-growing", "snap-decomposed")
_CUT = "(_owned(key.numpy()[:, :, :n]), _owned(value.numpy()[:, :, :n]))"

MUTANTS = (
    Mutant(
        id="truncate-value-from-key",
        file=_FILE,
        text=_CUT,
        replacement="(_owned(key.numpy()[:, :, :n]), _owned(key.numpy()[:, :, :n]))",
        kind="kv_layout_stride",
        source="https://github.com/huggingface/transformers/issues/34232",
        expected_check="kv_seed",
        note="A rewind makes values of the keys.",
        fixture=_GROWING,
        backend=("ort",),
    ),
    Mutant(
        id="truncate-keeps-the-tail",
        file=_FILE,
        text=_CUT,
        replacement="(_owned(key.numpy()[:, :, -n:]), _owned(value.numpy()[:, :, -n:]))",
        kind="stale_kv_after_rewind",
        source="https://github.com/tenstorrent/tt-inference-server/pull/3968",
        expected_check="kv_seed",
        note="A rewind keeps the last n positions instead of the first.",
        fixture=("fixtures/zoo/llama-optimum-fp32",),
        backend=("ort",),
    ),
    Mutant(
        id="truncate-half",
        file=_FILE,
        text=_CUT,
        replacement="(_owned(key.numpy()[:, :, :n]), _owned(value.numpy()[:, :, -n:]))",
        kind="rewind_partial_state",
        source="https://github.com/justinchuby/onnx-genai/commit/acc472b745c94f54420ed6e79bd18fbee16b1cfa",
        expected_check="kv_seed",
        note="A rewind cuts the keys right and the values wrong.",
        fixture=("fixtures/zoo/llama-optimum-fp32",),
        backend=("ort",),
    ),
    Mutant(
        id="presents-adopted-swapped",
        file=_FILE,
        text="zip(values[::2], values[1::2], strict=True)",
        replacement="zip(values[1::2], values[::2], strict=True)",
        kind="oracle_blindness",
        source="https://github.com/justinchuby/onnx-genai/commit/112d6e0650862f0439fb8333419d46416ae382d4",
        expected_check="kv_end",
        note="The keys of a step are the values of the next.",
        fixture=("fixtures/zoo/llama-optimum-fp32",),
        backend=("ort",),
    ),
    Mutant(
        id="shared-layers-bound-to-one",
        file=_FILE,
        text="array = state.buffers.array(layer, part)",
        replacement="array = state.buffers.array(0, part)",
        kind="multi_group_length_desync",
        source="https://github.com/huggingface/transformers/pull/38156",
        expected_check="kv_end",
        note="Every layer is bound to the first layer's buffer.",
        backend=("ort",),
    ),
)
