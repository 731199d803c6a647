"""Faults in `engine/kv/layout.py`: the geometry of a flat buffer."""

from __future__ import annotations

from ..mutant import Mutant

_FILE = "engine/kv/layout.py"

MUTANTS = (
    Mutant(
        id="head-stride-without-head-dim",
        file=_FILE,
        text="return self.capacity * self.head_dim",
        replacement="return self.capacity",
        kind="kv_layout_stride",
        source="https://github.com/justinchuby/onnx-genai/commit/7fa11d4eb88a7af52ed73f4df71f463c6c481964",
        expected_check="kv_pages",
        note="Heads lie a capacity apart, counted in positions.",
        backend=("native", "ort"),
    ),
    Mutant(
        id="mirror-head-fixed-at-0",
        file=_FILE,
        text="page_rows[head, at : at + row.shape[0]]",
        replacement="page_rows[0, at : at + row.shape[0]]",
        kind="kv_layout_stride",
        source="https://github.com/justinchuby/onnx-genai/commit/112d6e0650862f0439fb8333419d46416ae382d4",
        expected_check="kv_pages",
        note="Every head is mirrored into the first.",
    ),
    Mutant(
        id="seed-head-fixed-at-0",
        file=_FILE,
        text="flat[physical.span(head, start, stop)] = rows[head].reshape(-1)",
        replacement="flat[physical.span(head, start, stop)] = rows[0].reshape(-1)",
        kind="kv_layout_stride",
        source="https://github.com/justinchuby/onnx-genai/commit/112d6e0650862f0439fb8333419d46416ae382d4",
        expected_check="kv_seed",
        note="Every head is seeded from the first.",
        backend=("native", "ort"),
    ),
    Mutant(
        id="seed-first-head-only",
        file=_FILE,
        text="    stop = start + rows.shape[1]\n    for head in range(physical.heads):\n",
        replacement="    stop = start + rows.shape[1]\n    for head in range(1):\n",
        kind="multi_group_length_desync",
        source="https://github.com/sgl-project/sglang/pull/19897",
        expected_check="kv_seed",
        note="Heads after the first keep what fresh memory holds.",
    ),
    Mutant(
        id="span-one-later",
        file=_FILE,
        text="base = head * self.head_stride\n",
        replacement="base = head * self.head_stride + (self.head_dim if stop < self.capacity else 0)\n",
        kind="kv_layout_stride",
        source="https://github.com/justinchuby/onnx-genai/commit/e781eade357b25ed91e41a920cba054b6dac2c75",
        expected_check="kv_pages",
        note="Reads and writes lie one position too late where there is room: both directions agree with each other.",
    ),
    Mutant(
        id="sixteen-bit-integers-read-as-floats",
        file=_FILE,
        text='wide = rows.astype(np.float32, order="C")',
        replacement="wide = rows.view(np.uint16).astype(np.float32)",
        kind="kv_dtype_quant",
        expected_check="kv_pages",
        note="The bits of a 16-bit float are taken for a number: pages hold 15360 where the cache holds 1.",
        fixture=("snap-gqa-f16",),
        backend=("native", "ort"),
    ),
)
