"""The list of faults found in other engines: whole, playable from the repository, and its page as fresh as its data."""

from __future__ import annotations

import ast
import json
import re
import tomllib
from importlib.machinery import SourceFileLoader
from importlib.util import module_from_spec, spec_from_loader
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from packaging.requirements import Requirement

from warmcold.harness.contract.scenario import load

ROOT = Path(__file__).parents[1]
REPORTS = ROOT / "reports"
SCRIPTS = sorted((REPORTS / "hunt").rglob("*.py"))
FIELDS = (
    *("id", "engine", "script", "shown", "not_shown", "title", "what", "conversation"),
    *("warm", "right", "exact", "found_by", "known"),
)
OURS = {"engine", "harness", "mutations", "fixtures", "warmcold"}
MACHINE = re.compile(r"(?<![\w.{/])/(home|root|Users|work|tmp|mnt|opt|var|usr)/|\bshared/")

pytestmark = pytest.mark.source_scan


def findings() -> list[dict[str, Any]]:
    """The entries of the list."""
    data = json.loads((REPORTS / "hunt.json").read_text(encoding="utf-8"))
    assert data["warmcold_hunt"] == 1
    return list(data["findings"])


def hunt() -> ModuleType:
    """`scripts/hunt`, which has no suffix, as a module."""
    loader = SourceFileLoader("hunt", str(ROOT / "scripts" / "hunt"))
    spec = spec_from_loader("hunt", loader)
    assert spec
    module = module_from_spec(spec)
    loader.exec_module(module)
    return module


def test_no_two_findings_have_one_name() -> None:
    """An id names one finding, of which there is at least one."""
    ids = [entry["id"] for entry in findings()]
    assert ids
    assert len(set(ids)) == len(ids)


@pytest.mark.parametrize("entry", findings(), ids=lambda entry: entry["id"])
def test_a_finding_is_whole(entry: dict[str, Any]) -> None:
    """It says all that a maintainer asks, and either the packages to install or how its server was started."""
    assert [name for name in FIELDS if not entry.get(name)] == []
    assert isinstance(entry["arguments"], list)
    assert bool(entry["release"]) != bool(entry.get("server"))


@pytest.mark.parametrize("entry", findings(), ids=lambda entry: entry["id"])
def test_what_a_finding_names_is_there(entry: dict[str, Any]) -> None:
    """Its script, the models it is run on, and its case, which loads and names a model of the repository."""
    assert (REPORTS / entry["script"]).is_file()
    assert [a for a in entry["arguments"] if "/" in a and "://" not in a and not (ROOT / a).exists()] == []
    if case := entry.get("case"):
        assert load(REPORTS / case).ops
        found = json.loads((REPORTS / case).read_text(encoding="utf-8"))["found"]
        assert not Path(found["model"]).is_absolute()
        assert (ROOT / found["model"]).exists()


def test_the_page_is_what_the_data_give() -> None:
    """`reports/hunt.md` is rendered anew whenever the list changes."""
    made = hunt().render(findings())
    assert (REPORTS / "hunt.md").read_text(encoding="utf-8") == made, "stale: run scripts/hunt render"


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.stem)
def test_a_script_stands_alone(script: Path) -> None:
    """It imports nothing of ours and names no path of the machine that it was written on."""
    source = script.read_text(encoding="utf-8")
    assert imported(source) & OURS == set()
    assert MACHINE.search(source) is None


def imported(source: str) -> set[str]:
    """The packages that a script imports."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            found |= {item.name.split(".")[0] for item in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add((node.module or ".").split(".")[0])
    return found


@pytest.mark.parametrize("name", ["home", "root", "work", "tmp"])
def test_a_path_of_a_machine_is_found(name: str) -> None:
    """The scan sees what it is for, in a string and in a comment."""
    assert MACHINE.search(f'model = "/{name}/models/x"')
    assert MACHINE.search(f"# as in /{name}/x")


@pytest.mark.parametrize(
    "source", ["import harness.compare\n", "from engine import kv\n", "def f():\n    import warmcold\n"]
)
def test_an_import_of_ours_is_found(source: str) -> None:
    """The scan sees what it is for, wherever the import stands."""
    assert imported(source) & OURS


def test_an_environment_of_the_hunt_has_what_warmcold_needs() -> None:
    """It is installed there without its dependencies, so that none of them replaces the release under test."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    needed = {Requirement(text).name for text in project["dependencies"]}
    assert needed <= set(hunt().OURS)
