"""A compiled graph: a list of bound steps, and how to run it.

The plan is immutable and holds no state of any conversation, so any number of engines may run it in turn.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ..contract.arrays import Device, silence
from ..contract.errors import BackendError, UsageError
from ..kv.layout import KvGeometry
from .load import Port


@dataclass(frozen=True)
class Step:
    """One call: read `inputs` (None: omitted), write `outputs` (None: unwanted), then drop `release`."""

    label: str
    run: Callable[..., Any]
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    release: tuple[int, ...] = ()


@dataclass(frozen=True, kw_only=True)
class CompiledModel:
    """A plan. `past` and `present` name per layer the key and value ports; empty for a graph without a cache."""

    device: Device
    numerics: str
    tile: int | None
    inputs: tuple[Port, ...]
    logits: str
    past: tuple[tuple[str, str], ...]
    present: tuple[tuple[str, str], ...]
    geometry: KvGeometry
    fallbacks: Mapping[str, int]
    _steps: tuple[Step, ...] = field(repr=False)
    _values: tuple[Any, ...] = field(repr=False)
    _feeds: Mapping[str, int] = field(repr=False)
    _slots: Mapping[str, int] = field(repr=False)
    _results: Mapping[str, int] = field(repr=False)
    _head: int | None = field(repr=False)

    def execute(self, feeds: Mapping[str, Any], slots: Mapping[str, Any], *, last_only: bool = False) -> dict[str, Any]:
        """Run all steps; returns the graph's outputs by name, on the device or, where they were made there, the host.

        `feeds` are host arrays by input name, `slots` the `KvSlot` of each past port. With `last_only` the product that
        makes the logits, if it is one with a stored weight, is computed for the last row alone. What a kernel raises is
        chained to a BackendError.
        """
        values = list(self._values)
        for port in self.inputs:
            if port.name not in feeds:
                raise UsageError(f"model input {port.name!r} {port.shape} was not fed; got {sorted(feeds)}")
            values[self._feeds[port.name]] = np.asarray(feeds[port.name])
        for name, slot in slots.items():
            values[self._slots[name]] = slot
        with silence():
            self._run_steps(values, last_only)
        return {name: values[place] for name, place in self._results.items()}

    def _run_steps(self, values: list[Any], last_only: bool) -> None:
        for index, step in enumerate(self._steps):
            arguments: list[Any] = [None if place is None else values[place] for place in step.inputs]
            try:
                result = self._head_rows(step, arguments, last_only) if index == self._head else step.run(*arguments)
            except Exception as error:
                raise BackendError(f"{step.label}: {type(error).__name__}: {error}") from error
            results = result if isinstance(result, tuple) else (result,)
            for place, value in zip(step.outputs, results, strict=False):
                if place is not None:
                    values[place] = value
            for place in step.release:
                values[place] = None

    def _head_rows(self, step: Step, arguments: list[Any], last_only: bool) -> Any:
        """The product that makes the logits. In free shapes the last row is always a call of its own: same bits alone."""
        rows, rest = arguments[0], arguments[1:]
        if last_only:
            return step.run(rows[..., -1:, :], *rest)
        if self.tile is not None or rows.shape[-2] == 1:
            return step.run(rows, *rest)
        parts = (step.run(rows[..., :-1, :], *rest), step.run(rows[..., -1:, :], *rest))
        return self.device.xp.concat(parts, axis=-2)
