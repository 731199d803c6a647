"""What is done to a graph before it is bound to kernels: order, dead code, KV appends, constant folding.

Passes work on names and nodes. A KV append is a node of our own operator `warmcold.KvAppend(past, new) -> present`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace

from ..contract.arrays import HostArray
from ..contract.errors import ModelError
from ..kernels.append import APPEND
from ..kernels.call import NARROW
from ..kernels.node import Node
from ..kernels.table import kernel_of
from ..kv.layout import widen
from .load import GraphModel

_POSITION_AXES = (2, -2)

Place = tuple[int, int]
"""A layer and a part of it."""


def live_nodes(nodes: Sequence[Node], wanted: Iterable[str]) -> tuple[Node, ...]:
    """The nodes that `wanted` depends on, in an order in which every value is made before it is read."""
    producer = {name: node for node in nodes for name in node.outputs if name}
    order: dict[int, Node] = {}
    for target in wanted:
        _visit(target, producer, order)
    return tuple(order.values())


def _visit(target: str, producer: Mapping[str, Node], order: dict[int, Node]) -> None:
    stack = [target]
    while stack:
        node = producer.get(stack[-1])
        if node is None or id(node) in order:
            stack.pop()
            continue
        pending = [name for name in node.inputs if name in producer and id(producer[name]) not in order]
        if pending:
            stack.extend(pending)
        else:
            order[id(node)] = node
            stack.pop()


def with_appends(nodes: Sequence[Node], past: Mapping[str, Place], present: Mapping[str, Place]) -> tuple[Node, ...]:
    """`Concat(past, new)` along the positions becomes an append; attention that takes the past appends by itself.

    ModelError when a present output is made in any other way: it would not be in the cache.
    """
    rewritten = tuple(_append(node) if _is_append(node, past, present) else node for node in nodes)
    appended = {name for node in rewritten for name in _appended(node, past)}
    for name, place in present.items():
        if name not in appended:
            raise ModelError(
                f"output {name!r} (layer {place[0]}) is not its past with new positions appended, by Concat on axis 2 "
                "or by an attention operator; use the 'ort' backend for this model"
            )
    return rewritten


def _is_append(node: Node, past: Mapping[str, Place], present: Mapping[str, Place]) -> bool:
    return (
        (node.domain, node.op_type) == ("", "Concat")
        and len(node.inputs) == 2
        and node.attributes.get("axis") in _POSITION_AXES
        and node.inputs[0] in past
        and present.get(node.outputs[0]) == past[node.inputs[0]]
    )


def _append(node: Node) -> Node:
    domain, op_type = APPEND
    return replace(node, domain=domain, op_type=op_type, version=1)


def _appended(node: Node, past: Mapping[str, Place]) -> list[str]:
    kernel = kernel_of(node)
    presents = kernel.presents(node) if kernel is not None else ()
    return [node.outputs[made] for slot, made in presents if node.inputs[slot] in past]


Evaluate = Callable[[Node, list[HostArray | None]], Sequence[HostArray]]


class Constants:
    """Values known before any input: stored weights, read when first asked for, and what follows from them alone."""

    def __init__(self, graph: GraphModel) -> None:
        self._graph = graph
        self._known: dict[str, HostArray] = {}
        self._wide: dict[str, HostArray] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._known or name in self._graph.initializers

    def __getitem__(self, name: str) -> HostArray:
        if name not in self._known:
            self._known[name] = self._graph.initializer(name)
        return self._known[name]

    def find(self, name: str) -> HostArray | None:
        """The value, or None when it depends on an input."""
        if name not in self:
            return None
        return self[name]

    def wide(self, name: str) -> HostArray | None:
        """As `find`, a 16-bit value as float32; widened once."""
        if name not in self._wide and name in self:
            value = self[name]
            if value.dtype.name not in NARROW:
                return value
            self._wide[name] = widen(value)
        return self._wide.get(name)

    def fold(self, nodes: Sequence[Node], evaluate: Evaluate) -> tuple[Node, ...]:
        """Compute the nodes whose inputs are all known, and return the others. Random operators are never folded."""
        rest = []
        for node in nodes:
            if node.op_type.startswith("Random") or not all(name in self for name in node.inputs if name):
                rest.append(node)
                continue
            values = evaluate(node, [self[name] if name else None for name in node.inputs])
            self._known.update((name, value) for name, value in zip(node.outputs, values, strict=False) if name)
        return tuple(rest)
