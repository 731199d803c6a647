"""The architecture held true: who may import whom, and the habits that a reader relies on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

from warmcold.harness.checks import ALL

ROOT = Path(__file__).parents[1]
PACKAGES = ("engine", "harness", "mutations", "fixtures")
LONGEST = 400
NOT_OURS = {"__pycache__", "models", "reports", "mutants", "dist", "build"}

pytestmark = pytest.mark.source_scan


def modules() -> list[Path]:
    """Every source file of the packages, and those of `src/warmcold` itself."""
    found = [path for package in PACKAGES for path in sorted((ROOT / package).rglob("*.py"))]
    assert len(found) > 80
    return [*found, *sorted((ROOT / "src" / "warmcold").glob("*.py"))]


def files(folder: Path = ROOT) -> Iterator[Path]:
    """Every file of the repository: nothing hidden, built or downloaded. Fixture models are ours."""
    for path in sorted(folder.iterdir()):
        if path.is_dir():
            built = path.name.endswith(".egg-info") or (path.name in NOT_OURS and folder.name != "fixtures")
            if not built and not path.name.startswith("."):
                yield from files(path)
        else:
            yield path


def named(path: Path) -> str:
    """A path as a reader knows it."""
    return path.relative_to(ROOT).as_posix()


def environment_reads(source: str) -> list[int]:
    """Lines that read a process-global environment variable, however it is spelt."""
    names = {"environ", "environb", "getenv", "getenvb"}

    def reads(node: ast.AST) -> bool:
        if isinstance(node, ast.ImportFrom):
            return node.module == "os" and bool(names & {item.name for item in node.names})
        return isinstance(node, ast.Attribute) and node.attr in names

    nodes = ast.walk(ast.parse(source))
    return [node.lineno for node in nodes if isinstance(node, (ast.stmt, ast.expr)) and reads(node)]


def bare_imports(source: str) -> list[int]:
    """Lines that import one of the packages by a name that an installation does not have."""
    lines = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            lines += [node.lineno for item in node.names if item.name.split(".")[0] in PACKAGES]
        elif isinstance(node, ast.ImportFrom) and node.level == 0 and (node.module or "").split(".")[0] in PACKAGES:
            lines.append(node.lineno)
    return lines


def machine_paths(content: bytes) -> list[str]:
    """Absolute paths that only one machine has: somebody's home, a workspace, a scratch folder."""
    roots = b"|".join([b"home", b"root", b"Users", b"work", b"workspace", b"mnt", b"private", b"tmp"])
    found = re.findall(rb"(?:(?<![\w.~)>}\]/-])/(?:" + roots + rb")/|[A-Z]:\\\\?Users)[\w.-]*", content)
    return [text.decode() for text in found]


def test_the_import_contracts_hold(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    """`[tool.importlinter]` in pyproject.toml says who may import whom."""
    monkeypatch.chdir(ROOT)
    code = lint_imports(config_filename=str(ROOT / "pyproject.toml"), no_cache=True)
    assert code == 0, capsys.readouterr().out


@pytest.mark.parametrize("path", modules(), ids=named)
def test_every_module_says_what_it_is(path: Path) -> None:
    """A docstring, unless the file is empty."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    assert not tree.body or ast.get_docstring(tree), f"{named(path)} has no docstring; say what the module is for"


@pytest.mark.parametrize("name", ALL)
def test_every_check_says_what_it_cannot_see(name: str) -> None:
    """A pass is worth no more than that."""
    assert "Cannot see" in (ALL[name].__doc__ or "")


def test_nothing_is_read_from_the_environment() -> None:
    """What decides is passed in, never found lying about."""
    found = [
        f"{named(path)}:{line}" for path in modules() for line in environment_reads(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_nothing_is_imported_by_a_strangers_name() -> None:
    """`engine` from the repository's top would be a second copy beside `warmcold.engine`, or a stranger's."""
    found = [
        f"{named(path)}:{line}"
        for path in files()
        if path.suffix == ".py" and not path.is_relative_to(ROOT / "src")
        for line in bare_imports(path.read_text(encoding="utf-8"))
    ]
    assert found == []


def test_no_file_is_long() -> None:
    """A file that one cannot read in one sitting holds more than one concept."""
    lengths = {
        named(path): len(path.read_text(encoding="utf-8").splitlines()) for path in files() if path.suffix == ".py"
    }
    assert len(lengths) > 120
    assert {name: length for name, length in lengths.items() if length > LONGEST} == {}


def test_no_file_names_a_machine() -> None:
    """The repository works wherever it is put; binary models are read too."""
    seen = list(files())
    assert ROOT / "fixtures" / "models" / "snap-square" / "model.onnx" in seen
    assert {named(path): found for path in seen if (found := machine_paths(path.read_bytes()))} == {}


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.environ['X']\n",
        "import os as system\nsystem.getenv('X')\n",
        "from os import environ\n",
        "from os import getenv as get\n",
        "import os\nvalue = dict(os.environ)\n",
    ],
)
def test_a_read_of_the_environment_is_found(source: str) -> None:
    """However it is spelt."""
    assert environment_reads(source)


@pytest.mark.parametrize(
    "source", ["import engine\n", "from harness.play import exact\n", "def f():\n    import mutations.cli as cli\n"]
)
def test_an_import_by_a_strangers_name_is_found(source: str) -> None:
    """At the top or inside a function; a relative one, ours by its whole name and another package are well."""
    assert bare_imports(source)
    assert not bare_imports("from . import engine\nfrom warmcold.engine import x\nimport engineering\n")


@pytest.mark.parametrize("folder", ["home", "root", "Users", "work", "tmp"])
def test_a_machine_path_is_found(folder: str) -> None:
    """In prose, in quotes, and in bytes that are no text."""
    path = "/" + "/".join([folder, "someone", "x.py"])
    assert machine_paths(f'see "{path}"'.encode())
    assert machine_paths(b"\xff\x00" + path.encode())
    assert not machine_paths(f"https://example.org{path} and a{path} and ./{path.lstrip('/')}".encode())
