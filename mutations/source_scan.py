"""Who may say "these positions are already computed", and who may touch the cache below the reuse seam.

Reads the syntax tree of `engine/` and `harness/`, because a search by line misses `getattr`, aliased imports,
`methodcaller` and `__dict__`. A name that is put together at run time is beyond it.

A place that may is a file and, where it matters, a function. A permission that nothing uses any more is a problem too:
it would cover the next stranger who moves in.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

FOLDERS = ("engine", "harness")
LEAST_FILES = 40
"""Fewer than this in any of the folders and the scan did not see the repository: each holds more."""

PRIMITIVES = frozenset({"rewind_kv", "truncate_past", "current_kv_len"})
PROOF = "ReusedPrefix"
FIELDS = frozenset({"length", "source", "reason", "declined"})

_COPIERS = frozenset({"replace", "copy", "deepcopy", "__replace__"})
_REMEDY = "route the new backend through `apply_prefix_reuse`; do not widen the list"


@dataclass(frozen=True, kw_only=True)
class Hit:
    """One place that a rule speaks of. `inside`: the function it lies in, `Class.method`; "" at module level."""

    file: str
    line: int
    rule: str
    form: str
    inside: str

    def __str__(self) -> str:
        where = f" in {self.inside}" if self.inside else ""
        return f"{self.file}:{self.line}: {self.rule}: {self.form}{where}"


@dataclass(frozen=True, kw_only=True)
class Permission:
    """`rule` may be hit in `file`, inside `function` only unless that is None."""

    rule: str
    file: str
    function: str | None = None

    def covers(self, hit: Hit) -> bool:
        """Whether `hit` is what this permits."""
        return (self.rule, self.file) == (hit.rule, hit.file) and self.function in (None, hit.inside)

    def __str__(self) -> str:
        return f"{self.rule} in {self.file}" + (f", {self.function}" if self.function else "")


PROOF_RULE = f"{PROOF} is made only by the reuse policy and by admission"
PRIMITIVE_RULE = "rewind primitives are touched only where they are defined and in the adapters of the reuse seam"

PERMISSIONS = (
    Permission(rule=PROOF_RULE, file="engine/turn/reuse.py", function="nothing_reused"),
    Permission(rule=PROOF_RULE, file="engine/turn/reuse.py", function="apply_prefix_reuse"),
    Permission(rule=PROOF_RULE, file="engine/turn/turn.py", function="Turn._seed"),
    Permission(rule=PRIMITIVE_RULE, file="engine/kv/buffers.py"),
    Permission(rule=PRIMITIVE_RULE, file="engine/backends/buffered.py"),
    Permission(rule=PRIMITIVE_RULE, file="engine/backends/ort.py"),
)


def problems(
    root: Path, *, permissions: Sequence[Permission] = PERMISSIONS, least_files: int = LEAST_FILES
) -> list[str]:
    """What is wrong under `root`, one line each: hits outside the permissions, stale permissions, too small a scan."""
    files = sources(root)
    hits = [hit for file in files for hit in scan(file.read_text(encoding="utf-8"), file.relative_to(root).as_posix())]
    found = [f"{hit}; {_REMEDY}" for hit in hits if not any(permission.covers(hit) for permission in permissions)]
    found += [
        f"stale permission: nothing hits {permission} any more; take it off the list"
        for permission in permissions
        if not any(permission.covers(hit) for hit in hits)
    ]
    for folder in FOLDERS:
        count = sum(file.is_relative_to(root / folder) for file in files)
        if count < least_files:
            found.append(
                f"only {count} files scanned under {root / folder}, expected {least_files} or more: is this the repository?"
            )
    return found


def sources(root: Path) -> list[Path]:
    """Every Python file of the scanned folders, in order."""
    return sorted(path for folder in FOLDERS for path in (root / folder).rglob("*.py"))


def scan(text: str, file: str) -> list[Hit]:
    """Every hit in one source text. SyntaxError when it does not parse."""
    tree = ast.parse(text, filename=file)
    visitor = _Visitor(file, mentions=PROOF in text, holds_engine_objects=not _is_judge(file))
    visitor.visit(tree)
    return visitor.hits


def _is_judge(file: str) -> bool:
    """Whether a file is in the part of the harness that never sees an object of the engine."""
    return file.startswith("harness/") and not file.startswith("harness/subjects/")


class _Visitor(ast.NodeVisitor):
    """Collects hits of one file. Annotations are skipped: naming a type makes nothing."""

    def __init__(self, file: str, *, mentions: bool, holds_engine_objects: bool) -> None:
        self.hits: list[Hit] = []
        self._file = file
        self._mentions = mentions
        self._holds = holds_engine_objects
        self._inside: list[str] = []
        self._copiers = set(_COPIERS)

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        if node.name in PRIMITIVES:
            self._primitive(node, f"definition of `{node.name}`")
        for part in (*node.decorator_list, *node.args.defaults, *filter(None, node.args.kw_defaults)):
            self.visit(part)
        self._within(node.name, node.body)

    visit_AsyncFunctionDef = visit_FunctionDef

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        for part in (*node.decorator_list, *node.bases, *node.keywords):
            self.visit(part)
        self._within(node.name, node.body)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.visit(node.target)
        if node.value is not None:
            self.visit(node.value)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        for alias in node.names:
            if alias.name in PRIMITIVES:
                self._primitive(node, f"import of `{alias.name}`")
            if alias.name == PROOF and alias.asname is not None:
                self._proof(node, f"import of `{PROOF}` under another name, `{alias.asname}`")
            if node.module in ("dataclasses", "copy") and alias.name in _COPIERS and alias.asname is not None:
                self._copiers.add(alias.asname)

    def visit_Name(self, node: ast.Name) -> None:
        if node.id == PROOF:
            self._proof(node, f"use of the class `{PROOF}`")
        if node.id in PRIMITIVES:
            self._primitive(node, f"use of `{node.id}`")

    def visit_Attribute(self, node: ast.Attribute) -> None:
        if node.attr == PROOF:
            self._proof(node, f"use of the class `{PROOF}` as an attribute")
        if node.attr in PRIMITIVES:
            self._primitive(node, f"attribute `{node.attr}`")
        self.generic_visit(node)

    def visit_Constant(self, node: ast.Constant) -> None:
        """A text that is such a name: `getattr`, `attrgetter`, `methodcaller`, `__dict__[...]`, `vars(...)[...]`."""
        for name in node.value.split(".") if isinstance(node.value, str) else ():
            if name in PRIMITIVES:
                self._primitive(node, f"the name '{name}' as text")
            if name == PROOF:
                self._proof(node, f"the name '{name}' as text")

    def visit_Call(self, node: ast.Call) -> None:
        function = _called(node.func)
        if function == "isinstance" and len(node.args) == 2:
            self.visit(node.args[0])  # asking whether it is one makes none
            return
        if function in self._copiers and self._copies(node):
            self._proof(node, f"`{function}` of a `{PROOF}`")
        if function == "__setattr__" and any(isinstance(a, ast.Constant) and a.value in FIELDS for a in node.args):
            self._proof(node, f"`__setattr__` on a `{PROOF}`")
        if self._mentions and _is_class_of_value(node.func):
            self._proof(node, "call of the class of a value")
        self.generic_visit(node)

    def _copies(self, node: ast.Call) -> bool:
        names = {keyword.arg for keyword in node.keywords}
        return self._holds and (bool(names & FIELDS) or self._mentions)

    def _within(self, name: str, body: Sequence[ast.stmt]) -> None:
        self._inside.append(name)
        for part in body:
            self.visit(part)
        self._inside.pop()

    def _proof(self, node: ast.AST, form: str) -> None:
        self._hit(node, PROOF_RULE, form)

    def _primitive(self, node: ast.AST, form: str) -> None:
        self._hit(node, PRIMITIVE_RULE, form)

    def _hit(self, node: ast.AST, rule: str, form: str) -> None:
        line = getattr(node, "lineno", 0)
        self.hits.append(Hit(file=self._file, line=line, rule=rule, form=form, inside=".".join(self._inside)))


def main() -> int:
    """Scan the package that this module is part of; print what is wrong, and end with 1 if anything is."""
    found = problems(Path(__file__).absolute().parents[1])
    print("\n".join(found))
    return 1 if found else 0


def _called(function: ast.expr) -> str:
    if isinstance(function, ast.Name):
        return function.id
    return function.attr if isinstance(function, ast.Attribute) else ""


def _is_class_of_value(function: ast.expr) -> bool:
    """`type(x)(...)` and `x.__class__(...)`."""
    if isinstance(function, ast.Call):
        return _called(function.func) == "type" and len(function.args) == 1
    return isinstance(function, ast.Attribute) and function.attr == "__class__"


if __name__ == "__main__":
    sys.exit(main())
