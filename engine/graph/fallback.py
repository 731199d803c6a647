"""Operators outside the hot path run on `onnx.reference`: right, slow, and on the host only.

Each node becomes a model of its own with the graph's opset: a bare node would get the newest one, whose meaning may
differ.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping

import numpy as np
from onnx import AttributeProto, helper
from onnx.reference import ReferenceEvaluator

from ..contract.arrays import HostArray
from ..kernels.call import Call, Kernel, Run, no_float
from ..kernels.node import Node
from ..kernels.table import find_kernel

_NO_FLOAT, _MOVES = Kernel(lambda call: lambda: None, kind=no_float), Kernel(lambda call: lambda: None, moves=True)
_FACTS = {
    **dict.fromkeys(("ArgMax", "ArgMin", "IsInf", "NonZero", "QuantizeLinear"), _NO_FLOAT),
    **dict.fromkeys(("GatherElements", "GatherND"), _MOVES),
}
"""Of operators that we have no kernel of in any opset."""


def with_facts(node: Node, build: Callable[[Call], Run]) -> Kernel:
    """A kernel that `build` makes, with what is known of the operator's 16-bit floats; our newest kernel tells it too."""
    known = find_kernel(node.domain, node.op_type, sys.maxsize) or _FACTS.get(node.op_type)
    if known is None:
        return Kernel(build)
    return Kernel(build, kind=known.kind, wide=known.wide, moves=known.moves, extents=known.extents)


def reference_kernel(node: Node, opsets: Mapping[str, int]) -> Run | None:
    """A kernel that runs `node` on the reference evaluator, or None when that does not know the operator either.

    A node with a subgraph is not taken: it may read names of the graph around it.
    """
    if any(entry.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS) for entry in node.proto.attribute):
        return None
    names = list(dict.fromkeys(name for name in node.inputs if name))
    graph = helper.make_graph(
        [node.proto],
        "fallback",
        [helper.make_empty_tensor_value_info(name) for name in names],
        [helper.make_empty_tensor_value_info(name) for name in node.outputs if name],
    )
    imports = [helper.make_opsetid(domain, version) for domain, version in opsets.items()]
    try:
        evaluator = ReferenceEvaluator(helper.make_model(graph, opset_imports=imports))
    except Exception:  # it raises a private family of errors for what it does not know
        return None

    def run(*inputs: HostArray | None) -> tuple[HostArray | None, ...]:
        feeds = {name: np.asarray(value) for name, value in zip(node.inputs, inputs, strict=True) if name}
        found = iter(evaluator.run(None, feeds))
        return tuple(next(found) if name else None for name in node.outputs)

    return run
