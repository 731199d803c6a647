"""Which subject a name means: one that ships with warmcold, one that a package registers, or one in a file.

A package registers its own under the entry point group `warmcold.subjects`. A file is named `path/to/file.py:Factory`.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
from collections.abc import Mapping
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

from ..contract.errors import SubjectError
from ..contract.subject import Factory, Subject

GROUP = "warmcold.subjects"
SHIPPED: Mapping[str, tuple[str, str, str]] = {
    "native": ("engine", "Native", "cpu"),
    "ort": ("engine", "Ort", "cpu"),
    "onnxruntime_genai": ("onnxruntime_genai", "OnnxRuntimeGenai", "genai"),
    "transformers": ("transformers.subject", "Transformers", "transformers"),
    "llama_cpp": ("llama_cpp.subject", "LlamaCpp", "llama-cpp"),
    "openai_http": ("http.subject", "OpenAiHttp", ""),
}
"""Name -> module here, factory, and the extra that brings the engine (none: nothing to install)."""


def names() -> list[str]:
    """Every name that `open_subject` knows, files aside."""
    return sorted({*SHIPPED, *(point.name for point in entry_points(group=GROUP))})


def open_subject(
    spec: str, model: Path | str, *, threads: int = 2, options: Mapping[str, str] | None = None
) -> Subject:
    """Load `model` into the subject that `spec` names. SubjectError says what is wrong with the name, option or model."""
    factory = find(spec)
    given = dict(options or {})
    known = inspect.signature(factory).parameters
    takes_all = any(p.kind is inspect.Parameter.VAR_KEYWORD for p in known.values())
    if not takes_all and (unknown := sorted(set(given) - set(known))):
        offered = sorted(set(known) - {"model", "threads", "self"})
        raise SubjectError(f"--option {unknown[0]}: {spec} has no such option; it takes {', '.join(offered) or 'none'}")
    return factory(model, threads=threads, **given)


def find(spec: str) -> Factory:
    """The factory that `spec` names."""
    if ":" in spec:
        return _in_file(spec)
    if spec in SHIPPED:
        return _shipped(spec)
    for point in entry_points(group=GROUP):
        if point.name == spec:
            factory: Factory = point.load()
            return factory
    raise SubjectError(f"--subject {spec}: unknown; give {', '.join(names())}, or path/to/file.py:Factory")


def _shipped(name: str) -> Factory:
    module, factory, extra = SHIPPED[name]
    try:
        return getattr(importlib.import_module(f".{module}", __package__), factory)  # type: ignore[no-any-return]
    except ImportError as error:
        hint = f"; run: pip install 'warmcold[{extra}]'" if extra else ""
        raise SubjectError(f"--subject {name}: {error}{hint}") from error


def _in_file(spec: str) -> Factory:
    where, _, name = spec.rpartition(":")
    file = Path(where)
    if not file.is_file():
        raise SubjectError(f"--subject {spec}: there is no file {file}; give path/to/file.py:Factory")
    module = _module(file)
    factory = getattr(module, name, None)
    if not callable(factory):
        raise SubjectError(f"--subject {spec}: {file} defines nothing callable named {name!r}")
    return factory  # type: ignore[no-any-return]  # what a file defines has no type here


def _module(file: Path) -> Any:
    """The file as a module of a name of its own; its folder is importable, as for a script."""
    name = f"warmcold_subject_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    if spec is None or spec.loader is None:
        raise SubjectError(f"--subject {file}: is no Python file; give path/to/file.py:Factory")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    folder = str(file.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(0, folder)
    try:
        spec.loader.exec_module(module)
    except Exception as error:  # the file is the user's: whatever it raises is about the file
        raise SubjectError(f"--subject {file}: cannot be loaded: {type(error).__name__}: {error}") from error
    return module
