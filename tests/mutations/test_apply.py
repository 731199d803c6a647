"""Planting a fault: exactly once, or not at all."""

from __future__ import annotations

import ast
import os
import subprocess
import sys
from pathlib import Path

import pytest

from warmcold.mutations.apply import StaleError, compile_tree, copy_tree, package, plant, replaced
from warmcold.mutations.battery import FORCED
from warmcold.mutations.catalog import MUTANTS
from warmcold.mutations.mutant import Mutant


def mutant(text: str, replacement: str = "new", file: str = "engine/part.py") -> Mutant:
    return Mutant(
        id="m",
        file=file,
        text=text,
        replacement=replacement,
        kind="false_miss",
        expected_check="reuse",
        note="A fault.",
    )


def test_the_text_is_replaced() -> None:
    """The one occurrence becomes the replacement; nothing else changes."""
    assert replaced(mutant("old"), "an old part") == "an new part"


@pytest.mark.parametrize("content", ["nothing", "old and old"])
def test_a_text_that_does_not_occur_exactly_once_is_stale(content: str) -> None:
    """None or two occurrences: the message names the mutant, the file, the number found, and where to mend it."""
    with pytest.raises(StaleError, match=r"m: its text occurs [02] times in engine/part\.py.*mutations/catalog"):
        replaced(mutant("old"), content)


def test_a_missing_file_is_stale(tmp_path: Path) -> None:
    """A file that was renamed away makes its mutants stale, not errors."""
    with pytest.raises(StaleError, match=r"engine/part\.py does not exist"):
        plant(mutant("old"), tmp_path)


def test_a_stale_mutant_leaves_the_copy_alone(tmp_path: Path) -> None:
    """What could not be planted changed nothing."""
    (tmp_path / "engine").mkdir()
    path = tmp_path / "engine" / "part.py"
    path.write_text("old old")
    with pytest.raises(StaleError):
        plant(mutant("old"), tmp_path)
    assert path.read_text() == "old old"


def test_a_copy_holds_sources_and_no_bytecode(tmp_path: Path) -> None:
    """Links become what they lead to, so that planting a fault changes the copy alone; caches stay behind."""
    source, target = tmp_path / "source", tmp_path / "target"
    for name in ("top/engine/a.py", "top/engine/__pycache__/a.cpython-311.pyc", "source/cli.py"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text("x")
    (source / "engine").symlink_to("../top/engine")
    copy_tree(source, target)
    assert sorted(path.relative_to(target).as_posix() for path in target.rglob("*") if path.is_file()) == [
        "cli.py",
        "engine/a.py",
    ]
    assert not (target / "engine").is_symlink()


def test_what_runs_is_the_fault_and_not_its_bytecode(tmp_path: Path) -> None:
    """Bytecode goes by content: a planted file is compiled anew, even where its size and its time are as before."""
    path = tmp_path / "engine" / "part.py"
    path.parent.mkdir()
    path.write_text("print('old')")
    compile_tree(tmp_path)
    times = path.stat()
    plant(mutant("old"), tmp_path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    command = [sys.executable, "-B", "-c", "import engine.part"]
    assert subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=True).stdout == "new\n"


@pytest.mark.source_scan
@pytest.mark.parametrize("mutant", [FORCED, *MUTANTS], ids=lambda mutant: mutant.id)
def test_every_mutant_applies_and_parses(mutant: Mutant) -> None:
    """Each text of the catalogue occurs exactly once today, and what it becomes is still Python."""
    content = (package() / mutant.file).read_text(encoding="utf-8")
    changed = replaced(mutant, content)
    assert changed != content
    ast.parse(changed)
