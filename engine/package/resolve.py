"""A model directory as exporters write it -> `ModelSpec`: ports, KV layout per layer, context, end tokens.

Declared metadata first (`genai_config.json`, then `config.json`), the graph's own signature second. What was inferred
rather than declared is listed in `ModelSpec.inferred`, so that a wrong guess can be seen.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from ..contract.errors import ModelError
from ..graph.load import GraphModel, load_graph
from ..graph.signature import PortPairs, Signature
from ..kernels.node import Dim, Port
from ..kernels.table import kernel_of
from ..kv.layout import LayerKv
from .files import Config, Located, locate, read_json

_DEFAULT_CONTEXT = 2048
_KV_DTYPES = ("float32", "float16")


@dataclass(frozen=True, kw_only=True)
class ModelSpec(Signature):
    """What the engine knows of a model. Port names are the graph's; `attention_mask` and `position_ids` may be None."""

    directory: Path
    graph_path: Path
    declared_by: str
    attention_mask: str | None
    position_ids: str | None
    dtypes: Mapping[str, str]
    shared_buffer: bool
    vocab_size: int
    context_length: int
    eos: frozenset[int]
    inferred: tuple[str, ...]

    @property
    def windows(self) -> frozenset[int]:
        """Widths of its layers' sliding windows, in keys including the query itself."""
        return frozenset(layer.window for layer in self.states if layer.window is not None)


def resolve(path: Path) -> tuple[ModelSpec, GraphModel]:
    """Resolve a model directory or a bare `.onnx` file. ModelError names what is missing and where it was looked for."""
    located = locate(path)
    graph = load_graph(located.graph_path)
    return _Reading(located, graph).spec(), graph


def refuse_nan(graph: GraphModel) -> None:
    """ModelError when a weight holds a NaN: every answer would be one, far from where it came from."""
    for name in sorted(graph.initializers):
        weight = graph.initializer(name)
        if weight.dtype.kind == "f" and np.isnan(weight).any():
            place = [int(i) for i in np.argwhere(np.isnan(weight))[0]]
            raise ModelError(f"{graph.path}: weight {name!r} is NaN at {place}; export or download the model again")


class _Reading:
    """One model while it is read: its files, its graph, and what had to be inferred so far."""

    def __init__(self, located: Located, graph: GraphModel) -> None:
        self._located = located
        self._config: Config = located.config
        self._graph = graph
        self._inputs = {port.name: port for port in graph.inputs}
        self._outputs = {port.name: port for port in graph.outputs}
        self._fed: Config = self._config.section("model", "decoder", "inputs")
        self._made: Config = self._config.section("model", "decoder", "outputs")
        self._inferred: list[str] = []

    def spec(self) -> ModelSpec:
        """All of it. ModelError at the first thing that is missing or contradicts another."""
        past = _pairs(self._fed, self._inputs, ("past_key_names", "past_value_names"), "past_key_values.%d.")
        present = _pairs(self._made, self._outputs, ("present_key_names", "present_value_names"), "present.%d.")
        if len(past) != len(present):
            raise self._error(f"{len(past)} past pairs but {len(present)} present pairs among its ports")
        logits = self._port(self._outputs, self._made, "logits")
        mask, positions = (self._optional(kind) for kind in ("attention_mask", "position_ids"))
        ids = self._port(self._inputs, self._fed, "input_ids")
        self._refuse_others({ids.name, mask, positions, *(name for pair in past for name in pair)})
        layers = [self._layer(self._inputs[key], self._inputs[value]) for key, value in past]
        return ModelSpec(
            directory=self._located.directory,
            graph_path=self._graph.path,
            declared_by=self._located.declared_by,
            input_ids=ids.name,
            attention_mask=mask,
            position_ids=positions,
            logits=logits.name,
            past=past,
            present=present,
            dtypes={name: port.dtype for name, port in self._inputs.items()},
            shared_buffer=self._shared_buffer(past),
            states=self._windowed(layers, past),
            vocab_size=self._vocab(logits),
            context_length=self._context(),
            eos=self._eos(),
            inferred=tuple(self._inferred),
        )

    def _error(self, what: str) -> ModelError:
        return ModelError(f"{self._graph.path}: {what}")

    def _port(self, ports: Mapping[str, Port], declared: Config, kind: str) -> Port:
        name = str(declared.get(kind, kind))
        if name not in ports:
            raise self._error(f"no port {name!r} among {sorted(ports)[:12]}")
        return ports[name]

    def _optional(self, kind: str) -> str | None:
        name = str(self._fed.get(kind, kind))
        return name if name in self._inputs else None

    def _refuse_others(self, known: set[str | None]) -> None:
        if unknown := sorted(set(self._inputs) - known):
            raise self._error(
                f"inputs {unknown} are none that this version feeds (token ids, mask, positions, keys, values); "
                "export a text decoder whose state is keys and values only"
            )

    def _layer(self, key: Port, value: Port) -> LayerKv:
        """Heads and head_dim from the port `[batch, heads, length, head_dim]`, else from the configuration."""
        if len(key.shape) != 4:
            raise self._error(f"{key.name} has shape {list(key.shape)}; keys of rank 4 are what is known")
        if key.dtype != value.dtype:
            raise self._error(f"{key.name} is {key.dtype} but {value.name} is {value.dtype}")
        if key.dtype not in _KV_DTYPES:
            raise self._error(f"{key.name} is {key.dtype}; this version runs keys and values of {_KV_DTYPES}")
        heads = self._extent(key.shape[1], ("num_key_value_heads",), key.name)
        return LayerKv(
            heads=heads, head_dim=self._extent(key.shape[3], ("head_size", "head_dim"), key.name), dtype=key.dtype
        )

    def _extent(self, dim: Dim, names: tuple[str, ...], port: str) -> int:
        if isinstance(dim, int):
            return dim
        for name in names:
            value = self._config.find("model", "decoder", name) or self._config.get(name)
            if isinstance(value, int):
                self._inferred.append(f"{port}: extent {dim!r} is {value}, by {name}")
                return value
        raise self._error(
            f"{port} leaves {dim!r} open and no configuration beside it has any of {list(names)}; "
            "keep the exporter's genai_config.json or config.json in the model's directory and give that directory"
        )

    def _shared_buffer(self, past: PortPairs) -> bool:
        """Whether past and present may be one buffer: every consumer of every past port appends in place."""
        names = {name for pair in past for name in pair}
        consumers = [kernel_of(node) for node in self._graph.nodes if names & set(node.inputs)]
        able = bool(consumers) and all(kernel is not None and kernel.in_place for kernel in consumers)
        declared = self._config.find("search", "past_present_share_buffer")
        if declared is None and able:
            self._inferred.append("past and present share a buffer: all their consumers append in place")
        return able and declared is not False

    def _windowed(self, layers: list[LayerKv], past: PortPairs) -> tuple[LayerKv, ...]:
        """The layers with their sliding windows: by the attributes of the nodes that read them, else the configuration's."""
        self._refuse_rings()
        fused = [(node, kernel.window) for node in self._graph.nodes if (kernel := kernel_of(node)) and kernel.window]
        if not fused:
            declared = self._declared_window()
            return tuple(replace(layer, window=declared) for layer in layers)
        widths = {name: int(node.attributes.get(window, -1)) for node, window in fused for name in node.inputs}
        return tuple(
            replace(layer, window=width) if (width := widths.get(key, -1)) > 0 else layer
            for layer, (key, _) in zip(layers, past, strict=True)
        )

    def _refuse_rings(self) -> None:
        """ModelError for a cache that holds no more than its window: rings come with a later version."""
        for node in self._graph.nodes:
            if node.attributes.get("sliding_window_cache"):
                raise self._error(
                    f"node {node.name!r} keeps a windowed cache (sliding_window_cache=1), which this version does "
                    "not run; export the model with full-length KV"
                )

    def _declared_window(self) -> int | None:
        declared = self._config.get("sliding_window")
        if not isinstance(declared, int) or self._config.get("use_sliding_window") is False:
            return None
        self._inferred.append(
            f"window of {declared} keys: config.json declares sliding_window, the graph's mask is not read"
        )
        return declared

    def _vocab(self, logits: Port) -> int:
        declared = self._config.find("model", "vocab_size") or self._config.get("vocab_size")
        last = logits.shape[-1] if logits.shape else None
        if isinstance(last, int) and isinstance(declared, int) and last != declared:
            raise self._error(f"{logits.name} has {last} entries but the configuration says {declared}")
        for value in (last, declared):
            if isinstance(value, int):
                return value
        raise self._error(f"neither {logits.name} nor the configuration tells the vocabulary's size")

    def _context(self) -> int:
        names = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length")
        for value in (self._config.find("model", "context_length"), *map(self._config.get, names)):
            if isinstance(value, int):
                return value
        self._inferred.append(f"context length {_DEFAULT_CONTEXT}: nothing declares one; pass max_context to change it")
        return _DEFAULT_CONTEXT

    def _eos(self) -> frozenset[int]:
        """End tokens of the package and its tokenizer together: every id that any of its files declares."""
        directory = self._located.directory
        generation = read_json(directory / "generation_config.json") or Config({})
        declared = (
            self._config.find("model", "eos_token_id"),
            *(c.get("eos_token_id") for c in (self._config, generation)),
        )
        found: set[int] = set()
        for value in declared:
            found.update(value if isinstance(value, list) else [value] if isinstance(value, int) else [])
        return frozenset(found | _tokenizer_eos(directory))


def _pairs(declared: Config, ports: Mapping[str, Port], keys: tuple[str, str], prefix: str) -> PortPairs:
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


def _tokenizer_eos(directory: Path) -> set[int]:
    """The id of the tokenizer's own end token, if its files name one."""
    declared = (read_json(directory / "tokenizer_config.json") or Config({})).get("eos_token")
    text = declared.get("content") if isinstance(declared, Mapping) else declared
    added = (read_json(directory / "tokenizer.json") or Config({})).get("added_tokens") if text else None
    return {entry["id"] for entry in added or [] if entry.get("content") == text}
