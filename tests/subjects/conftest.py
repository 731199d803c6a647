"""Subjects of other engines, loaded as a user's are: by name or by file."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from warmcold.harness.play.exact import Arms
from warmcold.harness.run.verify import Request

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "fixtures" / "models" / "snap-gqa-growing"
EXAMPLE = f"{ROOT / 'docs' / 'my_engine.py'}:MyEngine"


@pytest.fixture(scope="session")
def mine() -> Iterator[Arms]:
    """The example of docs/subjects.md, with all that judges it."""
    arms = Request(model=MODEL, subject=EXAMPLE, threads=1).open()
    yield arms
    arms.subject.close()
