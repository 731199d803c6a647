"""The architecture held true: who may import whom, and the habits that a reader relies on."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from importlinter.cli import lint_imports

from warmcold.harness.checks import ALL

ROOT = Path(__file__).parents[1]
PACKAGES = ("engine", "harness", "mutations", "fixtures")
LONGEST = 400
LONGEST_FUNCTION = 50
MOST_PARAMETERS = 5
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
    """A pass is worth no more than that. Those that are found while playing say it too."""
    assert ALL[name].says
    assert ALL[name].blind


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


def functions(path: Path) -> Iterator[ast.FunctionDef | ast.AsyncFunctionDef]:
    """Every function of a file, nested ones too."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            yield node


def parameters(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """How many it takes, `self` and `cls` aside."""
    names = [*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs]
    rest = [part for part in (node.args.vararg, node.args.kwarg) if part is not None]
    return len(names) + len(rest) - (bool(names) and names[0].arg in ("self", "cls"))


def edges(package: str) -> dict[str, set[str]]:
    """Module -> modules of the same package that it imports, at any depth of the code, for types alone too."""
    paths = {".".join(path.relative_to(ROOT).with_suffix("").parts): path for path in (ROOT / package).rglob("*.py")}
    found: dict[str, set[str]] = {}
    for name, path in paths.items():
        if path.name == "__init__.py":
            continue
        found[name] = set()
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ImportFrom) and node.level:
                base = ".".join([*name.split(".")[: -node.level], *filter(None, [node.module])])
                named_modules = {f"{base}.{item.name}" for item in node.names} & set(paths)
                found[name] |= named_modules or ({base} & set(paths))
    return found


def circle(graph: Mapping[str, set[str]]) -> list[str]:
    """Names that lead back to themselves; none where there is no such way."""
    left = {name: set(targets) & set(graph) for name, targets in graph.items()}
    while free := [name for name, targets in left.items() if not targets]:
        for name in free:
            del left[name]
        for targets in left.values():
            targets.difference_update(free)
    return sorted(left)


@pytest.mark.parametrize("package", PACKAGES)
def test_no_import_goes_in_a_circle(package: str) -> None:
    """Of files, not only of rooms; imports for types alone count."""
    assert circle(edges(package)) == []


@pytest.mark.parametrize("package", PACKAGES)
def test_types_are_named(package: str) -> None:
    """`Any` at most fifteen times in a thousand lines: what goes through a seam has a name."""
    text = "\n".join(path.read_text(encoding="utf-8") for path in (ROOT / package).rglob("*.py"))
    assert len(re.findall(r"\bAny\b", text)) <= 0.015 * len(text.splitlines())


def test_no_function_is_long() -> None:
    """Fifty lines are more than one thought."""
    found = {
        f"{named(path)}:{node.name}": node.end_lineno - node.lineno + 1
        for path in modules()
        for node in functions(path)
        if node.end_lineno is not None and node.end_lineno - node.lineno >= LONGEST_FUNCTION
    }
    assert found == {}


def test_no_function_takes_many_things() -> None:
    """Five at most; what belongs together is one object. Frozen configs have constructors of their own."""
    found = {
        f"{named(path)}:{node.name}": parameters(node)
        for path in modules()
        for node in functions(path)
        if parameters(node) > MOST_PARAMETERS
    }
    assert found == {}


def test_no_docstring_points_elsewhere() -> None:
    """An overriding method says `@override`; "See `X`" is no contract."""
    found = [
        f"{named(path)}:{node.name}"
        for path in modules()
        for node in functions(path)
        if re.match(r"See `[\w.]+`\.?$", ast.get_docstring(node) or "")
    ]
    assert found == []


def test_a_circle_is_found() -> None:
    """Long ones too, and what only leads to one is in it as well."""
    assert circle({"a": {"b"}, "b": {"c"}, "c": {"a"}, "d": set()}) == ["a", "b", "c"]
    assert circle({"a": {"b", "c"}, "b": {"c"}, "c": set()}) == []


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
