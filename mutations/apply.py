"""Copies of the package, and planting one fault in a copy.

A copy holds no bytecode that goes by timestamps: a restored file beside a cached one has fooled people into testing the
wrong build. What `compile_tree` adds goes by content: a file with a fault in it no longer fits and is compiled anew.
"""

from __future__ import annotations

import compileall
import shutil
from pathlib import Path
from py_compile import PycInvalidationMode

from .mutant import Mutant

_SKIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*_cache", ".hypothesis", "*.egg-info")


class FalsifierError(Exception):
    """The falsifier cannot say what it was asked: its message names the mutant or the tree at fault."""


class StaleError(FalsifierError):
    """A mutant's text does not occur exactly once: the source has moved on, and the mutant tests nothing."""


def package() -> Path:
    """The folder of the installed package: holds `engine/`, `harness/`, `mutations/` and `fixtures/`, or links to them."""
    return Path(__file__).absolute().parents[1]


def copy_tree(source: Path, target: Path) -> None:
    """Copy the package folder `source` to `target`, links as what they lead to, no caches."""
    shutil.copytree(source, target, ignore=_SKIPPED)


def compile_tree(tree: Path) -> None:
    """Add bytecode to a copy, valid for exactly the sources that lie there; copies of it start in half the time."""
    compileall.compile_dir(tree, quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)


def replaced(mutant: Mutant, content: str) -> str:
    """`content` with the fault planted. StaleError names the file and how often the text occurs."""
    found = content.count(mutant.text)
    if found != 1:
        raise StaleError(
            f"{mutant.id}: its text occurs {found} times in {mutant.file}, wanted once; "
            f"bring mutations/catalog up to date with the source"
        )
    return content.replace(mutant.text, mutant.replacement)


def plant(mutant: Mutant, tree: Path) -> None:
    """Plant the fault in the copy `tree`. StaleError when its file or its text is gone; the copy is untouched then."""
    path = tree / mutant.file
    if not path.is_file():
        raise StaleError(
            f"{mutant.id}: {mutant.file} does not exist; bring mutations/catalog up to date with the source"
        )
    path.write_text(replaced(mutant, path.read_text(encoding="utf-8")), encoding="utf-8")
