"""What a run of mutmut left under `mutants/`: each mutant, its verdict, its diff, and the test that killed it.

mutmut runs in a tree built for it, with `src/warmcold` as plain folders. A file is named here as readers know it, from
that folder on: `engine/turn/reuse.py`.

mutmut keeps exit codes per mutant (`<file>.meta`) and all variants of a function in one generated file. It has neither a
report nor identifiers that survive an edit, so a mutant is known here by a hash of what it changes.
"""

from __future__ import annotations

import ast
import hashlib
import json
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from difflib import unified_diff
from enum import StrEnum
from pathlib import Path

SOURCE = "src/warmcold"
PACKAGE = "warmcold"


class Status(StrEnum):
    """The end of a mutant. Only `KILLED` is a kill: a test failed in its call phase and left a record."""

    KILLED = "killed"
    SURVIVED = "survived"
    NO_TESTS = "no tests"
    TIMEOUT = "timeout"
    INCONCLUSIVE = "inconclusive"
    NOT_CHECKED = "not checked"


_BY_CODE = {0: Status.SURVIVED, 5: Status.NO_TESTS, 33: Status.NO_TESTS, None: Status.NOT_CHECKED}
_BY_CODE |= dict.fromkeys((24, -24, 36, 152), Status.TIMEOUT)  # by the clock, or by processor time


@dataclass(frozen=True, kw_only=True)
class Killer:
    """The failure that ended a mutant: test, phase (`when`), and what was raised."""

    nodeid: str
    when: str
    exception: str
    message: str


@dataclass(frozen=True, kw_only=True)
class Mutated:
    """One mutant. `key` is mutmut's name, which an edit renumbers; `id` hashes the file, function and changed lines."""

    id: str
    key: str
    path: str
    function: str
    status: Status
    diff: tuple[str, ...]
    killer: Killer | None = None


def read_mutants(root: Path) -> list[Mutated]:
    """Every mutant of the run whose `mutants/` lies in `root`. FileNotFoundError where there is none."""
    mutants = root / "mutants"
    metas = sorted((mutants / SOURCE).rglob("*.py.meta"))
    if not metas:
        raise FileNotFoundError(f"no *.py.meta below {mutants / SOURCE}; let `make mutmut` finish first")
    return [mutant for meta in metas for mutant in _of_file(mutants, meta)]


def unmutated(root: Path, path: str, keys: set[str]) -> Iterator[str]:
    """Names of the functions of a source file that hold code and yet have no mutant among `keys`."""
    module = ".".join((PACKAGE, *Path(path).with_suffix("").parts))
    stems = {key.partition("__mutmut_")[0] for key in keys}
    tree = ast.parse((root / SOURCE / path).read_text(encoding="utf-8"))
    for name, node in _functions(tree):
        owner, _, own = name.rpartition(".")
        stem = f"{module}.xǁ{owner}ǁ{own}" if owner else f"{module}.x_{own}"
        if _has_code(node) and stem not in stems:
            yield name


def status_of(code: int | None, killer: Killer | None) -> Status:
    """mutmut counts every exit code 1 and 3 as a kill; without a failed call that may be pytest itself going down."""
    if code == 1 and killer is not None and killer.when == "call":
        return Status.KILLED
    return _BY_CODE.get(code, Status.INCONCLUSIVE)


def _of_file(mutants: Path, meta: Path) -> Iterator[Mutated]:
    codes: dict[str, int | None] = json.loads(meta.read_text(encoding="utf-8"))["exit_code_by_key"]
    if not codes:
        return
    generated = meta.with_suffix("")
    path = generated.relative_to(mutants / SOURCE).as_posix()
    variants = _variants(generated.read_text(encoding="utf-8"))
    seen: Counter[str] = Counter()
    for key, code in codes.items():
        variant = key.rpartition(".")[2]
        stem = variant.partition("__mutmut_")[0]
        function = stem.removeprefix("x_") if stem.startswith("x_") else stem.removeprefix("xǁ").replace("ǁ", ".")
        diff = _diff(variants[f"{stem}__mutmut_orig"], variants[variant])
        mark = _hash(path, function, diff)
        seen[mark] += 1
        killer = _killer(mutants, key)
        yield Mutated(
            id=mark if seen[mark] == 1 else f"{mark}-{seen[mark]}",  # the same change at two places of a function
            key=key,
            path=path,
            function=function,
            status=status_of(code, killer),
            diff=diff,
            killer=killer,
        )


def _killer(mutants: Path, key: str) -> Killer | None:
    path = mutants / ".killers" / f"{key}.json"
    if not path.exists():
        return None
    record: dict[str, str] = json.loads(path.read_text(encoding="utf-8"))
    return Killer(**{name: record[name] for name in ("nodeid", "when", "exception", "message")})


def _variants(source: str) -> dict[str, list[str]]:
    """Lines of each generated variant of each function, without the line that names it."""
    lines = source.splitlines()
    return {
        node.name: lines[node.lineno : node.end_lineno]
        for _, node in _functions(ast.parse(source))
        if "__mutmut_" in node.name
    }


def _functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from ((f"{node.name}.{item.name}", item) for item in node.body if isinstance(item, ast.FunctionDef))


def _has_code(node: ast.FunctionDef) -> bool:
    """Whether the body is more than a docstring: a protocol's promise has nothing to mutate."""
    return any(not (isinstance(item, ast.Expr) and isinstance(item.value, ast.Constant)) for item in node.body)


def _diff(original: list[str], mutant: list[str]) -> tuple[str, ...]:
    lines = list(unified_diff(original, mutant, n=0, lineterm=""))[2:]
    return tuple(line for line in lines if not line.startswith("@@"))


def _hash(path: str, function: str, diff: tuple[str, ...]) -> str:
    text = "\n".join([path, function, *(line[0] + line[1:].strip() for line in diff)])
    return hashlib.sha256(text.encode()).hexdigest()[:12]
