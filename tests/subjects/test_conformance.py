"""The contract of a subject: the example of the docs keeps it, and an adapter that breaks a law is told which."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace as with_fields
from typer.testing import CliRunner

from warmcold.cli import main
from warmcold.harness.arms.arms import Arms
from warmcold.harness.conformance.laws import LAWS, Bench, tried
from warmcold.harness.conformance.run import conformance
from warmcold.harness.contract.errors import RefusedError
from warmcold.harness.contract.observation import Observation
from warmcold.harness.contract.scenario import Scenario, Turn
from warmcold.harness.contract.verdict import Level, Verdict
from warmcold.harness.play.exact import run_scenario

from .conftest import EXAMPLE, MODEL


def test_the_example_of_the_docs_keeps_the_contract(mine: Arms) -> None:
    """Every law that applies holds; tenants are what it does not offer."""
    outcomes = {outcome.law: outcome for outcome in conformance(mine, (), {})}
    assert list(outcomes) == list(LAWS)
    assert {
        law: outcome.said for law, outcome in outcomes.items() if outcome.verdict not in (Verdict.PASS, Verdict.NOT_RUN)
    } == {}
    assert {law for law, outcome in outcomes.items() if outcome.verdict is Verdict.NOT_RUN} == {
        "salts_are_apart",
        "finds_ignored_salt",
    }


Change = Callable[[Observation], Observation]


class Other:
    """`mine` with a method of its instances changed: `hook(real method, *arguments)`."""

    def __init__(self, real: Any, **hooks: Callable[..., Any]) -> None:
        self._real, self._hooks = real, hooks

    def open(self, settings: Any, *, poison: float | None) -> Any:
        return OtherInstance(self._real.open(settings, poison=poison), self._hooks)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._real, name)


class OtherInstance:
    def __init__(self, real: Any, hooks: Mapping[str, Callable[..., Any]]) -> None:
        self._real, self._hooks = real, hooks

    def __getattr__(self, name: str) -> Any:
        method = getattr(self._real, name)
        hook = self._hooks.get(name)
        return method if hook is None else lambda *given: hook(method, *given)


def broken(mine: Arms, declared: Mapping[str, Any] | None = None, **hooks: Callable[..., Any]) -> Bench:
    """The bench of the example with other methods, or that declares something else."""
    subject = Other(mine.subject, **hooks)
    subject.capabilities = replace(mine.subject.capabilities, **(declared or {}))  # type: ignore[attr-defined]
    return Bench(replace(mine, subject=subject))  # type: ignore[arg-type]  # what it lacks it takes from the real one


def changed(change: Change) -> Callable[..., Observation]:
    """A hook that changes what a turn shows."""
    return lambda method, op, prompt: change(method(op, prompt))


def only_small(method: Callable[..., Observation], op: Turn, prompt: Sequence[int]) -> Observation:
    """An empty prompt is answered."""
    return method(op, prompt or (1,))


def touched(method: Any, op: Turn, prompt: Sequence[int]) -> Observation:
    """What another session did shows in the logits."""
    seen: Observation = method(op, prompt)
    others = len(method.__self__.held) - 1
    return replace(seen, logits=tuple(row + others for row in seen.logits or ()))


BREAKS: Mapping[str, tuple[str, Mapping[str, Any] | None, Mapping[str, Callable[..., Any]]]] = {
    "an unknown operation": ("declares", {"operations": frozenset({"teleport"})}, {}),
    "a token too few": ("answers", None, {"turn": changed(lambda seen: replace(seen, tokens=seen.tokens[:-1]))}),
    "no KV at L3": ("shows_its_level", None, {"turn": changed(lambda seen: replace(seen, end=None))}),
    "a count too high": ("counts_add_up", None, {"turn": changed(lambda seen: replace(seen, reused=(seen.reused or 0) + 1))}),
    "nothing reused": ("reuses", None, {"turn": lambda method, op, prompt: method.__self__.cold(op, prompt)}),
    "a warm cold arm": ("cold_is_cold", None, {"cold": lambda method, op, prompt: method.__self__.turn(op, prompt)}),
    "an empty prompt answered": ("refuses", None, {"turn": only_small}),
    "a rewind that is not declared": ("operations_are_as_declared", None, {"rewind": lambda method, session, n: True}),
    "a fork that is declared": ("operations_are_as_declared", {"operations": frozenset({"sessions", "new", "fork"})}, {}),
    "sessions that touch": ("sessions_are_apart", None, {"turn": touched}),
    "salts that are not told apart": ("salts_are_apart", {"operations": frozenset({"sessions", "new", "salt"})},
                                      {"turn": lambda method, op, prompt: method(with_fields(op, session="s"), prompt)}),
}  # fmt: skip


@pytest.mark.parametrize("fault", BREAKS)
def test_an_adapter_that_breaks_a_law_is_told_which(mine: Arms, fault: str) -> None:
    """Each law has been seen red."""
    law, declared, hooks = BREAKS[fault]
    outcome = tried(broken(mine, declared, **hooks), law)
    assert outcome.verdict is Verdict.FAIL, outcome
    assert outcome.said


def test_noise_breaks_the_law_of_repetition(mine: Arms) -> None:
    """A subject that declares itself deterministic and is not."""
    calls = iter(range(10**6))

    def noisy(seen: Observation) -> Observation:
        return replace(seen, logits=tuple(row + 1e-6 * (next(calls) % 7) for row in seen.logits or ()))

    assert tried(broken(mine, turn=changed(noisy)), "repeats").verdict is Verdict.FAIL
    modest = broken(mine, {"deterministic": False}, turn=changed(noisy))
    assert tried(modest, "repeats").verdict is Verdict.NOT_RUN


def test_a_subject_that_shows_nothing_new_is_unclear(mine: Arms) -> None:
    """The same reply to everything: then no fault could be seen, and that is no pass."""
    same = changed(
        lambda seen: replace(seen, tokens=(1,) * len(seen.tokens), logits=None, rows=None, end=None, seeded=None)
    )
    assert tried(broken(mine, turn=same), "is_sensitive").verdict is Verdict.UNKNOWN


def test_an_adapter_that_fits_no_fault_is_told_so(mine: Arms) -> None:
    """One that always answers cold, and says that it reused: planted faults do not show in its tokens, the counts do."""

    def pretends(method: Any, op: Turn, prompt: Sequence[int]) -> Observation:
        honest = method(op, prompt)
        seen = method.__self__.cold(op, prompt)
        return replace(seen, reused=honest.reused, prefilled=honest.prefilled)

    assert tried(broken(mine, turn=pretends), "counts_add_up").verdict is Verdict.FAIL


def test_a_token_out_of_the_vocabulary_is_the_engines_fault(mine: Arms) -> None:
    """It is a finding, not an error in the conversation."""
    bench = broken(mine, turn=changed(lambda seen: replace(seen, tokens=(10**6,) * len(seen.tokens))))
    scenario = Scenario(ops=(Turn(name="a", append=(1, 2, 3)), Turn(name="b", base="a", append=(4,))))
    (finding,) = run_scenario(bench.arms, scenario).findings
    assert finding.check == "vocabulary"


def test_levels_rule_laws_out(mine: Arms) -> None:
    """A subject that shows tokens alone is not asked for counts."""
    bench = broken(mine, {"level": Level.L0})
    assert tried(bench, "counts_add_up").verdict is Verdict.NOT_RUN


def test_whatever_an_adapter_raises_breaks_the_law(mine: Arms) -> None:
    """With its class and message, and the other laws are tried all the same."""

    def raises(method: Any, op: Turn, prompt: Sequence[int]) -> Observation:
        raise ValueError("boom")

    outcome = tried(broken(mine, turn=raises), "answers")
    assert (outcome.verdict, outcome.said) == (Verdict.FAIL, "ValueError: boom")


def test_an_operation_that_is_refused_though_declared(mine: Arms) -> None:
    """The refusal's own words are passed on."""

    def refuses(method: Any, session: str) -> None:
        raise RefusedError("not today")

    outcome = tried(broken(mine, new_session=refuses), "operations_are_as_declared")
    assert outcome.verdict is Verdict.FAIL
    assert "not today" in outcome.said


KNOWN = {
    "warmcold_known": 1,
    "known": [
        {
            "id": "x",
            "package": "onnxruntime",
            "versions": ">=1.0",
            "law": "salts_are_apart",
            "reason": "a test",
            "link": "none",
        }
    ],
}


def command(tmp_path: Path, known: Mapping[str, Any], *more: str) -> Any:
    """`warmcold conformance` on the example, with a file of known divergences."""
    file = tmp_path / "known.json"
    file.write_text(json.dumps(known))
    return CliRunner().invoke(
        main, ["conformance", str(MODEL), "--subject", EXAMPLE, "--known", str(file), "--threads", "1", "--json", *more]
    )


def test_a_known_divergence_that_does_not_show_is_a_failure(tmp_path: Path) -> None:
    """Strict: an unexpected pass turns the entry red."""
    seen = command(tmp_path, {**KNOWN, "known": [{**KNOWN["known"][0], "law": "answers"}]})  # type: ignore[dict-item]
    assert seen.exit_code == 1
    (line,) = [line for line in json.loads(seen.output)["laws"] if line["law"] == "answers"]
    assert line["verdict"] == "FAIL"
    assert "remove the entry" in line["said"]


def test_an_entry_for_another_release_is_left_out(tmp_path: Path) -> None:
    """It says of which versions it speaks."""
    other = {**KNOWN, "known": [{**KNOWN["known"][0], "law": "answers", "versions": "<1.0"}]}  # type: ignore[dict-item]
    assert command(tmp_path, other).exit_code == 0


def test_rows_that_do_not_add_up_are_found(mine: Arms) -> None:
    """What was reused and what was fed must be the prompt and the reply; else the schedule is not what is shown."""

    def fewer(seen: Observation) -> Observation:
        return replace(seen, rows=(seen.rows or ())[:1], logits=(seen.logits or ())[:1])

    scenario = Scenario(ops=(Turn(name="a", append=(1, 2, 3), max_new_tokens=4),))
    found = run_scenario(broken(mine, turn=changed(fewer)).arms, scenario).findings
    assert (found[0].check, found[0].component) == ("reuse", "rows")


def test_a_fault_of_its_own_hides_planted_ones(mine: Arms) -> None:
    """What is wrong already would be taken for the plant."""
    late = changed(lambda seen: replace(seen, tokens=(*seen.tokens[:-1], 0)) if seen.tokens else seen)
    assert tried(broken(mine, turn=late), "finds_stale_tail").verdict is Verdict.NOT_RUN
