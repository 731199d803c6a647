"""What a kernel is given when a plan is compiled, and what it gives back.

A kernel is built once per node and then called with the node's inputs in order, None for an omitted one. It returns one
array, or a tuple when the operator has several outputs. The namespace is bound while building: looking it up at each
call costs more than many of the calls.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..contract.arrays import Array, Device, HostArray, Namespace
from ..contract.errors import ModelError
from .arithmetic import Arithmetic
from .node import Node

Run = Callable[..., Any]

NARROW = ("float16", "bfloat16")

Kind = str | None
"""The dtype of an input or output if that is a 16-bit float, else None."""


@dataclass(frozen=True)
class Call:
    """One node to be bound: its attributes, the device it runs on, and those of its inputs that are constant."""

    node: Node
    device: Device
    math: Arithmetic
    constants: tuple[HostArray | None, ...] = ()

    @property
    def xp(self) -> Namespace:
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


def narrow_name(dtype: str) -> Kind:
    """`dtype` if it is a 16-bit float."""
    return dtype if dtype in NARROW else None


def first_narrow(node: Node, inputs: Sequence[Kind]) -> Kind:
    """The kind of the first 16-bit input, as most operators' type constraints have it."""
    return next((kind for kind in inputs if kind), None)


def no_float(node: Node, inputs: Sequence[Kind]) -> Kind:
    """For operators whose result is no float, whatever their inputs are."""
    return None


@dataclass(frozen=True)
class Kernel:
    """How to build an operator, and what must be known of it beside its arithmetic.

    `host`, `host_output`: inputs it needs on the host; whether its output is made there.
    `kind`: the 16-bit float of its outputs, if it is one; `wide`: outputs that are float32 all the same.
    `moves`: it makes no number that 16 bits could not hold out of such as they can, so nothing has to be rounded.
    `extents`: it looks at shapes only.
    `appends`: pairs (input that takes a KV slot instead of the past array, output that is the present).
    `in_place`: those may be one buffer in ONNX Runtime. `window`: the attribute that bounds how many keys a query sees.
    `weight`: the matrix `[K, N]` of a product, given its input 1, if all that varies from call to call is its rows.
    """

    build: Callable[[Call], Run]
    host: tuple[int, ...] = ()
    host_output: bool = False
    kind: Callable[[Node, Sequence[Kind]], Kind] = first_narrow
    wide: tuple[int, ...] = ()
    moves: bool = False
    extents: bool = False
    appends: tuple[tuple[int, int], ...] = ()
    in_place: bool = False
    window: str | None = None
    weight: Callable[[Node, HostArray | None], HostArray | None] | None = None

    def presents(self, node: Node) -> tuple[tuple[int, int], ...]:
        """Those pairs of `appends` that `node` gives."""
        return tuple(
            (slot, made) for slot, made in self.appends if slot < len(node.inputs) and made < len(node.outputs)
        )


Table = dict[tuple[str, str, int], Kernel]


def versions(op_type: str, kernel: Kernel, *since: int, domain: str = "") -> Table:
    """Table entries for one operator whose meaning is the same from each of the opsets `since` on."""
    return {(domain, op_type, version): kernel for version in since}


def ints(value: Array) -> tuple[int, ...]:
    """A host tensor of integers (a shape, axes, bounds) as Python ints."""
    return tuple(int(item) for item in np.asarray(value).reshape(-1))
