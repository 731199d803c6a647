"""The files of a model directory: where the graph is, and the JSON beside it that declares what it means."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..contract.errors import ModelError


class Config(dict[str, Any]):
    """A JSON object as an exporter wrote it: any value may be absent, or something else than is expected there."""

    def find(self, *path: str) -> Any:
        """A nested value, or None where any level is absent."""
        value: Any = self
        for name in path:
            if not isinstance(value, Mapping):
                return None
            value = value.get(name)
        return value

    def section(self, *path: str) -> Config:
        """A nested object; empty where there is none."""
        found = self.find(*path)
        return Config(found) if isinstance(found, Mapping) else Config()


@dataclass(frozen=True, kw_only=True)
class Located:
    """A model's directory, its graph's file, and the configuration that was found, with the name of its file."""

    directory: Path
    graph_path: Path
    config: Config
    declared_by: str


def locate(path: Path) -> Located:
    """Find the graph of a model directory, or take a bare `.onnx` file. ModelError with what was found instead."""
    if path.is_file():
        return Located(directory=path.parent, graph_path=path, config=Config(), declared_by="bare .onnx")
    if not path.is_dir():
        raise ModelError(f"{path}: no such file or directory; give a model directory or an .onnx file")
    genai = read_json(path / "genai_config.json")
    if genai is not None:
        file = path / str(genai.find("model", "decoder", "filename") or "model.onnx")
        return Located(directory=path, graph_path=file, config=genai, declared_by="genai_config.json")
    config = read_json(path / "config.json")
    declared_by = "config.json" if config is not None else "bare .onnx"
    return Located(directory=path, graph_path=_only_graph(path), config=config or Config(), declared_by=declared_by)


def read_json(path: Path) -> Config | None:
    """The object in a JSON file, or None where there is no such file. ModelError when it holds anything else."""
    if not path.is_file():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (ValueError, UnicodeDecodeError) as error:
        raise ModelError(f"{path}: not JSON ({error}); export it again") from error
    if not isinstance(value, dict):
        raise ModelError(f"{path}: expected a JSON object, found {type(value).__name__}")
    return Config(value)


def _only_graph(path: Path) -> Path:
    candidates = sorted(path.glob("*.onnx"))
    if (path / "model.onnx") in candidates:
        return path / "model.onnx"
    if len(candidates) != 1:
        found = ", ".join(c.name for c in candidates) or "none"
        raise ModelError(
            f"{path}: expected one .onnx file (or a genai_config.json that names it), found {found}; "
            "give the decoder's .onnx file itself"
        )
    return candidates[0]
