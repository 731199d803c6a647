"""From a row of logits to a token."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def greedy(logits: NDArray[np.float32]) -> int:
    """The id of the highest logit `[V]`; the lowest id among equals. The logits hold no NaN (the loop checks)."""
    return int(np.argmax(logits))
