"""Faults in `engine/kv/buffers.py`: growth and rewind."""

from __future__ import annotations

from ..mutant import Mutant

_FILE = "engine/kv/buffers.py"
_KEPT = "        if self._length:\n            fresh[:, :, : self._length, :] ="
_OWN = ("native", "ort")

MUTANTS = (
    Mutant(
        id="growth-at-old-stride",
        file=_FILE,
        text="fresh[:, :, : self._length, :] = self._pairs[layer][part][:, :, : self._length, :]",
        replacement="old = self._pairs[layer][part].reshape(-1)\n            fresh.reshape(-1)[: old.size] = old",
        kind="capacity_growth",
        source="https://github.com/microsoft/onnxruntime/pull/31968",
        expected_check="kv_end",
        note="Growth copies the bytes as they lie: every head but the first is at the wrong place.",
        fixture=("fixtures/zoo/llama-genai-fp32",),
        backend=_OWN,
    ),
    Mutant(
        id="growth-first-pair-only",
        file=_FILE,
        text=_KEPT,
        replacement="        if self._length and layer == 0:\n            fresh[:, :, : self._length, :] =",
        kind="capacity_growth",
        source="https://github.com/justinchuby/onnx-genai/commit/0c652927cd5f59e5bc35b2e49418af14e470d664",
        expected_check="kv_end",
        note="Only the first layer survives growth.",
        fixture=("fixtures/zoo/llama-genai-fp32",),
        backend=_OWN,
    ),
    Mutant(
        id="growth-keys-only",
        file=_FILE,
        text=_KEPT,
        replacement="        if self._length and part is Part.KEY:\n            fresh[:, :, : self._length, :] =",
        kind="capacity_growth",
        source="https://github.com/justinchuby/onnx-genai/commit/0c652927cd5f59e5bc35b2e49418af14e470d664",
        expected_check="kv_end",
        note="Only keys survive growth.",
    ),
    Mutant(
        id="growth-loses-history",
        file=_FILE,
        text=_KEPT,
        replacement="        if False:\n            fresh[:, :, : self._length, :] =",
        kind="capacity_growth",
        source="https://github.com/microsoft/onnxruntime/pull/31968",
        expected_check="poison",
        note="A grown buffer holds only what comes after.",
        fixture=("fixtures/zoo/llama-genai-fp32",),
        backend=_OWN,
    ),
    Mutant(
        id="growth-one-position-short",
        file=_FILE,
        text="fresh[:, :, : self._length, :] = self._pairs[layer][part][:, :, : self._length, :]",
        replacement="fresh[:, :, : self._length - 1, :] = self._pairs[layer][part][:, :, : self._length - 1, :]",
        kind="capacity_growth",
        source="https://github.com/ml-explore/mlx-examples/issues/977",
        expected_check="kv_end",
        note="The last position before growth is lost.",
    ),
    Mutant(
        id="rewind-to-0-ignored",
        file=_FILE,
        text="        self._length = n\n",
        replacement="        self._length = n or self._length\n",
        kind="stale_kv_after_rewind",
        source="https://github.com/huggingface/transformers/issues/47433",
        expected_check="feeds",
        note="A rewind to nothing, so every reset, leaves all of it.",
    ),
    Mutant(
        id="keys-read-for-values",
        file=_FILE,
        text="        return self._xp.reshape(self._pairs[layer][part], (-1,)), physical\n",
        replacement="        return self._xp.reshape(self._pairs[layer][Part.KEY], (-1,)), physical\n",
        kind="kv_layout_stride",
        source="https://github.com/huggingface/transformers/issues/34232",
        expected_check="kv_pages",
        note="Mirror and seed see the keys in both places.",
    ),
    Mutant(
        id="buffers-logical-stride",
        file=_FILE,
        text="physical = Physical(heads=spec.heads, capacity=self._capacity, head_dim=spec.head_dim)",
        replacement="physical = Physical(heads=spec.heads, capacity=self._length, head_dim=spec.head_dim)",
        kind="kv_layout_stride",
        source="https://github.com/ROCm/hip-ep/pull/989",
        expected_check="kv_pages",
        note="The buffer says that its heads lie as far apart as it is filled.",
        backend=_OWN,
    ),
    Mutant(
        id="empty-fork-shares-buffers",
        file=_FILE,
        text="        twin = KvBuffers(",
        replacement="        if not self._length:\n            return self\n        twin = KvBuffers(",
        kind="cow_missing",
        expected_check="reuse",
        note="A fork of a state that was rewound to nothing appends to its origin's buffer.",
    ),
)
