"""Float noise or dirty KV: the ruling on pairs whose truth is known because they were made so."""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace as changed
from typer.testing import CliRunner

from warmcold.cli import main
from warmcold.harness.adjudicate.adjudicate import adjudicate
from warmcold.harness.adjudicate.ruling import Kind, Ruling
from warmcold.harness.arms.arms import Arms
from warmcold.harness.contract.observation import Observation
from warmcold.harness.contract.scenario import Scenario, Turn
from warmcold.harness.contract.verdict import Level
from warmcold.harness.run.target import Target

from .conftest import EXAMPLE, MODEL, ROOT

ROUNDING = ROOT / "fixtures" / "zoo" / "llama-optimum-fp32"
"""A model with random weights: another schedule moves its last bits."""

FIRST = tuple(range(40, 61))
PAIR = Scenario(
    ops=(
        Turn(name="first", append=FIRST, max_new_tokens=12),
        Turn(name="second", base="first", append=tuple(range(70, 82)), max_new_tokens=6),
    )
)
"""The second turn reuses rows that were computed one by one, which a cold one computes all at once."""


def example() -> ModuleType:
    """The engine of the docs, as a module."""
    spec = importlib.util.spec_from_file_location("my_engine_again", EXAMPLE.rpartition(":")[0])
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


Change = Callable[[dict[str, Any], int], dict[str, Any]]


def engine(change: Change | None = None, **declared: Any) -> Arms:
    """The engine of the docs on the model that rounds. `change(past, n)`: what it does to the rows that it reuses."""
    module = example()

    class Engine(module.MyEngine):  # type: ignore[name-defined, misc]  # a module made at run time
        max_context, vocab_size = 128, 320
        capabilities = replace(module.MyEngine.capabilities, **declared)

        def open(self, settings: Any, *, poison: Any) -> Any:
            return Talk(self)

    class Talk(module.Conversation):  # type: ignore[name-defined, misc]
        def play(self, op: Turn, prompt: Sequence[int], n: int, past: dict[str, Any]) -> Any:
            if change is not None and n and any(rows.shape[2] for rows in past.values()):
                past = change({name: rows.copy() for name, rows in past.items()}, n)
            return super().play(op, prompt, n, past)

    subject = Engine(ROUNDING)
    return Arms.of(subject, threads=1)


def test_a_fixture_that_computes_exactly_shows_no_difference() -> None:
    """Every schedule gives the same bits there."""
    ruling = adjudicate(Target(model=str(ROOT / "fixtures" / "models" / "snap-square")).open(threads=1), small())
    assert (ruling.kind, ruling.kind.exit_code) == (Kind.same, 0)


def small() -> Scenario:
    """The pair in a vocabulary of 61."""
    ops = [changed(op, append=tuple(token % 61 for token in op.append)) for op in PAIR.ops if isinstance(op, Turn)]  # type: ignore[union-attr]
    return Scenario(ops=tuple(ops))


def test_rounding_is_float_noise_with_the_schedule_of_each_side() -> None:
    """Both are replayed from position 0 to the last bit, and the rows are named."""
    ruling = adjudicate(engine(), PAIR)
    assert (ruling.kind, ruling.kind.exit_code) == (Kind.noise, 0)
    text = "\n".join(ruling.facts)
    assert "warm: replayed from position 0 with the rows [32 reused] + [13, 1, 1, 1, 1, 1]" in text
    assert "cold: replayed from position 0 with the rows [45, 1, 1, 1, 1, 1], the same bits" in text


def swapped(past: dict[str, Any], n: int) -> dict[str, Any]:
    """Keys and values change places."""
    other = {"key": "value", "value": "key"}
    return {name: past[f"{name.rpartition('.')[0]}.{other[name.rpartition('.')[2]]}"] for name in past}


def shifted(past: dict[str, Any], n: int) -> dict[str, Any]:
    """Every value one position late, every key in place (both together would only be in another order)."""
    return {name: np.roll(rows, 1, axis=2) if name.endswith("value") else rows for name, rows in past.items()}


def one_row(past: dict[str, Any], n: int) -> dict[str, Any]:
    """One row of one layer's values is another's."""
    past["past_key_values.1.value"][0, :, 9] = past["past_key_values.1.value"][0, :, 4]
    return past


def one_bit(past: dict[str, Any], n: int) -> dict[str, Any]:
    """One number is off by its last bit: less than any rounding, and no rounding all the same."""
    key = past["past_key_values.0.key"]
    key[0, 1, 6, 3] = np.nextafter(key[0, 1, 6, 3], np.float32(np.inf))
    return past


FAULTS: Mapping[str, tuple[Change, str]] = {
    "swapped": (swapped, "layer 0, position 0"),
    "shifted": (shifted, "layer 0, position 0"),
    "one row": (one_row, "layer 1, position 9, value"),
    "one bit": (one_bit, "layer 0, position 6, key"),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_wrong_cache_is_dirty_with_its_first_place(fault: str) -> None:
    """Layer, position, and both numbers."""
    change, place = FAULTS[fault]
    ruling = adjudicate(engine(change), PAIR)
    assert (ruling.kind, ruling.kind.exit_code) == (Kind.dirty, 1)
    assert place in (ruling.place or "")


@pytest.mark.parametrize("fault", ["swapped", "shifted", "one row"])
def test_without_kv_the_logits_still_tell(fault: str) -> None:
    """A subject that shows no KV: the first call that differs is named."""
    change, _ = FAULTS[fault]
    ruling = adjudicate(hiding(engine(change), seeded=None, end=None), PAIR)
    assert ruling.kind is Kind.dirty
    assert "logits of call 0" in (ruling.place or "")


def test_without_a_schedule_controls_decide() -> None:
    """Neither loop nor KV, only an oracle: rounding is within what legal schedules show, a wrong cache is not."""
    blind = {"seeded": None, "end": None, "rows": None}
    clean = adjudicate(replace(hiding(engine(), **blind), matched=None), PAIR)
    dirty = adjudicate(replace(hiding(engine(shifted), **blind), matched=None), PAIR)
    assert clean.kind in (Kind.noise, Kind.same)
    assert dirty.kind is Kind.dirty
    assert "controls" in "\n".join(dirty.facts)


def test_with_nothing_to_compute_with_it_cannot_be_told() -> None:
    """A subject that calls itself invariant, and shows nothing that could prove it: what is missing is said."""
    ruling = adjudicate(replace(engine(invariant=True), matched=None, oracle=None), PAIR)
    assert (ruling.kind, ruling.kind.exit_code) == (Kind.unclear, 3)
    assert "loop()" in (ruling.missing or "")


@pytest.mark.parametrize(("change", "kind"), [(None, Kind.noise), (shifted, Kind.dirty)])
def test_a_black_box_is_ruled_on_by_fresh_texts(change: Change | None, kind: Kind) -> None:
    """Legal schedules of its own are the controls, and wrong pages the power."""
    ruling = adjudicate(replace(engine(change), matched=None, oracle=None), PAIR)
    assert ruling.kind is kind
    assert "power" in "\n".join(ruling.facts)


def test_more_reuse_than_the_prompt_shares_is_dirty() -> None:
    """Whatever the numbers say."""
    arms = hiding(engine(), change=lambda seen: replace(seen, reused=(seen.reused or 0) + 1) if seen.reused else seen)
    ruling = adjudicate(arms, PAIR)
    assert ruling.kind is Kind.dirty
    assert "the prompt shares only 32" in ruling.because


def hiding(arms: Arms, change: Callable[[Observation], Observation] | None = None, **fields: Any) -> Arms:
    """The same subject that shows less, or says something else."""
    subject: Any = arms.subject
    opened = subject.open

    def open_(settings: Any, *, poison: Any) -> Any:
        instance = opened(settings, poison=poison)
        turn = instance.turn
        instance.turn = lambda op, prompt: (change or (lambda seen: replace(seen, **fields)))(turn(op, prompt))
        return instance

    subject.open = open_
    subject.capabilities = replace(subject.capabilities, level=Level.L2)
    return arms


def command(*more: str) -> Any:
    """`warmcold adjudicate` on the example."""
    return CliRunner().invoke(main, ["adjudicate", str(MODEL), "--subject", EXAMPLE, "--threads", "1", *more])


def test_the_command_prints_what_can_be_pasted() -> None:
    """Ruling, evidence, engine, and the conversation as a case."""
    seen = command("--first", "[1, 2, 3, 4]", "--second", "[1, 2, 3, 9]", "--max-new-tokens", "3")
    assert seen.exit_code == 0
    assert seen.output.startswith("## no difference")
    assert "my_engine" in seen.output
    assert '"warmcold_case": 1' in seen.output


def test_the_command_takes_a_case_file(tmp_path: Path) -> None:
    """And gives JSON."""
    (tmp_path / "case.json").write_text(json.dumps(small().to_json()))
    seen = command("--case", str(tmp_path / "case.json"), "--json")
    assert json.loads(seen.output)["ruling"] == "no difference"


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--first", "[1]"], "--first and --second"),
        (["--first", "[1]", "--second", "some text"], "cannot encode text; give token ids"),
        (["--first", '["a"]', "--second", "[1]"], "token ids"),
        (["--first", "@gone.txt", "--second", "[1]"], "gone.txt"),
        (["--first", "[1]", "--second", "[999]"], "999"),
        (["--first", "[]", "--second", "[1]"], "one token at least"),
        (["--first", "[1, 2", "--second", "[1]"], "begins like a list"),
        (["--first", "[true]", "--second", "[1]"], "token ids"),
    ],
)
def test_the_command_says_what_is_wrong(arguments: list[str], said: str) -> None:
    """A usage error, in words."""
    seen = command(*arguments)
    assert seen.exit_code == 2
    assert said in seen.output


def test_a_ruling_is_data() -> None:
    """It prints as JSON."""
    ruling = Ruling(kind=Kind.dirty, turn="t", because="b", place="p")
    assert json.loads(json.dumps(ruling.to_json()))["ruling"] == "dirty KV"


def test_a_turn_that_reused_nothing_tells_nothing() -> None:
    """There is nothing that the cache could have got wrong."""
    apart = Scenario(ops=(Turn(name="a", append=(1, 2, 3)), Turn(name="b", append=(7, 8, 9))))
    ruling = adjudicate(engine(), apart)
    assert (ruling.kind, ruling.because) == (Kind.unclear, "nothing was reused in this turn")


def test_a_last_turn_that_is_refused_is_not_ruled_on() -> None:
    """Nor is the one before it in its place."""
    ruling = adjudicate(engine(), Scenario(ops=(Turn(name="a", append=(1, 2, 3)), Turn(name="b", append=(1,) * 200))))
    assert (ruling.kind, ruling.turn) == (Kind.unclear, "b")
