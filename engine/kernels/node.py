"""A graph's nodes and ports as plain data: what a kernel is built from, and no more of the file than that."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

Dim = int | str | None


@dataclass(frozen=True)
class Port:
    """An input or output of the graph. `dtype` is a numpy name; a dimension is an extent, a symbol, or unknown."""

    name: str
    dtype: str
    shape: tuple[Dim, ...]


@dataclass(frozen=True)
class Node:
    """One operator call. `domain` is "" for ai.onnx; an omitted optional input or output is "".

    `version` is the graph's opset of that domain; tensor attributes are numpy arrays, `proto` is the node as read.
    """

    op_type: str
    domain: str
    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    attributes: Mapping[str, Any]
    version: int
    proto: Any = field(default=None, repr=False, compare=False)

    def __str__(self) -> str:
        return f"{self.domain or 'ai.onnx'}.{self.op_type} (opset {self.version}) at node {self.name!r}"
