"""What a kernel is given when a plan is compiled, and what it gives back.

A kernel is built once per node and then called with the node's inputs in order, None for an omitted one. It returns one
array, or a tuple when the operator has several outputs. The namespace is bound while building: looking it up at each
call costs more than many of the calls.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from ..contract.arrays import Device, HostArray
from ..contract.errors import ModelError

if TYPE_CHECKING:
    from ..graph.load import Node
    from .arithmetic import Arithmetic

Run = Callable[..., Any]


@dataclass(frozen=True)
class Call:
    """One node to be bound: its attributes, the device it runs on, and those of its inputs that are constant."""

    node: Node
    device: Device
    math: Arithmetic
    constants: tuple[HostArray | None, ...] = ()

    @property
    def xp(self) -> Any:
        """The array namespace the kernel runs in."""
        return self.device.xp

    def attribute(self, name: str, default: Any = None) -> Any:
        """The attribute, or `default` when the node does not set it."""
        return self.node.attributes.get(name, default)

    def constant(self, index: int) -> HostArray | None:
        """Input `index` as numpy when it is known at compile time, else None."""
        return self.constants[index] if index < len(self.constants) else None

    def has_input(self, index: int) -> bool:
        """Whether the node gives input `index`."""
        return index < len(self.node.inputs) and self.node.inputs[index] != ""

    def refuse(self, what: str) -> ModelError:
        """The error for a variant of the operator that this kernel does not compute."""
        return ModelError(f"{self.node}: {what} is not supported; use the 'ort' backend for this model")


@dataclass(frozen=True)
class Kernel:
    """How to build an operator, which of its inputs it needs on the host, and whether its output is made there."""

    build: Callable[[Call], Run]
    host: tuple[int, ...] = ()
    host_output: bool = False


Table = dict[tuple[str, str, int], Kernel]


def versions(op_type: str, kernel: Kernel, *since: int, domain: str = "") -> Table:
    """Table entries for one operator whose meaning is the same from each of the opsets `since` on."""
    return {(domain, op_type, version): kernel for version in since}


def ints(value: Any) -> tuple[int, ...]:
    """A host tensor of integers (a shape, axes, bounds) as Python ints."""
    return tuple(int(item) for item in np.asarray(value).reshape(-1))
