"""Only the reuse policy and admission vouch for computed positions; only adapters touch the cache below the seam."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from warmcold.mutations.source_scan import (
    FOLDERS,
    LEAST_FILES,
    PERMISSIONS,
    PRIMITIVE_RULE,
    PROOF_RULE,
    Permission,
    problems,
)

ROOT = Path(__file__).resolve().parents[2]

pytestmark = [pytest.mark.parity, pytest.mark.source_scan]

PRIMITIVE_FORMS = {
    "attribute": "def use(state):\n    return state.buffers.rewind_kv(0)\n",
    "attribute without a call": "def use(state):\n    move = state.truncate_past\n    return move\n",
    "getattr": "def use(state):\n    return getattr(state.buffers, 'current_kv_len')()\n",
    "aliased getattr": "take = getattr\n\n\ndef use(state):\n    return take(state, 'rewind_kv')(0)\n",
    "aliased import": "from warmcold.engine.backends.ort import truncate_past as cut\n",
    "methodcaller": "from operator import methodcaller\n\ncut = methodcaller('truncate_past', 3)\n",
    "dotted attrgetter": "from operator import attrgetter\n\nlength = attrgetter('buffers.current_kv_len')\n",
    "__dict__": "def use(kind):\n    return kind.__dict__['rewind_kv']\n",
    "vars": "def use(kind):\n    return vars(kind)['rewind_kv']\n",
    "a method of its own": "class Backend:\n    def rewind_kv(self, n):\n        self.length = n\n",
}

IMPORTED = "from warmcold.engine.turn.reuse import ReusedPrefix\n\n\n"
MODULE = "from warmcold.engine.turn import reuse\n\n\n"

PROOF_FORMS = {
    "call": IMPORTED + "def make(n):\n    return ReusedPrefix(length=n)\n",
    "through the module": MODULE + "def make(n):\n    return reuse.ReusedPrefix(length=n)\n",
    "aliased import": "from warmcold.engine.turn.reuse import ReusedPrefix as Ready\n\n\n"
    "def make(n):\n    return Ready(length=n)\n",
    "aliased class": IMPORTED + "Ready = ReusedPrefix\n",
    "partial": "from functools import partial\n" + IMPORTED + "make = partial(ReusedPrefix, 3)\n",
    "subclass": IMPORTED + "class Ready(ReusedPrefix):\n    pass\n",
    "getattr": MODULE + "def make(n):\n    return getattr(reuse, 'ReusedPrefix')(length=n)\n",
    "__dict__": MODULE + "def make(n):\n    return reuse.__dict__['ReusedPrefix'](length=n)\n",
    "attrgetter": "from operator import attrgetter\n\nkind = attrgetter('reuse.ReusedPrefix')\n",
    "replace": "from dataclasses import replace\n\n\ndef longer(prefix):\n    return replace(prefix, length=9)\n",
    "qualified replace": "import dataclasses\n\n\ndef longer(p):\n    return dataclasses.replace(p, length=9)\n",
    "aliased replace": "from dataclasses import replace as swap\n\n\ndef longer(p):\n    return swap(p, length=9)\n",
    "deepcopy": "from copy import deepcopy\n" + IMPORTED + "def twin(p: ReusedPrefix):\n    return deepcopy(p)\n",
    "its own type": IMPORTED + "def longer(p: ReusedPrefix):\n    return type(p)(length=9)\n",
    "its __class__": IMPORTED + "def longer(p: ReusedPrefix):\n    return p.__class__(length=9)\n",
    "past frozen": "def longer(prefix):\n    object.__setattr__(prefix, 'length', 9)\n",
}

INNOCENT = {
    "annotation": IMPORTED + "def use(prefix: ReusedPrefix) -> ReusedPrefix:\n    return prefix\n",
    "isinstance": IMPORTED + "def use(x):\n    return isinstance(x, ReusedPrefix)\n",
    "prose": '"""Tells of rewind_kv and ReusedPrefix."""\n',
    "another dataclass": "from dataclasses import replace\n\n\ndef use(it):\n    return replace(it, pages=3)\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A copy of the scanned sources, to plant in."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, tmp_path / name, ignore=shutil.ignore_patterns("__pycache__"))
    return tmp_path


def plant(tree: Path, text: str, file: str = "engine/planted.py") -> list[str]:
    """The problems of `tree` once `text` is in `file`."""
    (tree / file).write_text(text, encoding="utf-8")
    return problems(tree)


def test_the_repository_keeps_to_its_lists() -> None:
    """No hit outside the permissions, no permission without a hit, and enough files read."""
    found = problems(ROOT)
    assert not found, "\n" + "\n".join(found)


@pytest.mark.parametrize("form", PRIMITIVE_FORMS)
def test_a_primitive_is_found_in_every_form(tree: Path, form: str) -> None:
    """Whoever reaches for a rewind primitive is found, however he spells it; the message says what to do instead."""
    found = plant(tree, PRIMITIVE_FORMS[form])
    assert found
    for problem in found:
        assert problem.startswith("engine/planted.py:")
        assert PRIMITIVE_RULE in problem
        assert "route the new backend through `apply_prefix_reuse`; do not widen the list" in problem


@pytest.mark.parametrize("form", PROOF_FORMS)
def test_a_proof_is_found_in_every_form(tree: Path, form: str) -> None:
    """Whoever makes a `ReusedPrefix` of his own is found, however he spells it."""
    found = plant(tree, PROOF_FORMS[form])
    assert found
    for problem in found:
        assert problem.startswith("engine/planted.py:")
        assert PROOF_RULE in problem


@pytest.mark.parametrize("form", INNOCENT)
def test_naming_is_not_making(tree: Path, form: str) -> None:
    """Annotations, `isinstance`, prose and copies of other things are nobody's business."""
    assert plant(tree, INNOCENT[form]) == []


def test_the_line_is_named(tree: Path) -> None:
    """A problem names the line of the expression, not of the file's beginning."""
    assert plant(tree, "\n\n" + PRIMITIVE_FORMS["attribute"])[0].startswith("engine/planted.py:4:")


def test_the_harness_is_scanned_too(tree: Path) -> None:
    """An observer that rewinds what it observes would be the worst place of all."""
    assert plant(tree, PRIMITIVE_FORMS["attribute"], "harness/conformance/faults.py")[0].startswith(
        "harness/conformance/faults.py:2:"
    )


def test_a_permission_is_for_a_function_only(tree: Path) -> None:
    """In a file that may make the proof, another function still may not."""
    path = tree / "engine" / "turn" / "reuse.py"
    extra = "\n\ndef shortcut(n: int) -> ReusedPrefix:\n    return ReusedPrefix(length=n)  # type: ignore\n"
    path.write_text(path.read_text(encoding="utf-8") + extra, encoding="utf-8")
    (problem,) = problems(tree)
    assert problem.startswith("engine/turn/reuse.py:")
    assert "in shortcut" in problem


@pytest.mark.parametrize("permission", PERMISSIONS, ids=lambda permission: permission.function or permission.file)
def test_a_permission_that_nothing_uses_is_stale(tree: Path, permission: Permission) -> None:
    """With its file emptied, each permission is reported as stale by name."""
    (tree / permission.file).write_text("", encoding="utf-8")
    assert any(problem.startswith(f"stale permission: nothing hits {permission}") for problem in problems(tree))


@pytest.mark.parametrize("folder", FOLDERS)
def test_a_scan_of_too_little_is_a_problem(tree: Path, folder: str) -> None:
    """Without one of the folders the scan says so instead of passing, however much the other holds."""
    shutil.rmtree(tree / folder)
    found = [problem for problem in problems(tree) if problem.startswith("only 0 files scanned")]
    assert len(found) == 1
    assert f"expected {LEAST_FILES} or more" in found[0]
