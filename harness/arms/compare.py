"""Exact comparison. No tolerance anywhere: two arrays are bit-equal or there is a first place where they are not."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ..contract.observation import Kv, Observation


@dataclass(frozen=True)
class Difference:
    """The first differing element: its index, both values, and how many elements differ in all."""

    index: tuple[int, ...]
    left: str
    right: str
    count: int
    total: int

    def __str__(self) -> str:
        return f"{self.left} != {self.right} at {list(self.index)} ({self.count} of {self.total} differ)"


def first_difference(left: NDArray[Any], right: NDArray[Any]) -> Difference | None:
    """None when shape, dtype and every bit agree (0.0 differs from -0.0, a NaN equals the same NaN)."""
    if left.shape != right.shape or left.dtype != right.dtype:
        return Difference((), f"{left.dtype}{list(left.shape)}", f"{right.dtype}{list(right.shape)}", 1, 1)
    bits = np.dtype(f"u{left.dtype.itemsize}")
    different = np.ascontiguousarray(left).view(bits) != np.ascontiguousarray(right).view(bits)
    count = int(np.count_nonzero(different))
    if not count:
        return None
    index = tuple(int(i) for i in np.unravel_index(int(np.argmax(different)), left.shape))
    texts = [repr(array[index].item()) for array in (left, right)]
    if texts[0] == texts[1]:  # two NaNs, say: only their bits tell them apart
        texts = [
            f"{text} (bits {int(array[index].view(bits)):#x})" for text, array in zip(texts, (left, right), strict=True)
        ]
    return Difference(index, texts[0], texts[1], count, left.size)


def first_token_difference(left: Sequence[int], right: Sequence[int]) -> int | None:
    """Index of the first differing token; the shorter length when one is a prefix of the other; None when equal."""
    for i, (a, b) in enumerate(zip(left, right, strict=False)):
        if a != b:
            return i
    return None if len(left) == len(right) else min(len(left), len(right))


def common_prefix(left: Sequence[int], right: Sequence[int]) -> int:
    """Length of the longest common prefix."""
    at = first_token_difference(left, right)
    return len(left) if at is None else at


def elided(tokens: Sequence[int], around: int, width: int = 4) -> str:
    """A short text of a token sequence near one place, equal parts left out."""
    start, stop = max(0, around - width), around + width + 1
    body = " ".join(str(token) for token in tokens[start:stop])
    return f"{'… ' if start else ''}{body}{' …' if stop < len(tokens) else ''} ({len(tokens)} tokens)"


def shown_difference(left: Observation, right: Observation) -> str | None:
    """The first thing shown that differs."""
    if left.tokens != right.tokens:
        return f"the reply: {list(left.tokens)} and {list(right.tokens)}"
    for step, (one, other) in enumerate(zip(left.last_rows or (), right.last_rows or (), strict=False)):
        if (found := first_difference(one, other)) is not None:
            return f"the logits of call {step}: {found}"
    if left.logprobs != right.logprobs:
        return "the log-probabilities"
    return _kv_difference(left.end, right.end)


def _kv_difference(left: Kv | None, right: Kv | None) -> str | None:
    for layer, (one, other) in enumerate(zip(left or (), right or (), strict=False)):
        for part in (0, 1):
            if (found := first_difference(one[part], other[part])) is not None:
                return f"the KV of layer {layer}: {found}"
    return None
