"""The arithmetic of the figures. Seconds and bytes come in from elsewhere.

Clocks of one machine are compared with each other and with nothing else: every round runs each arm once, in turn
(A B A B), a ratio is taken within a round, and what is reported is the median over the rounds with its least and
greatest.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ..contract.errors import UsageError
from ..kv.layout import KvGeometry, storage_dtype

K = TypeVar("K")
V = TypeVar("V")


@dataclass(frozen=True, kw_only=True)
class Figure:
    """One ratio, of `arm` over `against`. `samples`: its values, one a round. `bound`: the promise, None where is none.

    `ours` and `theirs` are the medians of both sides, in `unit` ("ms" or "bytes a position").
    """

    name: str
    arm: str
    against: str
    samples: tuple[float, ...]
    ours: float
    theirs: float
    unit: str = "ms"
    bound: float | None = None

    @property
    def ratio(self) -> float:
        """The median over the rounds."""
        return statistics.median(self.samples)

    @property
    def met(self) -> bool | None:
        """Whether this run kept the promise; None where there is none."""
        return None if self.bound is None else self.ratio <= self.bound

    def to_json(self) -> dict[str, Any]:
        """Plain data."""
        return {
            "name": self.name, "arm": self.arm, "against": self.against, "ratio": self.ratio,
            "low": min(self.samples), "high": max(self.samples), "samples": list(self.samples),
            "ours": self.ours, "theirs": self.theirs, "unit": self.unit, "bound": self.bound, "met": self.met,
        }  # fmt: skip


def compared(name: str, arm: str, against: str, ours: Sequence[float], theirs: Sequence[float]) -> Figure:
    """The figure of two series of seconds whose i-th values belong to the same round."""
    return Figure(
        name=name,
        arm=arm,
        against=against,
        samples=tuple(mine / other for mine, other in zip(ours, theirs, strict=True)),
        ours=1e3 * statistics.median(ours),
        theirs=1e3 * statistics.median(theirs),
    )


def interleaved(rounds: int, runs: Mapping[K, Callable[[], V]]) -> dict[K, list[V]]:
    """What each run gave, `rounds` times, one run after the other within a round. A round before is not counted."""
    found: dict[K, list[V]] = {name: [] for name in runs}
    for counted in itertools.chain([False], itertools.repeat(True, rounds)):
        for name, run in runs.items():
            value = run()
            if counted:
                found[name].append(value)
    return found


def cache_bytes(geometry: KvGeometry) -> int:
    """Bytes of keys and values that one position takes: `2 * layers * kv_heads * head_dim * 4` in float32."""
    return sum(2 * layer.row_floats * storage_dtype(layer.dtype).itemsize for layer in geometry.layers)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """How much is run: tokens, but `rounds` (a count) and `capacity` (positions).

    `prompt`, `decode`: of a cold request. `new`: what a turn adds. `cold`: the prompt of the warm-against-cold figure.
    `histories` ascend; the promise about a warm turn is for the last one.
    """

    rounds: int
    prompt: int
    decode: int
    new: int
    cold: int
    histories: tuple[int, ...]
    capacity: int

    @classmethod
    def fitting(cls, max_context: int, *, quick: bool) -> Sizes:
        """The usual sizes, smaller where the context is short. UsageError where it is too short for any."""
        if max_context < 16:
            raise UsageError(f"a context of {max_context} positions is too short to measure turns in; 16 are needed")
        new = min(16, max_context // 8)
        room = max_context - 4 * new - 1
        return cls(
            rounds=2 if quick else 3,
            prompt=min(32 if quick else 64, max_context // 2),
            decode=min(4 if quick else 8, max_context // 4),
            new=new,
            cold=min(128 if quick else 256, room),
            histories=tuple(sorted({min(history, room) for history in ((64, 1000) if quick else (64, 256, 1000))})),
            capacity=min(512 if quick else 1024, 1 << (max_context.bit_length() - 1)),
        )
