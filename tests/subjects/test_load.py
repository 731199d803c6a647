"""Which subject a name means, and what is said where it means none."""

from __future__ import annotations

from pathlib import Path

import pytest

from warmcold.harness.contract.errors import SubjectError
from warmcold.harness.subjects.load import SHIPPED, find, names, open_subject

from .conftest import EXAMPLE, MODEL


def test_a_file_gives_its_factory() -> None:
    """`path/to/file.py:Factory`."""
    subject = open_subject(EXAMPLE, MODEL, threads=1)
    assert (subject.name, subject.model) == ("my_engine", MODEL)


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("nonsense", "openai_http"),
        ("gone.py:Factory", "no file gone.py"),
        (EXAMPLE.replace("MyEngine", "Nobody"), "'Nobody'"),
    ],
)
def test_a_name_that_means_nothing_is_told_so(spec: str, said: str) -> None:
    """With what may be given instead."""
    with pytest.raises(SubjectError, match=said):
        find(spec)


def test_a_file_that_cannot_be_loaded_is_named(tmp_path: Path) -> None:
    """With what it raised: the file is the user's."""
    (tmp_path / "bad.py").write_text("1 / 0")
    with pytest.raises(SubjectError, match="ZeroDivisionError"):
        find(f"{tmp_path / 'bad.py'}:Factory")


def test_an_unknown_option_is_named_with_those_there_are() -> None:
    """Before anything is loaded."""
    with pytest.raises(SubjectError, match=r"--option cache: .* takes none"):
        open_subject(EXAMPLE, MODEL, options={"cache": "static"})


def test_what_ships_is_listed() -> None:
    """Whether or not the engine is installed."""
    assert set(SHIPPED) <= set(names())


def test_a_missing_engine_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    """The extra that brings it."""
    monkeypatch.setitem(SHIPPED, "nobody_has_this", ("nowhere", "Factory", "some-extra"))  # type: ignore[misc]  # a dict at run time
    with pytest.raises(SubjectError, match=r"pip install 'warmcold\[some-extra\]'"):
        find("nobody_has_this")
