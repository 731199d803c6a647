"""The stand-alone script of a case, and the case in words: what they say without the harness."""

from __future__ import annotations

import ast
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import warmcold.engine.engine
import warmcold.engine.kv.layout
import warmcold.engine.kv.mirror
import warmcold.engine.turn.identity
from warmcold.harness.arms.arms import Arms
from warmcold.harness.contract.scenario import Fork, NewSession, Rewind, Scenario, Settings, Turn, load
from warmcold.harness.contract.verdict import Finding
from warmcold.harness.play.exact import run_scenario
from warmcold.harness.reporting.prose import describe
from warmcold.harness.reporting.script import render
from warmcold.harness.run.target import Target
from warmcold.harness.shrinking.confirm import Shrunk

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "fixtures" / "models" / "snap-gqa-shared"
CONVERSATIONS = sorted((ROOT / "tests" / "conversations").glob("*.json"))
NOTHING = Finding(check="tokens", arm="matched", message="m", left="1", right="2", turn="t0")
TWO = (Turn(name="t0", append=(1, 2, 3), max_new_tokens=1), Turn(name="t1", base="t0", append=(4,), max_new_tokens=1))
EVERYTHING = Scenario(
    settings=Settings(page_size=3, pages=9, chunk_size=2, min_capacity=4),
    ops=(
        *TWO,
        Turn(name="t2", session="u", base="t1", part="prompt", keep=3, append=(5,), salt="x"),
        Turn(name="t3", session="u", base="t2", keep=-2, append=(6, 6)),
        Turn(name="t4", session="u", base="t3", keep=0.5, drop=(0, 1), append=(7,), decline_rewind=True),
        Rewind(session="u", to=2),
        Rewind(session="s", to=0.5),
        Rewind(session="nobody", to=1),
        NewSession(session="s"),
        Fork(session="u", to="v"),
        Turn(name="t5", session="v", base="gone", append=(8,), max_new_tokens=3, cancel_after=1),
        Turn(name="t6", session="v", base="t5", append=(9,), fail=("feed", 1)),
        Turn(name="t7", session="v", base="t5", append=(9,)),
    ),
)


def script(scenario: Scenario, finding: Finding, model: str = str(MODEL)) -> str:
    """The script of a shrunk case."""
    small = Shrunk(scenario=scenario, finding=finding, tries=0, seconds=0.0, complete=True)
    text = render(small, Target(model=model, subject="ort"))
    assert text is not None
    return text


Play = Callable[..., tuple[int, str]]


@pytest.fixture
def play(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Play:
    """`play(scenario, finding) -> (exit status, output)` of the script, in this process."""
    monkeypatch.chdir(ROOT)
    monkeypatch.setattr(sys, "argv", ["script"])
    monkeypatch.setattr(sys, "path", list(sys.path))

    def run(scenario: Scenario, finding: Finding = NOTHING) -> tuple[int, str]:
        text = script(scenario, finding)
        with pytest.raises(SystemExit) as ended:
            exec(compile(text, "script", "exec"), {"__name__": "__main__"})
        return int(ended.value.code or 0), capsys.readouterr().out

    return run


PLAYED = {"everything": EVERYTHING, **{file.name[:2]: load(file).scenario for file in CONVERSATIONS[3:9:5]}}


@pytest.mark.parametrize("scenario", PLAYED.values(), ids=PLAYED)
def test_a_healthy_engine_shows_nothing(play: Play, scenario: Scenario) -> None:
    """Every kind of operation can be played, each turn once warm and once cold, and nothing differs."""
    code, out = play(scenario)
    assert (code, "DIFFERENCE" in out) == (0, False)
    assert out.endswith("no difference that shows in tokens, KV or counts\n")
    played = [op.name for op in scenario.ops if isinstance(op, Turn) and op.cancel_after != 0]
    assert [line.split(":")[0] for line in out.splitlines() if " tokens sent" in line] == [*played, "after"]


def test_the_prompts_are_those_of_the_case(play: Play, arms: Arms) -> None:
    """A script sends as many tokens, and the engine reuses as many of them, as when the harness plays the case."""
    _, out = play(Scenario(ops=TWO))
    assert "t0: 3 tokens sent, 0 of them reused (none, identity)" in out
    assert "t1: 5 tokens sent, 3 of them reused (retained, current)" in out


def test_wrong_numbers_show_as_tokens_or_kv(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both token lists, and the first number of the KV that differs where the tokens agree."""
    real = warmcold.engine.kv.layout.write_present
    monkeypatch.setattr(
        warmcold.engine.kv.mirror, "write_present", lambda flat, at, start, rows: real(flat, at, start, rows[::-1])
    )
    code, out = play(Scenario(ops=(TWO[0], Turn(name="t1", session="u", base="t0", append=(4,), max_new_tokens=0))))
    assert code == 1
    assert "    warm []\n    cold []\n    DIFFERENCE: the KV differs: layer 0 key head 0 position " in out
    assert out.endswith("warm and cold differ\n")


def test_what_pages_hold_shows_in_one_turn_more(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """A page that nobody reads back makes no difference, so somebody does."""
    real = warmcold.engine.kv.layout.append_token_kv
    monkeypatch.setattr(
        warmcold.engine.kv.mirror, "append_token_kv", lambda page, at, rows: real(page, at, [row[::-1] for row in rows])
    )
    code, out = play(Scenario(ops=TWO[:1]))
    before, after = out.split("Nothing yet.")
    assert (code, "DIFFERENCE" in before, "DIFFERENCE" in after) == (1, False, True)


def test_a_count_that_is_wrong_is_shown(play: Play, arms: Arms, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between tenants no number differs: the script shows what was reused, and what might have been."""
    real = warmcold.engine.turn.identity.identity_of
    monkeypatch.setattr(warmcold.engine.engine, "identity_of", lambda fields: real({**fields, "salt": None}))
    scenario = Scenario(ops=(TWO[0], Turn(name="t1", base="t0", append=(4,), salt="x")))
    finding = run_scenario(arms, scenario).findings[0]
    assert finding.check == "reuse"
    code, out = play(scenario, finding)
    assert code == 1
    assert f"DIFFERENCE: reported {finding.left}, which is wrong; right: {finding.right}" in out


def test_an_error_that_only_warm_raises_is_a_difference(play: Play, monkeypatch: pytest.MonkeyPatch) -> None:
    """A crash is shown against the cold reply."""

    def broken(*_: Any) -> None:
        raise IndexError("planted")

    monkeypatch.setattr(warmcold.engine.kv.mirror, "append_token_kv", broken)
    code, out = play(Scenario(ops=TWO[:1]))
    assert code == 1
    assert "DIFFERENCE: warm raises an error, cold does not" in out


def test_it_needs_the_engine_alone() -> None:
    """Whoever reads it sees the case in words, the finding, and no import of the harness."""
    text = script(EVERYTHING, NOTHING, "m")
    tree = ast.parse(text)
    imported = {node.module for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    imported |= {name.name for node in ast.walk(tree) if isinstance(node, ast.Import) for name in node.names}
    assert imported == {"warmcold.engine", "numpy", "sys"}
    said = ast.get_docstring(tree) or ""
    assert describe(EVERYTHING) in said
    assert str(NOTHING) in said


@pytest.mark.slow
def test_in_a_tree_with_a_fault(tmp_path: Path) -> None:
    """From `verify` to the script, in processes of their own, on a copy of the sources with a fault in the text."""
    package = tmp_path / "warmcold"
    shutil.copytree(ROOT / "src" / "warmcold", package, ignore=shutil.ignore_patterns("__pycache__"))
    mirror = package / "engine" / "kv" / "mirror.py"
    text = mirror.read_text(encoding="utf-8")
    planted = text.replace("state.present(layer, part)", "state.present(layer, Part(1 - part))")
    assert planted != text
    mirror.write_text(planted, encoding="utf-8")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path)}

    def python(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)

    seen = python(
        "-m",
        "warmcold",
        "verify",
        package / "fixtures" / "models" / "snap-gqa-shared",
        "--backend",
        "ort",
        "--examples",
        20,
    )
    assert seen.returncode == 1, seen.stdout + seen.stderr
    assert "confirmed in a fresh process" in seen.stdout
    assert ".shrunk.json" in seen.stdout.split("shown again by: warmcold replay ")[1]
    (script,) = tmp_path.glob("reports/*/cases/*.py")
    shown = python(script)
    assert (shown.returncode, "DIFFERENCE" in shown.stdout) == (1, True), shown.stdout + shown.stderr
    (case,) = tmp_path.glob("reports/*/cases/*.shrunk.json")
    again = python("-m", "warmcold", "shrink", case, "--out", "small.json")
    assert again.returncode == 1
    assert load(tmp_path / "small.json").scenario.ops == load(case).scenario.ops
    mirror.write_text(text, encoding="utf-8")
    well = python("-m", "warmcold", "shrink", case)
    assert (well.returncode, "shows no difference any more" in well.stdout) == (0, True)
    assert python("-m", "warmcold", "shrink", "gone.json").returncode == 2


@pytest.mark.parametrize(
    ("ops", "words"),
    [
        (
            TWO,
            "Turn t0 sends 3 tokens and gets 1. Turn t1, on the same session, sends the prompt and reply of t0 and then "
            "1 token and gets 1.",
        ),
        (
            (TWO[0], Turn(name="b", session="u", base="t0", part="prompt", keep=2, max_new_tokens=0, salt="x")),
            "Turn t0 sends 3 tokens and gets 1. Turn b, on another session (u), sends the first 2 tokens of the prompt of "
            "t0 and asks for no reply, under the salt 'x'.",
        ),
        (
            (Turn(name="a", append="hello", max_new_tokens=2), Rewind(session="s", to=0.5), NewSession(session="s")),
            "Turn a sends the text 'hello' and gets 2. Session s is rewound to 50%. Session s is opened anew.",
        ),
        (
            (TWO[0], Turn(name="b", base="t0", keep=-1, drop=(1, 2), decline_rewind=True)),
            "Turn t0 sends 3 tokens and gets 1. Turn b, on the same session, sends all but the last 1 token of the prompt "
            "and reply of t0 without positions 1 to 1 and gets 4, its rewind declined.",
        ),
    ],
)
def test_a_conversation_in_words(ops: tuple[Any, ...], words: str) -> None:
    """What each turn sends, where, and what it gets."""
    assert describe(Scenario(ops=ops)) == words


def test_odd_settings_in_words() -> None:
    """Only those that are not the usual ones."""
    assert describe(Scenario(ops=TWO[:1], settings=Settings(page_size=1))).endswith(" Page_size is 1.")
