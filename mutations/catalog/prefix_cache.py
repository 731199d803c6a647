"""Faults in `engine/kv/prefix_cache.py`: look up, publish, evict."""

from __future__ import annotations

from ..mutant import Mutant

_FILE = "engine/kv/prefix_cache.py"
_FOUND = "longest = next((node.children[key] for key in keys if key in node.children), None)"

MUTANTS = (
    Mutant(
        id="lookup-ignores-identity",
        file=_FILE,
        text="node = self._roots.get(identity)",
        replacement="node = self._roots.get(identity) or next(iter(self._roots.values()), None)",
        kind="cache_key_missing_media",
        source="https://github.com/sgl-project/sglang-omni/issues/258",
        expected_check="reuse",
        note="Who has published nothing yet is served from somebody else's pages.",
    ),
    Mutant(
        id="lookup-by-last-token",
        file=_FILE,
        text=_FOUND,
        replacement="longest = next((child for key in keys for have, child in node.children.items() "
        "if (len(have), have[-1]) == (len(key), key[-1])), None)",
        kind="cache_key_collision",
        source="https://github.com/openvinotoolkit/openvino.genai/issues/3722",
        expected_check="reuse",
        note="A weak hash of a page's tokens is believed without comparing the tokens.",
    ),
    Mutant(
        id="lookup-in-any-order",
        file=_FILE,
        text=_FOUND,
        replacement="longest = next((child for key in keys for have, child in node.children.items() "
        "if sorted(have) == sorted(key)), None)",
        kind="cache_key_collision",
        source="https://github.com/vllm-project/vllm/issues/44701",
        expected_check="reuse",
        note="The same tokens in another order hit.",
    ),
    Mutant(
        id="one-page-too-many",
        file=_FILE,
        text=_FOUND,
        replacement="longest = next((node.children[key] for key in keys if key in node.children), None)\n"
        "            longest = longest or next((c for have, c in node.children.items() if have[:1] == rest[:1]), None)",
        kind="block_table_wrong",
        source="https://github.com/ROCm/ATOM/pull/250",
        expected_check="reuse",
        note="A page of which only the first token agrees is attached too.",
    ),
    Mutant(
        id="partial-page-never-found",
        file=_FILE,
        text="for n in range(len(rest), 0, -1)",
        replacement="for n in range(len(rest), size - 1, -1)",
        kind="false_miss",
        source="https://github.com/vllm-project/vllm/pull/11186",
        expected_check="efficiency",
        note="Prefixes that end inside a page are published and never hit.",
    ),
    Mutant(
        id="shortest-page-wins",
        file=_FILE,
        text="for n in range(len(rest), 0, -1)",
        replacement="for n in range(1, len(rest) + 1)",
        kind="false_miss",
        source="https://github.com/ggml-org/llama.cpp/pull/21099",
        expected_check="efficiency",
        note="A partial page hides the whole one beside it.",
    ),
    Mutant(
        id="second-publisher-wins",
        file=_FILE,
        text="        self._touch(node)\n        return node\n",
        replacement="        elif node.page != page and node.page is not None:\n"
        "            self._pool.retain(page)\n"
        "            self._pool.release(node.page)\n"
        "            node.page = page\n"
        "        self._touch(node)\n        return node\n",
        kind="cache_entry_aliasing",
        source="https://github.com/waybarrios/vllm-mlx/pull/691",
        expected_check="kv_pages",
        note="A later turn's bytes replace those that were published first.",
        fixture=("fixtures/zoo/llama-genai-fp32",),
        backend=("ort",),
    ),
    Mutant(
        id="publish-retains-twice",
        file=_FILE,
        text="above.length + len(tokens))\n            self._pool.retain(page)\n",
        replacement="above.length + len(tokens))\n        self._pool.retain(page)\n",
        kind="refcount_leak",
        source="https://github.com/sgl-project/sglang/issues/35270",
        expected_check="conservation",
        note="Publishing what is published already takes another reference.",
    ),
    Mutant(
        id="publish-without-retain",
        file=_FILE,
        text="            self._pool.retain(page)\n        self._touch(node)\n",
        replacement="        self._touch(node)\n",
        kind="evict_while_in_use",
        source="https://github.com/sgl-project/sglang/issues/38319",
        expected_check="conservation",
        note="The cache names a page that it does not hold; the turn's end frees it.",
    ),
    Mutant(
        id="evict-inner-pages",
        file=_FILE,
        text="if not n.children and not n.pins]",
        replacement="if n.children and not n.pins]",
        kind="evict_while_in_use",
        source="https://github.com/mlc-ai/mlc-llm/pull/2615",
        expected_check="conservation",
        note="Pages are evicted from the middle of a prefix.",
    ),
    Mutant(
        id="evicted-page-kept",
        file=_FILE,
        text="return int(self._pool.release(node.page))",
        replacement="return 1",
        kind="refcount_leak",
        source="https://github.com/sgl-project/sglang/issues/35270",
        expected_check="conservation",
        note="Eviction counts a page as freed and does not give it back.",
    ),
    Mutant(
        id="evict-everything",
        file=_FILE,
        text="        while freed < pages:\n",
        replacement="        while True:\n",
        kind="false_miss",
        source="https://github.com/ggml-org/llama.cpp/pull/21099",
        expected_check="kv_pages",
        note="Making room for one page empties the cache.",
    ),
)
