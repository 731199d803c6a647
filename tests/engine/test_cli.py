"""`warmcold generate`, `chat` and `inspect`: what scripts and people read, and one line where something is wrong."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from warmcold.engine.cli import app
from warmcold.fixtures import closed_forms

MODELS = Path(__file__).parents[2] / "fixtures" / "models"
SNAP = MODELS / "snap-gqa-shared"
ORACLE = closed_forms.load(SNAP)
assert ORACLE is not None


@dataclass
class Ran:
    """Exit status and what was printed."""

    code: int
    out: str
    err: str


@pytest.fixture
def run(capsys: pytest.CaptureFixture[str]) -> Callable[..., Ran]:
    """Run a command in this process."""

    def call(*arguments: object) -> Ran:
        try:
            app([str(argument) for argument in arguments], prog_name="warmcold")
            code = 0
        except SystemExit as end:
            code = int(end.code or 0)
        printed = capsys.readouterr()
        return Ran(code, printed.out, printed.err)

    return call


def test_generate_prints_the_text_of_a_prompt(run: Callable[..., Ran]) -> None:
    """By the model's own tokenizer, both ways."""
    ran = run("generate", SNAP, "--prompt", "abc", "--max-new-tokens", 4, "--backend", "ort")
    ids = run("generate", SNAP, "--prompt", "abc", "--max-new-tokens", 4, "--backend", "ort", "--json")
    tokens = json.loads(ids.out)["tokens"]
    assert (ran.code, len(ran.out.strip())) == (0, 4)
    assert len(tokens) == 4


def test_generate_json_adds_up(run: Callable[..., Ran]) -> None:
    """One object a turn; reused + prefilled is the prompt; the tokens are what the model means."""
    ran = run("generate", SNAP, "--prompt-ids", "[1, 2, 3]", "--max-new-tokens", 5, "--json")
    (turn,) = [json.loads(line) for line in ran.out.splitlines()]
    assert turn["tokens"] == ORACLE.greedy([1, 2, 3], 5)
    assert turn["reused"] + turn["prefilled"] == turn["prompt_len"] == 3
    assert (turn["reason"], turn["stop"], turn["source"]) == ("identity", "length", "none")


@pytest.mark.parametrize("cold", [False, True])
def test_several_turns_on_one_session(run: Callable[..., Ran], tmp_path: Path, cold: bool) -> None:
    """A list or a text is appended to the history, a prompt replaces it; warm and cold give the same tokens."""
    file = tmp_path / "turns.json"
    file.write_text(json.dumps([[1, 2, 3, 4], [5, 6], {"prompt": [1, 2, 9]}, "ab"]))
    ran = run("generate", SNAP, "--turns", file, "--max-new-tokens", 3, "--json", *(["--cold"] if cold else []))
    turns = [json.loads(line) for line in ran.out.splitlines()]
    context: list[int] = []
    for turn, extra in zip(turns, ([1, 2, 3, 4], [5, 6], None), strict=False):
        context = [1, 2, 9] if extra is None else [*context, *extra]
        assert turn["tokens"] == ORACLE.greedy(context, 3)
        context += turn["tokens"]
    assert [turn["reused"] for turn in turns] == ([0, 0, 0, 0] if cold else [0, 6, 2, 5])


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--prompt-ids", "[1, 99]"], "prompt[1] is 99: token ids of this model are 0 to 60"),
        (["--prompt-ids", "[]"], "the prompt is empty"),
        (["--prompt-ids", "1, 2"], "not a JSON list"),
        (["--prompt-ids", '{"a": 1}'], "give a JSON list"),
        ([], "exactly one of"),
        (["--prompt", "a", "--prompt-ids", "[1]"], "exactly one of"),
        (["--prompt-ids", "[1]", "--temperature", "-1"], "temperature is -1.0"),
        (["--prompt-ids", "[1]", "--backend", "tpu"], "backend is 'tpu'"),
        (["--turns", "/nowhere.json"], "cannot be read"),
    ],
)
def test_a_bad_call_is_one_line(run: Callable[..., Ran], arguments: list[str], message: str) -> None:
    """On stderr, with the value and what to give; exit status 2; no traceback."""
    ran = run("generate", SNAP, *arguments)
    assert ran.code == 2
    assert message in ran.err
    assert len(ran.err.splitlines()) == 1


@pytest.mark.parametrize(
    "text", ["", "{}", "[]", "[3]", '[{"say": [1]}]', '[{"prompt": 3}]', '[{"prompt": [1], "append": [2]}]']
)
def test_a_bad_turns_file_is_one_line(run: Callable[..., Ran], tmp_path: Path, text: str) -> None:
    """With the file and what was expected there."""
    file = tmp_path / "turns.json"
    file.write_text(text)
    ran = run("generate", SNAP, "--turns", file)
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)
    assert str(file) in ran.err


def test_inspect_says_what_was_resolved(run: Callable[..., Ran]) -> None:
    """Ports, KV, regime, backends and reuse, for people and for scripts."""
    facts = json.loads(run("inspect", SNAP, "--json").out)
    assert facts["kv layers"] == ["2 of 2 heads of 8, float32"]
    assert facts["kv regime"] == "shared buffer with capacity"
    assert facts["reuse"][0].startswith("retained: admitted")
    assert "logits: logits" in run("inspect", SNAP).out


def test_inspect_gives_the_reason_of_each_refusal(run: Callable[..., Ran]) -> None:
    """A model without state is admitted to no reuse, and the reasons are those of the closed lists."""
    facts = json.loads(run("inspect", MODELS / "snap-stateless", "--json").out)
    assert facts["reuse"] == ["retained: refused, stateless", "paged: refused, no_kv"]


def test_inspect_of_nothing(run: Callable[..., Ran], tmp_path: Path) -> None:
    """Exit status 2, one line."""
    ran = run("inspect", tmp_path)
    assert (ran.code, len(ran.err.splitlines())) == (2, 1)


def test_chat_keeps_the_conversation(run: Callable[..., Ran], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The second turn reuses the first; /stats says so; /reset forgets; an unknown command and the end of input are fine."""
    said = iter(["ab", "/stats", "cd", "/stats", "/pages", "/reset", "/stats", "/what", ""])

    def read(prompt: str) -> str:
        try:
            return next(said)
        except StopIteration:
            raise EOFError from None

    for file in SNAP.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    template = "{% for m in messages %}{{ m['content'] }}{% endfor %}"
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
    monkeypatch.setattr("builtins.input", read)
    ran = run("chat", tmp_path, "--max-new-tokens", 3, "--backend", "ort")
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[1].startswith("reused 0 (none")
    assert lines[3].startswith("reused 4 (retained")
    assert "published prefixes" in lines[4]
    assert lines[5] == "nothing was said yet"
    assert "no command /what" in lines[6]
