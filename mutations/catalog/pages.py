"""Faults in `engine/kv/pages.py`: references, and where in a page a layer lies."""

from __future__ import annotations

from ..mutant import Mutant

_FILE = "engine/kv/pages.py"

MUTANTS = (
    Mutant(
        id="page-freed-with-a-holder",
        file=_FILE,
        text="        if self._holders[page]:\n            return False\n",
        replacement="        if self._holders[page] > 1:\n            return False\n",
        kind="evict_while_in_use",
        source="https://github.com/Avarok-Cybersecurity/atlas/pull/373",
        expected_check="conservation",
        note="A page is free while one still holds it.",
    ),
    Mutant(
        id="double-release",
        file=_FILE,
        text="        self._free.append(page)\n",
        replacement="        self._free += [page, page]\n",
        kind="refcount_double_free",
        source="https://github.com/vllm-project/vllm/issues/42571",
        expected_check="conservation",
        note="A freed page is listed as free twice, and later given to two.",
    ),
    Mutant(
        id="freed-page-lost",
        file=_FILE,
        text="        self._free.append(page)\n",
        replacement="",
        kind="refcount_leak",
        source="https://github.com/xLLM-AI/xllm/issues/828",
        expected_check="conservation",
        note="A page that nobody holds does not return to the free list.",
    ),
    Mutant(
        id="value-over-key",
        file=_FILE,
        text="start = self._offsets[layer] + int(part) * size",
        replacement="start = self._offsets[layer]",
        kind="oracle_blindness",
        source="https://github.com/huggingface/transformers/issues/34232",
        expected_check="kv_pages",
        note="Values are stored where the keys of that page lie.",
    ),
    Mutant(
        id="layers-share-a-page-block",
        file=_FILE,
        text="start = self._offsets[layer] + int(part) * size",
        replacement="start = self._offsets[0] + int(part) * size",
        kind="session_restore",
        source="https://github.com/justinchuby/onnx-genai/commit/6dd135bd0cefb286ec52c55bceaef1ecc9d7ac55",
        expected_check="kv_pages",
        note="Two layers of equal shape are stored in one place.",
    ),
)
