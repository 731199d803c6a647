"""Faults in `engine/turn/stopping.py`: when a turn ends."""

from __future__ import annotations

from ..mutant import Mutant

_FILE = "engine/turn/stopping.py"

MUTANTS = (
    Mutant(
        id="one-token-too-many",
        file=_FILE,
        text="if len(tokens) >= self._params.max_new_tokens:",
        replacement="if len(tokens) >= self._params.max_new_tokens + (self._params.max_new_tokens == 1):",
        kind="error_midprefill_state",
        source="https://github.com/justinchuby/onnx-genai/commit/66d703349e87a4c85296fc6ac84d86e7dc6434fc",
        expected_check="tokens",
        note="Who asks for one token gets two.",
    ),
)
