"""The backends by name. A runtime is imported when a model is loaded into it, and not before."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..graph.load import GraphModel
from ..package.resolve import ModelSpec
from .base import RuntimeOptions, Weights


def _native(spec: ModelSpec, graph: GraphModel, options: RuntimeOptions) -> Weights:
    from . import native

    return native.load(graph, spec, options)


def _ort(spec: ModelSpec, graph: GraphModel, options: RuntimeOptions) -> Weights:
    from . import ort

    return ort.load(spec.graph_path, spec, options, shared_buffer=spec.shared_buffer)


BACKENDS: Mapping[str, Callable[[ModelSpec, GraphModel, RuntimeOptions], Weights]] = {"native": _native, "ort": _ort}
"""How each loads the immutable part of a model. ModelError and UsageError as `Engine.load`."""
