"""Faults in `engine/turn/session.py`: what lives between turns."""

from __future__ import annotations

from ..mutant import Mutant

_FILE = "engine/turn/session.py"

MUTANTS = (
    Mutant(
        id="session-rewind-cuts-only-tokens",
        file=_FILE,
        text="done = retained.decoder.state.rewind_to(n)",
        replacement="done = True",
        kind="rewind_partial_state",
        source="https://github.com/justinchuby/onnx-genai/commit/44b9c4c93b203af40c7bc402bfb034ab05603978",
        expected_check="reuse",
        note="A session's rewind shortens its tokens and leaves its KV.",
    ),
    Mutant(
        id="session-rewind-always-declines",
        file=_FILE,
        text="or n > retained.decoder.state.kv_len:",
        replacement="or n >= 0:",
        kind="rewind_partial_state",
        source="https://github.com/waybarrios/vllm-mlx/issues/678",
        expected_check="rewind",
        note="A session never rewinds.",
    ),
    Mutant(
        id="session-rewind-drops-state",
        file=_FILE,
        text="context=retained.context[:n]",
        replacement="context=()",
        kind="false_miss",
        source="https://github.com/ggml-org/llama.cpp/issues/26676",
        expected_check="efficiency",
        note="A session forgets its tokens when it rewinds.",
    ),
    Mutant(
        id="fork-shares-the-state",
        file=_FILE,
        text="replace(retained, decoder=retained.decoder.fork())",
        replacement="retained",
        kind="cow_missing",
        expected_check="reuse",
        note="A fork and its origin append to one buffer.",
    ),
)
