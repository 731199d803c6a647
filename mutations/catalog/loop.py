"""Faults in `engine/turn/loop.py`: what is fed, when it is sampled, when it stops."""

from __future__ import annotations

from ..mutant import Mutant

_FILE = "engine/turn/loop.py"

MUTANTS = (
    Mutant(
        id="chunk-one-too-long",
        file=_FILE,
        text="progress.context[start : start + self.chunk_size]",
        replacement="progress.context[start : start + self.chunk_size + 1]",
        kind="chunked_prefill_boundary",
        source="https://github.com/sgl-project/sglang/pull/22688",
        expected_check="feeds",
        note="A prefill step feeds one row more than the chunk.",
    ),
    Mutant(
        id="chunk-one-too-short",
        file=_FILE,
        text="progress.context[start : start + self.chunk_size]",
        replacement="progress.context[start : start + self.chunk_size - 1]",
        kind="chunked_prefill_boundary",
        source="https://github.com/sgl-project/sglang/pull/22688",
        expected_check="feeds",
        note="A prefill step feeds one row less than the chunk.",
    ),
    Mutant(
        id="chunk-boundary-row-skipped",
        file=_FILE,
        text="        progress.fed.extend(rows)\n",
        replacement="        progress.fed.extend(rows)\n"
        "        if len(rows) > 1 and len(progress.fed) + 1 < progress.prompt_len:\n"
        "            progress.fed.append(progress.context[len(progress.fed)])\n",
        kind="chunked_prefill_boundary",
        source="https://github.com/ikawrakow/ik_llama.cpp/pull/1787",
        expected_check="feeds",
        note="The first row of the next chunk counts as fed and is not.",
    ),
    Mutant(
        id="warm-prompt-length",
        file=_FILE,
        text="prompt_len=len(prompt))",
        replacement="prompt_len=len(prompt) - prefix.length)",
        kind="sampler_state_carryover",
        source="https://github.com/vllm-project/vllm/pull/5349",
        expected_check="tokens",
        note="On a warm turn the end of the prompt is taken for reply.",
    ),
    Mutant(
        id="full-hit-samples-stale-logits",
        file=_FILE,
        text="            logits = self._call(progress, rows)\n",
        replacement="            if start + 1 == progress.prompt_len and hasattr(self.decoder, 'stale'):\n"
        "                logits = self.decoder.stale\n"
        "                progress.fed.extend(rows)\n"
        "            else:\n"
        "                logits = self._call(progress, rows)\n"
        "            self.decoder.stale = logits  # type: ignore[attr-defined]\n",
        kind="full_hit_no_suffix",
        source="https://github.com/microsoft/onnxruntime-genai/pull/2555",
        expected_check="feeds",
        note="When only the last row is wanted, the last logits of the turn before are sampled instead.",
        backend=("native", "ort"),
    ),
    Mutant(
        id="commit-after-prefill-only",
        file=_FILE,
        text="            self.commit()\n            if len(progress.fed) < len(progress.context):\n"
        "                yield Step(rows=len(rows), start=start, token=None)\n                continue\n",
        replacement="            if len(progress.fed) < len(progress.context):\n"
        "                yield Step(rows=len(rows), start=start, token=None)\n                continue\n"
        "            self.commit()\n",
        kind="aborted_request_state",
        expected_check="kv_pages",
        note="A turn cancelled between chunks has mirrored nothing of what it computed.",
    ),
)
