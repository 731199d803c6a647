"""`warmcold verify --subject`, `replay` and `shrink` on an engine that is not ours."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from warmcold.cli import main as app
from warmcold.harness.arms.arms import Arms
from warmcold.harness.contract.verdict import Level, Verdict
from warmcold.harness.run.player import Effort
from warmcold.harness.run.target import Target
from warmcold.harness.run.verify import judged

from .conftest import EXAMPLE, MODEL

FAULTY = '''
import sys
sys.path.insert(0, {folder!r})
import my_engine

class Late(my_engine.MyEngine):
    """Reuses one position too many of what it holds."""
    def open(self, settings, *, poison):
        return Talk(self)

class Talk(my_engine.Conversation):
    def play(self, op, prompt, n, past):
        if n > 3:
            past = {{name: rows[:, :, [*range(n - 1), n - 2]] for name, rows in past.items()}}
        return super().play(op, prompt, n, past)
'''


@pytest.fixture
def faulty(tmp_path: Path) -> str:
    """The example with a fault, as a file of somebody's."""
    file = tmp_path / "faulty.py"
    file.write_text(FAULTY.format(folder=str(Path(EXAMPLE.rpartition(":")[0]).parent)))
    return f"{file}:Late"


def command(*arguments: str) -> Any:
    """The command's result."""
    return CliRunner().invoke(app, [*arguments, "--threads", "1"])


def test_a_healthy_engine_passes_at_its_level(tmp_path: Path) -> None:
    """Tokens, counts, logits, KV bytes and the matched arm, none of it ours."""
    seen = command("verify", str(MODEL), "--subject", EXAMPLE, "--examples", "4", "--json", "--report", str(tmp_path))
    data = json.loads(seen.stdout)
    assert (seen.exit_code, data["verdict"], data["level"]) == (0, "PASS", "L4")
    assert [leg["leg"] for leg in data["legs"]] == ["MyEngine-cpu"]


def test_a_fault_is_found_shrunk_and_shown_again(tmp_path: Path, faulty: str) -> None:
    """The case says by which subject, so that a fresh process finds it, and `replay` and `shrink` need no more."""
    seen = command("verify", str(MODEL), "--subject", faulty, "--examples", "8", "--json", "--report", str(tmp_path))
    data = json.loads(seen.stdout)
    assert (seen.exit_code, data["verdict"]) == (1, "FAIL")
    (small,) = data["shrunk"]
    case = json.loads(Path(small).read_text())
    assert case["found"]["confirmed"], case["found"]["why"]
    assert case["found"]["subject"] == faulty
    assert len(case["ops"]) <= 3
    assert command("replay", small, "--report", str(tmp_path)).exit_code == 1
    assert command("shrink", small).exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--subject", EXAMPLE], "give the model"),
        (["--option", "a=b"], "belong to --subject"),
        ([str(MODEL), "--subject", EXAMPLE, "--option", "a"], "NAME=VALUE"),
        ([str(MODEL), "--subject", EXAMPLE, "--option", "a=b"], "no such option"),
        (["--url", "http://127.0.0.1:1", str(MODEL)], "no model"),
        (["--url", "http://127.0.0.1:1"], "127.0.0.1:1"),
        (["--url", "http://127.0.0.1:99999"], "http://HOST:PORT"),
        ([str(MODEL), "--subject", EXAMPLE, "--device", "cuda"], "--device cuda"),
        ([str(MODEL), "--subject", "nobody"], "path/to/file.py:Factory"),
    ],
)
def test_a_wrong_call_is_told_what_to_give(arguments: list[str], said: str) -> None:
    """Usage errors, in words."""
    seen = command("verify", *arguments)
    assert seen.exit_code == 2
    assert said in " ".join(seen.output.split())


BLIND = '''
import sys
sys.path.insert(0, {folder!r})
from dataclasses import replace

import my_engine

class Blind(my_engine.MyEngine):
    """Nothing to judge single turns with, and no texts."""
    onnx = None
    def loop(self):
        return None
'''


@pytest.mark.parametrize("judged_by", ["replay", "fresh texts"])
@pytest.mark.parametrize("how", [["verify", "--case"], ["replay"], ["adjudicate", "--case"]], ids=lambda how: how[0])
def test_a_turn_of_text_that_cannot_be_encoded_is_refused(tmp_path: Path, judged_by: str, how: list[str]) -> None:
    """It is neither a fault of the engine's nor one of ours: exit status 2, with the turn and what to give."""
    (tmp_path / "blind.py").write_text(BLIND.format(folder=str(Path(EXAMPLE.rpartition(":")[0]).parent)))
    subject = EXAMPLE if judged_by == "replay" else f"{tmp_path / 'blind.py'}:Blind"
    case = {
        "warmcold_case": 1,
        "ops": [{"op": "turn", "name": "words", "append": "hello"}],
        "found": {"model": str(MODEL), "subject": subject},
    }
    (tmp_path / "text.json").write_text(json.dumps(case))
    name, *rest = how
    other = [] if name == "replay" else [str(MODEL), "--subject", subject]
    report = [] if name == "adjudicate" else ["--report", str(tmp_path)]
    seen = command(name, *rest, str(tmp_path / "text.json"), *other, *report)
    assert seen.exit_code == 2, seen.output
    assert "turn words is given as text" in seen.output
    assert "give token ids" in seen.output


LEAVES = '''
import sys
sys.path.insert(0, {folder!r})
import my_engine

class Leaves(my_engine.MyEngine):
    """Ends the process, as if all were well."""
    def open(self, settings, *, poison):
        return Talk(self)

class Talk(my_engine.Conversation):
    def turn(self, op, prompt):
        raise SystemExit(0)
'''


@pytest.mark.parametrize("how", ["verify", "conformance"])
def test_an_engine_that_leaves_is_no_pass(tmp_path: Path, how: str) -> None:
    """A process that ends with 0 and without a verdict would be read as one."""
    (tmp_path / "leaves.py").write_text(LEAVES.format(folder=str(Path(EXAMPLE.rpartition(":")[0]).parent)))
    more = ["--examples", "2", "--no-shrink", "--report", str(tmp_path)] if how == "verify" else []
    seen = command(how, str(MODEL), "--subject", f"{tmp_path / 'leaves.py'}:Leaves", *more)
    assert seen.exit_code == 1
    assert "SystemExit" in seen.output


def test_without_a_matched_arm_the_level_is_three(mine: Arms) -> None:
    """Logits and KV are shown all the same; what is missing is what replays the schedule."""
    alone = replace(mine, matched=None)
    leg = judged(Target(model=str(MODEL), subject=EXAMPLE), Effort(examples=3), arms=alone)
    assert (leg.verdict, leg.level) == (Verdict.PASS, Level.L3)
