"""The `warmcold` command: what it lists, what it refuses, what it prints, and its exit status."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest

import warmcold.harness.cli.verify
from warmcold.cli import main
from warmcold.harness.contract.observation import Observation
from warmcold.harness.contract.scenario import Scenario, Turn
from warmcold.harness.run.events import Event, LegFinished
from warmcold.harness.run.target import Target
from warmcold.harness.subjects.engine import EngineInstance

ROOT = Path(__file__).parents[1]
MODEL = ROOT / "fixtures" / "models" / "snap-gqa-shared"
SCENARIO = Scenario(
    ops=(
        Turn(name="t0", append=tuple(range(1, 10)), max_new_tokens=3),
        Turn(name="t1", base="t0", append=(11,), max_new_tokens=3),
    )
)


@dataclass(frozen=True)
class Ran:
    """One run of the command."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Callable[..., Ran]:
    """`run(*arguments)` as the console script would, in an empty directory. A traceback would fail the test."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments: object) -> Ran:
        monkeypatch.setattr(sys, "argv", ["warmcold", *map(str, arguments)])
        code = 0
        try:
            main()
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
        seen = capsys.readouterr()
        return Ran(code, seen.out, seen.err)

    return call


Run = Callable[..., Ran]


@pytest.fixture
def case(tmp_path: Path) -> Callable[..., Path]:
    """`case(**fields) -> file`: `SCENARIO` as a case file found on the fixture, with fields replaced."""

    def write(**fields: Any) -> Path:
        content = {**SCENARIO.to_json(), "found": {"model": str(MODEL), "leg": "ort-cpu"}, **fields}
        file = tmp_path / "case.json"
        file.write_text(json.dumps(content), encoding="utf-8")
        return file

    return write


@pytest.fixture
def wrong_tokens(monkeypatch: pytest.MonkeyPatch) -> None:
    """The engine's replies end in a wrong token."""
    real = EngineInstance.turn

    def turn(self: EngineInstance, op: Turn, prompt: Sequence[int]) -> Observation:
        seen = real(self, op, prompt)
        return replace(seen, tokens=(*seen.tokens[:-1], (seen.tokens[-1] + 1) % 61)) if seen.tokens else seen

    monkeypatch.setattr(EngineInstance, "turn", turn)


def one_line(ran: Ran) -> str:
    """The error: one line, no traceback."""
    assert "Traceback" not in ran.err + ran.out
    (line,) = ran.err.strip().splitlines()
    assert line.startswith("error: ")
    return line


@pytest.mark.parametrize("arguments", [[], ["--help"], ["-h"]])
def test_help_lists_the_commands(run: Run, arguments: list[str]) -> None:
    """Each command with what it does."""
    ran = run(*arguments)
    assert ran.code == 0
    for command in ("verify", "replay", "mutate", "models"):
        assert any(line.split()[:1] == [command] and len(line.split()) > 3 for line in ran.out.splitlines())


@pytest.mark.parametrize("command", ["verify", "replay", "mutate", "models"])
def test_each_command_has_help(run: Run, command: str) -> None:
    """`warmcold COMMAND --help` names itself."""
    ran = run(command, "--help")
    assert ran.code == 0
    assert f"warmcold {command}" in ran.out


def test_version(run: Run) -> None:
    """Name and number."""
    assert run("--version") == Ran(0, "warmcold 0.1.0\n", "")


def test_an_unknown_command(run: Run) -> None:
    """Exit status 2, the word, and the next thing to do."""
    ran = run("verfy")
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.endswith("Error: No such command 'verfy'. Did you mean 'verify'?\n")


@pytest.mark.parametrize("package", ["engine", "harness", "mutations", "fixtures"])
def test_a_strangers_package_is_nothing_to_it(tmp_path: Path, package: str) -> None:
    """Common words: a stranger's package of that name, first on the path, is neither run nor in the way."""
    (tmp_path / package).mkdir()
    (tmp_path / package / "__init__.py").write_text("raise SystemExit('a stranger ran')\n", encoding="utf-8")
    done = subprocess.run(
        [sys.executable, "-m", "warmcold", "verify", str(MODEL), "--backend", "ort", "--examples", "1"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(tmp_path)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "PASS" in done.stdout


def test_from_another_directory(tmp_path: Path) -> None:
    """A whole run in a process of its own, from a directory that is not the repository."""
    done = subprocess.run(
        [sys.executable, "-m", "warmcold", "verify", str(MODEL), "--backend", "ort", "--examples", "2"],
        cwd=tmp_path, env={**os.environ, "PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    assert "PASS" in done.stdout
    assert list((tmp_path / "reports").glob("*-verify/report.md"))


def test_verify_passes(run: Run, tmp_path: Path) -> None:
    """Exit status 0; verdict, level and report are named, and the report is there."""
    ran = run("verify", MODEL, "--backend", "ort", "--examples", 2, "--report", tmp_path / "r")
    assert ran.code == 0
    assert "PASS    ort-cpu" in ran.out
    (report,) = (tmp_path / "r").glob("*-verify/report.md")
    assert f"PASS at level L4: {report}" in ran.out


def test_verify_both_backends(run: Run, tmp_path: Path) -> None:
    """Unless told, native and ort are both judged."""
    ran = run("verify", MODEL, "--examples", 1, "--json", "--report", tmp_path / "r")
    assert {leg["leg"] for leg in json.loads(ran.out)["legs"]} == {"native-cpu", "ort-cpu"}


def test_json_is_all_that_is_printed(run: Run, tmp_path: Path) -> None:
    """Standard output is the summary and parses; progress goes to standard error."""
    ran = run("verify", MODEL, "--backend", "ort", "--examples", 2, "--json", "--report", tmp_path / "r")
    data = json.loads(ran.out)
    assert (ran.code, data["verdict"], data["level"]) == (0, "PASS", "L4")
    assert "PASS" in ran.err
    (summary,) = (tmp_path / "r").glob("*-verify/summary.json")
    assert json.loads(summary.read_text()) == data


def test_two_runs_in_one_second_keep_apart(
    run: Run, case: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A run never writes over the folder of another."""
    monkeypatch.setattr("time.strftime", lambda format: "20260101-000000")
    for _ in range(2):
        run("replay", case(), "--report", tmp_path / "r")
    assert len(list((tmp_path / "r").glob("*/report.md"))) == 2


def test_json_of_a_failure(run: Run, tmp_path: Path, wrong_tokens: None) -> None:
    """Still nothing but JSON, with the findings and the case; exit status 1."""
    ran = run("verify", MODEL, "--backend", "ort", "--examples", 2, "--json", "--report", tmp_path / "r")
    data = json.loads(ran.out)
    assert (ran.code, data["verdict"]) == (1, "FAIL")
    assert data["findings"][0]["check"]
    assert Path(data["cases"][0]).is_file()


def test_a_missing_model(run: Run, tmp_path: Path) -> None:
    """Exit status 2 and one line that names the path."""
    ran = run("verify", tmp_path / "gone", "--examples", 1, "--report", tmp_path / "r")
    assert ran.code == 2
    assert str(tmp_path / "gone") in one_line(ran)


def test_a_directory_without_a_model(run: Run, tmp_path: Path) -> None:
    """Likewise for a directory that holds something else."""
    (tmp_path / "empty").mkdir()
    ran = run("verify", tmp_path / "empty", "--examples", 1, "--report", tmp_path / "r")
    assert ran.code == 2
    assert str(tmp_path / "empty") in one_line(ran)


def test_a_file_that_is_no_model(run: Run, tmp_path: Path) -> None:
    """Likewise for a file that is not ONNX."""
    (tmp_path / "model.onnx").write_bytes(b"not a model")
    ran = run("verify", tmp_path / "model.onnx", "--examples", 1, "--report", tmp_path / "r")
    assert ran.code == 2
    assert str(tmp_path / "model.onnx") in one_line(ran)


@pytest.mark.parametrize("option", [["--backend", "magic"], ["--examples", "-1"], ["--time", "soon"], ["--no-such"]])
def test_malformed_options(run: Run, option: list[str]) -> None:
    """Exit status 2, and the option is named."""
    ran = run("verify", MODEL, *option)
    assert ran.code == 2
    assert option[0] in ran.err
    assert "Traceback" not in ran.err


@pytest.mark.parametrize("option", [["--numerics", "sloppy"], ["--device", "abacus"], ["--require-level", "L9"]])
def test_options_that_mean_nothing(run: Run, tmp_path: Path, option: list[str]) -> None:
    """Exit status 2 and one line that names the value."""
    ran = run("verify", MODEL, "--backend", "native", "--examples", 1, "--report", tmp_path / "r", *option)
    assert ran.code == 2
    assert option[1] in one_line(ran)


def test_nothing_judged_is_unknown(run: Run, tmp_path: Path) -> None:
    """No conversation: exit status 3, never 0."""
    ran = run("verify", MODEL, "--backend", "ort", "--examples", 0, "--report", tmp_path / "r")
    assert ran.code == 3
    assert "UNKNOWN" in ran.out


def test_a_fault_of_ours_is_an_error(run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exit status 4, as the help says; never 1, which would blame the model."""

    def broken(*asked: object) -> LegFinished:
        raise ZeroDivisionError("planted")

    monkeypatch.setattr(warmcold.harness.cli.verify, "play", broken)
    try:
        code = run("verify", MODEL, "--backend", "ort", "--report", tmp_path / "r").code
    except ZeroDivisionError:
        code = 1  # what the interpreter exits with
    assert code == 4


def test_a_case_on_the_way(run: Run, tmp_path: Path, case: Callable[..., Path]) -> None:
    """`--case` files are played first."""
    ran = run("verify", MODEL, "--backend", "ort", "--examples", 0, "--case", case(), "--report", tmp_path / "r")
    assert ran.code == 0
    assert "1 conversations, 2 turns, 1 of them reused" in ran.out


def test_replay_of_a_case_that_is_well(run: Run, case: Callable[..., Path], tmp_path: Path) -> None:
    """Nothing differs any more: exit status 0."""
    ran = run("replay", case(), "--report", tmp_path / "r")
    assert (ran.code, "PASS" in ran.out) == (0, True)


def test_replay_of_a_case_that_fails(run: Run, case: Callable[..., Path], tmp_path: Path, wrong_tokens: None) -> None:
    """Exit status 1, the first difference with turn and both values, and how to show it again."""
    ran = run("replay", case(), "--report", tmp_path / "r")
    assert ran.code == 1
    assert "[tokens] the reply differs from token 2 on (turn t0, generated token 2)" in ran.out
    assert "    warm: " in ran.out
    assert " matched: " in ran.out
    assert "shown again by: warmcold replay " in ran.out


@pytest.mark.parametrize(
    ("fields", "word"),
    [
        ({"ops": []}, "ops: Expected `array` of length >= 1"),
        ({"warmcold_case": 9}, "not a case file"),
        ({"ops": [{"op": "turn", "name": "t0", "append": -1}]}, "ops[0].append: Expected"),
        ({"settings": {"page_size": 0}}, "settings.page_size: Expected `int` >= 1, found 0"),
        ({"found": {"leg": "ort-cpu"}}, "--model"),
        ({"found": 3}, "found: Expected `object`"),
        ({"found": {"model": 5}}, "model"),
        ({"found": {"model": str(MODEL), "leg": 7}}, "7"),
        ({"found": {"model": str(MODEL), "leg": "magic-cpu"}}, "magic"),
    ],
)
def test_a_malformed_case(
    run: Run, case: Callable[..., Path], tmp_path: Path, fields: dict[str, Any], word: str
) -> None:
    """Exit status 2 and one line that says what is wrong with it."""
    ran = run("replay", case(**fields), "--report", tmp_path / "r")
    assert ran.code == 2
    assert word in one_line(ran)


def test_a_case_that_is_not_there(run: Run, tmp_path: Path) -> None:
    """Exit status 2 and the path."""
    ran = run("replay", tmp_path / "gone.json")
    assert ran.code == 2
    assert str(tmp_path / "gone.json") in one_line(ran)


def test_text_where_the_model_has_no_tokenizer(run: Run, case: Callable[..., Path], tmp_path: Path) -> None:
    """A case in words cannot be played on a model without `tokenizer.json`: exit status 2, and what to give instead."""
    model = tmp_path / "model"
    model.mkdir()
    for file in MODEL.iterdir():
        if file.name != "tokenizer.json":
            (model / file.name).write_bytes(file.read_bytes())
    words = case(ops=[{"op": "turn", "name": "t0", "append": "hello"}])
    ran = run("replay", words, "--model", model, "--report", tmp_path / "r")
    assert ran.code == 2
    assert "token ids" in one_line(ran)


@pytest.mark.parametrize("leg", ["native-cpu", "ort-cpu", "native-cuda", "ort-cuda"])
def test_replay_is_on_the_leg_where_it_was_found(
    run: Run, case: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, leg: str
) -> None:
    """Backend and device both, or a case found on one would be replayed on another and seem well."""
    asked: list[Target] = []
    real = warmcold.harness.cli.verify.play

    def note(target: Target, *rest: Any) -> Iterator[Event]:
        asked.append(target)
        return real(replace(target, subject="ort", device="cpu"), *rest)

    monkeypatch.setattr(warmcold.harness.cli.verify, "play", note)
    run("replay", case(found={"model": str(MODEL), "leg": leg}), "--report", tmp_path / "r")
    assert [target.leg for target in asked] == [leg]


def test_replay_keeps_the_numerics_of_the_run(
    run: Run, case: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong_tokens: None
) -> None:
    """What was found under `--numerics fast` is replayed under it."""
    first = run("verify", MODEL, "--backend", "native", "--numerics", "fast", "--examples", 0, "--case", case(),
                "--json", "--report", tmp_path / "r")  # fmt: skip
    asked: list[Target] = []
    real = warmcold.harness.cli.verify.play

    def note(target: Target, *rest: Any) -> Iterator[Event]:
        asked.append(target)
        return real(target, *rest)

    monkeypatch.setattr(warmcold.harness.cli.verify, "play", note)
    assert run("replay", json.loads(first.out)["cases"][0], "--report", tmp_path / "again").code == 1
    assert [target.options for target in asked] == [{"numerics": "fast"}]
