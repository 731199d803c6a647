"""Subjects of other engines, loaded as a user's are: by name or by file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from warmcold.harness.arms.arms import Arms
from warmcold.harness.run.target import Target

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "fixtures" / "models" / "snap-gqa-growing"
EXAMPLE = f"{ROOT / 'docs' / 'my_engine.py'}:MyEngine"


@pytest.fixture(scope="session")
def mine() -> Iterator[Arms]:
    """The example of docs/subjects.md, with all that judges it."""
    arms = Target(model=str(MODEL), subject=EXAMPLE).open(threads=1)
    yield arms
    arms.subject.close()
