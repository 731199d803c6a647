"""Faults in `engine/kv/components.py`: where a state may be cut."""

from __future__ import annotations

from ..mutant import Mutant

_FILE = "engine/kv/components.py"

MUTANTS = (
    Mutant(
        id="window-admission-off-by-one",
        file=_FILE,
        text="self.resident_from <= max(0, m - self.width + 1)",
        replacement="self.resident_from < max(0, m - self.width + 1)",
        kind="sliding_window_rewind",
        expected_check="efficiency",
        note="A cut inside the first window is refused although every position it needs is there.",
        fixture=("fixtures/zoo/mistral-genai0114-fp32", "fixtures/zoo/mistral-optimum-fp32"),
        backend=("ort",),
    ),
)
