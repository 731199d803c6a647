"""Copies of the source tree, and planting one fault in a copy.

A copy holds no bytecode: a restored file with an old timestamp beside a cached one has fooled people into testing the
wrong build.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from .mutant import Mutant

FOLDERS = ("engine", "harness", "mutations", "fixtures", "tests")
FILES = ("pyproject.toml", "warmcold.py", "conftest.py", "README.md")

_SKIPPED = shutil.ignore_patterns("__pycache__", "*.pyc", ".*_cache", ".hypothesis", "*.egg-info")


class StaleError(Exception):
    """A mutant's text does not occur exactly once: the source has moved on, and the mutant tests nothing."""


def repository() -> Path:
    """The folder that holds `engine/`, `harness/` and this package."""
    return Path(__file__).resolve().parent.parent


def copy_tree(source: Path, target: Path) -> None:
    """Copy what a run needs from the repository `source` to `target`: no environment, models, reports or caches."""
    target.mkdir(parents=True, exist_ok=True)
    for name in FOLDERS:
        if (source / name).is_dir():
            shutil.copytree(source / name, target / name, ignore=_SKIPPED)
    for name in FILES:
        if (source / name).is_file():
            shutil.copy2(source / name, target / name)


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
