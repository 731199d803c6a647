"""What a check is given: one turn on every arm, and where it writes down what it compared and what differed.

Shapes and lengths are compared before any value; the first difference of a kind is the finding, the rest of it is not news.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TypedDict, Unpack

import numpy as np
from numpy.typing import NDArray

from ..arms.compare import elided, first_difference, first_token_difference
from ..arms.record import TurnRecord
from ..contract.observation import Kv
from ..contract.verdict import CheckResult, Finding

PARTS = ("key", "value")

Rows = Iterable[tuple[NDArray[np.float32], NDArray[np.float32]]]
"""Pairs of logits `[V]`, of the warm engine and of an arm, step by step."""


class Where(TypedDict, total=False):
    """The optional fields of a finding."""

    component: str
    part: str
    phase: str
    step: int
    place: str


class Look:
    """One check's look at one turn."""

    def __init__(self, check: str, record: TurnRecord) -> None:
        self.record = record
        self.result = CheckResult()
        self._check = check

    def compared(self, values: int = 1) -> None:
        """So many values more were compared."""
        self.result.compared += values

    def find(self, arm: str, message: str, left: object, right: object, **where: Unpack[Where]) -> None:
        """A difference: what the warm engine gave (`left`), and what `arm` gives."""
        self.result.findings.append(
            Finding(
                check=self._check,
                arm=arm,
                message=message,
                left=str(left),
                right=str(right),
                turn=self.record.name,
                **where,
            )
        )

    def tokens(self, arm: str, expected: Sequence[int], message: str = "", component: str = "tokens") -> bool:
        """Compare the reply; whether it is the same."""
        self.compared()
        said = self.record.warm.tokens
        at = first_token_difference(said, expected)
        if at is None:
            return True
        self.find(
            arm,
            message or f"the reply differs from token {at} on",
            elided(said, at),
            elided(expected, at),
            component=component,
            step=at,
            place=f"generated token {at}",
        )
        return False

    def logits(
        self, arm: str, pairs: Rows, message: str = "logits differ", *, of: str = "call", component: str = "logits"
    ) -> None:
        """Compare rows of logits in turn, up to the first that differs."""
        for step, (row, expected) in enumerate(pairs):
            self.compared(expected.size)
            found = first_difference(row, expected)
            if found is not None:
                self.find(
                    arm,
                    f"{message} ({found.count} of {found.total})",
                    found.left,
                    found.right,
                    component=component,
                    step=step,
                    place=f"{of} {step}, token {found.index}",
                )
                return

    def kv(self, arm: str, left: Kv, right: Kv, phase: str, at: int = 0) -> None:
        """Compare rows layer by layer, key and value apart; one finding a part. `at`: position of the first row."""
        for part, name in enumerate(PARTS):
            if len(left) != len(right):
                self.find(arm, f"layers held by {phase}", len(left), len(right), part=name, phase=phase)
                continue
            for layer, (one, other) in enumerate(zip(left, right, strict=True)):
                self.compared(one[part].size)
                found = first_difference(one[part], other[part])
                if found is not None:
                    place = f"layer {layer} {name}" + _inside(found.index, at)
                    message = f"{name}s of {phase} differ ({found.count} of {found.total} numbers in this layer)"
                    self.find(arm, message, found.left, found.right, part=name, phase=phase, place=place)
                    break


def _inside(index: tuple[int, ...], at: int) -> str:
    if len(index) != 3:
        return ""
    head, position, channel = index
    return f" head {head} position {position + at} channel {channel}"
