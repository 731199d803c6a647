"""Files of known divergences: strict data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from warmcold.harness.conformance.known import FOLDER, load, shipped
from warmcold.harness.contract.errors import KnownError

ENTRY = {
    "id": "a", "package": "engine", "versions": ">=1.2,<2", "model": "tiny-*", "options": {"cache": "static"},
    "law": "reuses", "reason": "because", "link": "https://example.org/1",
}  # fmt: skip


def written(tmp_path: Path, *entries: Any) -> Path:
    """A file with these entries."""
    file = tmp_path / "known.json"
    file.write_text(json.dumps({"warmcold_known": 1, "known": list(entries)}))
    return file


def test_an_entry_speaks_of_releases_models_and_options(tmp_path: Path) -> None:
    """All three must fit; an option that it does not name is free."""
    (entry,) = load(written(tmp_path, ENTRY))
    fits = ("models/tiny-llama", {"engine": "1.5.0"}, {"cache": "static", "threads": "2"})
    assert entry.applies(*fits)
    assert not entry.applies("models/big-llama", *fits[1:])
    assert not entry.applies(fits[0], {"engine": "2.0"}, fits[2])
    assert not entry.applies(fits[0], {}, fits[2])
    assert not entry.applies(*fits[:2], {"cache": "dynamic"})


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"reason": ""}, "reason"),
        ({"link": None}, "link"),
        ({"law": None}, "either the law"),
        ({"case": {"warmcold_case": 1, "ops": [{"op": "new", "session": "s"}]}}, "either the law"),
        ({"versions": "about 3"}, "about 3"),
        ({"because": "x"}, "because"),
        ({"law": None, "case": {"warmcold_case": 1, "ops": []}}, "ops"),
    ],
)
def test_a_bad_entry_is_named(tmp_path: Path, change: dict[str, Any], said: str) -> None:
    """Each entry has a reason and a link, and is about one thing."""
    with pytest.raises(KnownError, match=r"known\[0\]") as error:
        load(written(tmp_path, {**ENTRY, **change}))
    assert said in str(error.value)


def test_ids_are_unique(tmp_path: Path) -> None:
    """Else a report could not name an entry."""
    with pytest.raises(KnownError, match="same id"):
        load(written(tmp_path, ENTRY, ENTRY))


def test_a_file_that_is_none_is_named(tmp_path: Path) -> None:
    """Missing, not JSON, or of another format."""
    (tmp_path / "bad.json").write_text("{")
    (tmp_path / "other.json").write_text("[]")
    for name in ("gone.json", "bad.json", "other.json"):
        with pytest.raises(KnownError, match=name):
            load(tmp_path / name)


def test_what_ships_can_be_read() -> None:
    """Every file in the folder, and each of them is a subject's."""
    from warmcold.harness.subjects.load import SHIPPED

    for file in FOLDER.glob("*.json"):
        assert file.stem in SHIPPED
        assert load(file) == shipped(file.stem)
