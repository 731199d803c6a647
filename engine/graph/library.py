"""Kernels for the nodes of one graph: ours, the reference evaluator's, or a refusal."""

from __future__ import annotations

from collections.abc import Sequence

from ..contract.arrays import HOST, HostArray, silence
from ..contract.errors import ModelError
from ..kernels.arithmetic import Free
from ..kernels.call import Call, Kernel, Run
from ..kernels.node import Node
from ..kernels.table import kernel_of
from .fallback import reference_kernel, with_facts
from .load import GraphModel
from .precision import evaluated, widened


class Library:
    """Kernels by node: ours, else the reference evaluator's."""

    def __init__(self, graph: GraphModel) -> None:
        self._graph = graph

    def find(self, node: Node) -> tuple[Kernel, bool]:
        """The kernel, and whether it is the slow generic one. ModelError when nobody knows the operator."""
        kernel = kernel_of(node)
        return (kernel, False) if kernel is not None else (self._fallback(node), True)

    def evaluate(self, node: Node, inputs: list[HostArray | None]) -> Sequence[HostArray]:
        """Run one node on the host, now."""
        kernel, _ = self.find(node)
        wide = tuple(widened(value) for value in inputs)
        run = kernel.build(Call(node=node, device=HOST, math=Free(HOST), constants=wide))
        with silence():
            return evaluated(node, kernel, run, inputs)

    def _fallback(self, node: Node) -> Kernel:
        run = reference_kernel(node, self._graph.opsets)
        if run is None:
            raise ModelError(f"{self._graph.path}: unknown operator {node}; use the 'ort' backend for this model")

        def build(call: Call) -> Run:
            if not call.device.is_host:
                raise call.refuse(f"computing it on {call.device.name} (there is only a slow version on the host)")
            return run

        return with_facts(node, build)
