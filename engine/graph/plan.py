"""A compiled graph: a list of bound steps, and how to run it.

The plan is immutable and holds no state of any conversation, so any number of engines may run it in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..contract.arrays import Array, Device, Feeds, silence
from ..contract.errors import BackendError, UsageError
from ..kernels.node import Port
from ..kv.buffers import KvSlot
from .signature import Signature


@dataclass(frozen=True)
class Step:
    """One call: read `inputs` (None: omitted), write `outputs` (None: unwanted), then drop `release`."""

    label: str
    run: Callable[..., Any]
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    release: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Plan:
    """Steps over numbered places. `values`: what each place holds at first, None but for constants.

    `feeds`, `slots` and `results` say in which place an input, a past port and an output is found, by name. `head`: the
    step that makes the logits, if it is a product with a stored weight.
    """

    steps: tuple[Step, ...]
    values: tuple[Array | None, ...]
    feeds: Mapping[str, int]
    slots: Mapping[str, int]
    results: Mapping[str, int]
    head: int | None


@dataclass(frozen=True, kw_only=True)
class CompiledModel:
    """A plan for one device, and what its callers have to know. `tile`: rows a product takes at once; None: any."""

    device: Device
    numerics: str
    tile: int | None
    inputs: tuple[Port, ...]
    signature: Signature
    fallbacks: Mapping[str, int]
    plan: Plan = field(repr=False)

    def execute(self, feeds: Feeds, slots: Mapping[str, KvSlot], *, last_only: bool = False) -> dict[str, Array]:
        """Run all steps; returns the graph's outputs by name, on the device or, where they were made there, the host.

        `feeds` are host arrays by input name, `slots` the `KvSlot` of each past port. With `last_only` the product that
        makes the logits, if it is one with a stored weight, is computed for the last row alone. What a kernel raises is
        chained to a BackendError.
        """
        values = list(self.plan.values)
        for port in self.inputs:
            if port.name not in feeds:
                raise UsageError(f"model input {port.name!r} {port.shape} was not fed; got {sorted(feeds)}")
            values[self.plan.feeds[port.name]] = np.asarray(feeds[port.name])
        for name, slot in slots.items():
            values[self.plan.slots[name]] = slot
        with silence():
            self._run_steps(values, last_only)
        return {name: values[place] for name, place in self.plan.results.items()}

    def _run_steps(self, values: list[Array], last_only: bool) -> None:
        for index, step in enumerate(self.plan.steps):
            arguments: list[Array] = [None if place is None else values[place] for place in step.inputs]
            try:
                head = index == self.plan.head
                result = self._head_rows(step, arguments, last_only) if head else step.run(*arguments)
            except Exception as error:  # a kernel may raise what it likes: the step that did is what helps
                raise BackendError(f"{step.label}: {type(error).__name__}: {error}") from error
            results = result if isinstance(result, tuple) else (result,)
            for place, value in zip(step.outputs, results, strict=False):
                if place is not None:
                    values[place] = value
            for place in step.release:
                values[place] = None

    def _head_rows(self, step: Step, arguments: list[Array], last_only: bool) -> Array:
        """The product that makes the logits. In free shapes the last row is always a call of its own: same bits alone."""
        rows, rest = arguments[0], arguments[1:]
        if last_only:
            return step.run(rows[..., -1:, :], *rest)
        if self.tile is not None or rows.shape[-2] == 1:
            return step.run(rows, *rest)
        parts = (step.run(rows[..., :-1, :], *rest), step.run(rows[..., -1:, :], *rest))
        return self.device.xp.concat(parts, axis=-2)
