"""What was resolved of a model, what was inferred, and which reuse paths it is admitted to, each refusal with its reason."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

from ..contract.errors import ModelError
from ..contract.request import CutReason, GateReason
from ..graph.compile import compile_model
from ..graph.load import GraphModel
from .resolve import ModelSpec, resolve


def inspect(path: Path) -> dict[str, Any]:
    """Plain data about the model at `path`. ModelError when it cannot be resolved at all."""
    spec, graph = resolve(path)
    layers = Counter(f"{la.heads} heads of {la.head_dim}, {la.dtype}" for la in spec.geometry.layers)
    return {
        "graph": str(spec.graph_path),
        "declared by": spec.declared_by,
        "opsets": ", ".join(f"{domain or 'ai.onnx'} {version}" for domain, version in sorted(graph.opsets.items())),
        "inputs": [port for port in (spec.input_ids, spec.attention_mask, spec.position_ids) if port is not None],
        "logits": spec.logits,
        "kv layers": [f"{count} of {kind}" for kind, count in layers.items()],
        "kv regime": _regime(spec),
        "windows": sorted(spec.windows),
        "vocabulary": spec.vocab_size,
        "context length": spec.context_length,
        "end tokens": sorted(spec.eos),
        "inferred": list(spec.inferred),
        "operators": [f"{name} x{count}" for name, count in _operators(graph).most_common()],
        "backends": _backends(spec, graph),
        "reuse": _reuse(spec),
    }


def _regime(spec: ModelSpec) -> str:
    if not spec.has_state:
        return "none: every step recomputes the whole context"
    return (
        "shared buffer with capacity" if spec.shared_buffer else "growing past tensors (native: buffers all the same)"
    )


def _operators(graph: GraphModel) -> Counter[str]:
    return Counter(f"{node.domain + '.' if node.domain else ''}{node.op_type}" for node in graph.nodes)


def _backends(spec: ModelSpec, graph: GraphModel) -> list[str]:
    try:
        compiled = compile_model(graph, spec)
    except ModelError as error:
        return [f"native: refused: {error}", "ort: by ONNX Runtime itself"]
    slow = ", ".join(f"{name} x{count}" for name, count in sorted(compiled.fallbacks.items())) or "none"
    return [
        f"native: admitted; row tile {compiled.tile}; operators on the slow fallback: {slow}",
        "ort: by ONNX Runtime itself",
    ]


def _reuse(spec: ModelSpec) -> list[str]:
    if not spec.has_state:
        return [f"retained: refused, {CutReason.STATELESS}", f"paged: refused, {GateReason.NO_KV}"]
    cuts = [
        f"window of {width}: every position stays resident, so any cut is admitted" for width in sorted(spec.windows)
    ]
    return ["retained: admitted at any cut (full attention)", "paged: admitted", *cuts]
