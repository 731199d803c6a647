"""A model directory as exporters write it -> `ModelSpec`: ports, KV layout per layer, context, end tokens.

Declared metadata first (`genai_config.json`, then `config.json`), the graph's own signature second. What was inferred
rather than declared is listed in `ModelSpec.inferred`, so that a wrong guess can be seen.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..contract.errors import ModelError
from ..graph.load import GraphModel, Port, load_graph
from ..kv.layout import KvGeometry, LayerKv

PortPairs = tuple[tuple[str, str], ...]

IN_PLACE_OPS = frozenset({"GroupQueryAttention"})
_DEFAULT_CONTEXT = 2048
_KV_DTYPES = ("float32", "float16")


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """What the engine knows of a model. Port names are the graph's; `attention_mask` and `position_ids` may be None."""

    directory: Path
    graph_path: Path
    declared_by: str
    input_ids: str
    attention_mask: str | None
    position_ids: str | None
    logits: str
    past: PortPairs
    present: PortPairs
    dtypes: Mapping[str, str]
    geometry: KvGeometry
    shared_buffer: bool
    windows: frozenset[int]
    vocab_size: int
    context_length: int
    eos: frozenset[int]
    inferred: tuple[str, ...]

    @property
    def has_state(self) -> bool:
        """Whether the decoder carries anything from step to step."""
        return bool(self.past)


def resolve(path: Path) -> tuple[ModelSpec, GraphModel]:
    """Resolve a model directory or a bare `.onnx` file. ModelError names what is missing and where it was looked for."""
    directory, graph_path, config, declared_by = _locate(path)
    graph = load_graph(graph_path)
    return _spec(directory, graph, config, declared_by), graph


def refuse_nan(graph: GraphModel) -> None:
    """ModelError when a weight holds a NaN: every answer would be one, far from where it came from."""
    for name in sorted(graph.initializers):
        weight = graph.initializer(name)
        if weight.dtype.kind == "f" and np.isnan(weight).any():
            place = [int(i) for i in np.argwhere(np.isnan(weight))[0]]
            raise ModelError(f"{graph.path}: weight {name!r} is NaN at {place}; export or download the model again")


def _locate(path: Path) -> tuple[Path, Path, dict[str, Any], str]:
    if path.is_file():
        return path.parent, path, {}, "bare .onnx"
    if not path.is_dir():
        raise ModelError(f"{path}: no such file or directory; give a model directory or an .onnx file")
    genai = _json(path / "genai_config.json")
    if genai is not None:
        filename = _get(genai, "model", "decoder", "filename") or "model.onnx"
        return path, path / str(filename), genai, "genai_config.json"
    config = _json(path / "config.json")
    candidates = sorted(path.glob("*.onnx"))
    if (path / "model.onnx") in candidates:
        candidates = [path / "model.onnx"]
    if len(candidates) != 1:
        found = ", ".join(c.name for c in candidates) or "none"
        raise ModelError(
            f"{path}: expected one .onnx file (or a genai_config.json that names it), found {found}; "
            "give the decoder's .onnx file itself"
        )
    return path, candidates[0], config or {}, "config.json" if config is not None else "bare .onnx"


def _spec(directory: Path, graph: GraphModel, config: dict[str, Any], declared_by: str) -> ModelSpec:
    inferred: list[str] = []
    inputs = {port.name: port for port in graph.inputs}
    outputs = {port.name: port for port in graph.outputs}
    declared = _get(config, "model", "decoder", "inputs") or {}
    past = _pairs(declared, inputs, ("past_key_names", "past_value_names"), "past_key_values.%d.")
    present = _pairs(
        _get(config, "model", "decoder", "outputs") or {},
        outputs,
        ("present_key_names", "present_value_names"),
        "present.%d.",
    )
    if len(past) != len(present):
        raise ModelError(f"{graph.path}: {len(past)} past pairs but {len(present)} present pairs among its ports")
    logits = _port(outputs, str((_get(config, "model", "decoder", "outputs") or {}).get("logits", "logits")), graph)
    named = {kind: _optional(inputs, str(declared.get(kind, kind))) for kind in ("attention_mask", "position_ids")}
    ids = _port(inputs, str(declared.get("input_ids", "input_ids")), graph)
    known = {ids.name, *(n for n in named.values() if n), *(name for pair in past for name in pair)}
    if unknown := sorted(set(inputs) - known):
        raise ModelError(
            f"{graph.path}: inputs {unknown} are none that this version feeds (token ids, mask, positions, keys, values); "
            "export a text decoder whose state is keys and values only"
        )
    geometry = KvGeometry(layers=tuple(_layer(inputs[k], inputs[v], config, graph, inferred) for k, v in past))
    return ModelSpec(
        directory=directory,
        graph_path=graph.path,
        declared_by=declared_by,
        input_ids=ids.name,
        attention_mask=named["attention_mask"],
        position_ids=named["position_ids"],
        logits=logits.name,
        past=past,
        present=present,
        dtypes={name: port.dtype for name, port in inputs.items()},
        geometry=geometry,
        shared_buffer=_shared_buffer(graph, past, config, inferred),
        windows=_windows(graph, config, inferred),
        vocab_size=_vocab(logits, config, graph),
        context_length=_context(config, inferred),
        eos=_eos(directory, config),
        inferred=tuple(inferred),
    )


def _pairs(declared: Mapping[str, Any], ports: Mapping[str, Port], keys: tuple[str, str], prefix: str) -> PortPairs:
    """Key and value port names of each layer, in layer order: by the declared pattern, else by the usual one."""
    patterns = [str(declared.get(key, prefix + kind)) for key, kind in zip(keys, ("key", "value"), strict=True)]
    numbers = sorted(
        int(match.group(1)) for name in ports if (match := re.fullmatch(_regex(patterns[0]), name)) is not None
    )
    pairs = tuple((patterns[0] % n, patterns[1] % n) for n in numbers)
    if missing := [value for _, value in pairs if value not in ports]:
        raise ModelError(f"keys without values among the ports: {missing} are missing")
    return pairs


def _regex(pattern: str) -> str:
    return re.escape(pattern).replace("%d", r"(\d+)")


def _layer(key: Port, value: Port, config: dict[str, Any], graph: GraphModel, inferred: list[str]) -> LayerKv:
    """Heads and head_dim from the port `[batch, heads, length, head_dim]`, else from the configuration."""
    if len(key.shape) != 4:
        raise ModelError(f"{graph.path}: {key.name} has shape {list(key.shape)}; keys of rank 4 are what is known")
    if key.dtype != value.dtype:
        raise ModelError(f"{graph.path}: {key.name} is {key.dtype} but {value.name} is {value.dtype}")
    if key.dtype not in _KV_DTYPES:
        raise ModelError(f"{graph.path}: {key.name} is {key.dtype}; this version runs keys and values of {_KV_DTYPES}")
    heads = _extent(key.shape[1], config, ("num_key_value_heads",), key.name, graph, inferred)
    head_dim = _extent(key.shape[3], config, ("head_size", "head_dim"), key.name, graph, inferred)
    return LayerKv(heads=heads, head_dim=head_dim, dtype=key.dtype)


def _extent(
    dim: int | str | None,
    config: dict[str, Any],
    names: tuple[str, ...],
    port: str,
    graph: GraphModel,
    inferred: list[str],
) -> int:
    if isinstance(dim, int):
        return dim
    for name in names:
        value = _get(config, "model", "decoder", name) or config.get(name)
        if isinstance(value, int):
            inferred.append(f"{port}: extent {dim!r} is {value}, by {name}")
            return value
    raise ModelError(
        f"{graph.path}: {port} leaves {dim!r} open and no configuration beside it has any of {list(names)}; "
        "keep the exporter's genai_config.json or config.json in the model's directory and give that directory"
    )


def _shared_buffer(graph: GraphModel, past: PortPairs, config: dict[str, Any], inferred: list[str]) -> bool:
    """Whether past and present may be one buffer: every consumer of every past port appends in place."""
    names = {name for pair in past for name in pair}
    consumers = [node for node in graph.nodes if names & set(node.inputs)]
    able = bool(consumers) and all(node.op_type in IN_PLACE_OPS for node in consumers)
    declared = _get(config, "search", "past_present_share_buffer")
    if declared is None and able:
        inferred.append("past and present share a buffer: all their consumers append in place")
    return able and declared is not False


def _windows(graph: GraphModel, config: dict[str, Any], inferred: list[str]) -> frozenset[int]:
    """Widths of sliding windows, in keys including the query itself: the graph's own attribute, else the configuration's.

    ModelError for a cache that holds no more than its window: rings come with a later version.
    """
    for node in graph.nodes:
        if node.attributes.get("sliding_window_cache"):
            raise ModelError(
                f"{graph.path}: node {node.name!r} keeps a windowed cache (sliding_window_cache=1), which this version does "
                "not run; export the model with full-length KV"
            )
    fused = {int(node.attributes.get("local_window_size", -1)) for node in graph.nodes if node.op_type in IN_PLACE_OPS}
    if fused:
        return frozenset(width for width in fused if width > 0)
    declared = config.get("sliding_window")
    if not isinstance(declared, int) or config.get("use_sliding_window") is False:
        return frozenset()
    inferred.append(f"window of {declared} keys: config.json declares sliding_window, the graph's mask is not read")
    return frozenset({declared})


def _vocab(logits: Port, config: dict[str, Any], graph: GraphModel) -> int:
    declared = _get(config, "model", "vocab_size") or config.get("vocab_size")
    last = logits.shape[-1] if logits.shape else None
    if isinstance(last, int) and isinstance(declared, int) and last != declared:
        raise ModelError(f"{graph.path}: {logits.name} has {last} entries but the configuration says {declared}")
    for value in (last, declared):
        if isinstance(value, int):
            return value
    raise ModelError(f"{graph.path}: neither {logits.name} nor the configuration tells the vocabulary's size")


def _context(config: dict[str, Any], inferred: list[str]) -> int:
    for value in (
        _get(config, "model", "context_length"),
        *(config.get(name) for name in ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length")),
    ):
        if isinstance(value, int):
            return value
    inferred.append(f"context length {_DEFAULT_CONTEXT}: nothing declares one; pass max_context to change it")
    return _DEFAULT_CONTEXT


def _eos(directory: Path, config: dict[str, Any]) -> frozenset[int]:
    """End tokens of the package and its tokenizer together: every id that any of its files declares."""
    generation = _json(directory / "generation_config.json") or {}
    found: set[int] = set()
    for value in (_get(config, "model", "eos_token_id"), config.get("eos_token_id"), generation.get("eos_token_id")):
        found.update(value if isinstance(value, list) else [value] if isinstance(value, int) else [])
    return frozenset(found | _tokenizer_eos(directory))


def _tokenizer_eos(directory: Path) -> set[int]:
    """The id of the tokenizer's own end token, if its files name one."""
    declared = (_json(directory / "tokenizer_config.json") or {}).get("eos_token")
    text = declared.get("content") if isinstance(declared, Mapping) else declared
    added = (_json(directory / "tokenizer.json") or {}).get("added_tokens") or [] if text else []
    return {entry["id"] for entry in added if entry.get("content") == text}


def _port(ports: Mapping[str, Port], name: str, graph: GraphModel) -> Port:
    if name not in ports:
        raise ModelError(f"{graph.path}: no port {name!r} among {sorted(ports)[:12]}")
    return ports[name]


def _optional(ports: Mapping[str, Port], name: str) -> str | None:
    return name if name in ports else None


def _json(path: Path) -> dict[str, Any] | None:
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: not JSON ({error}); export it again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return value


def _get(config: Mapping[str, Any], *path: str) -> Any:
    """A nested value, or None where any level is absent."""
    value: Any = config
    for name in path:
        if not isinstance(value, Mapping):
            return None
        value = value.get(name)
    return value
