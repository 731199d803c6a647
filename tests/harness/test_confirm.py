"""Real faults, planted in the engine while it runs: each shrinks to a few turns, whatever conversation showed it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

import warmcold.engine.engine
import warmcold.engine.kv.layout
import warmcold.engine.kv.mirror
import warmcold.engine.turn.identity
import warmcold.engine.turn.reuse
import warmcold.engine.turn.turn
from warmcold.engine.kv.layout import Part
from warmcold.harness.arms.arms import Arms
from warmcold.harness.contract.errors import NotShownError
from warmcold.harness.contract.observation import Observation
from warmcold.harness.contract.scenario import Scenario, Turn, load
from warmcold.harness.contract.verdict import Finding
from warmcold.harness.conversations.drawing import drawn as seeded
from warmcold.harness.conversations.profile import Profile
from warmcold.harness.play.exact import Lineup, ScenarioResult, run_scenario
from warmcold.harness.reporting.folder import RunFolder
from warmcold.harness.run.events import Event, FailureShrunk, LegFinished, ScenarioPlayed
from warmcold.harness.run.player import Effort
from warmcold.harness.run.target import Target
from warmcold.harness.run.verify import verify
from warmcold.harness.shrinking.confirm import confirm, in_ids, mark, smallest
from warmcold.harness.shrinking.cost import turns_of

Patch = pytest.MonkeyPatch

ROOT = Path(__file__).parents[2]
MODEL = ROOT / "fixtures" / "models" / "snap-gqa-shared"
TARGET = Target(model=str(MODEL), subject="ort")
CONVERSATIONS = ROOT / "tests" / "conversations"
PLAIN = Scenario(
    title="six turns",
    ops=(
        Turn(name="one", append=tuple(range(1, 11)), max_new_tokens=6),
        Turn(name="two", base="one", append=(5, 6, 7), max_new_tokens=2),
        Turn(name="tenant", base="two", append=(9,), salt="red", max_new_tokens=2),
        Turn(name="elsewhere", session="t", base="two", append=(12, 14), max_new_tokens=2),
        Turn(name="on", session="t", base="elsewhere", append=(3,), max_new_tokens=2),
        Turn(name="branch", session="t", base="one", keep=15, append=(30, 31), max_new_tokens=2),
    ),
)


def swapped(patch: Patch) -> None:
    """Pages hold values where keys belong."""
    real = warmcold.engine.kv.layout.extract_present_tokens

    def copy(self: Any, state: Any, page: int, at: int, count: int) -> None:
        for layer in range(len(self._pool.geometry.layers)):
            for part in Part:
                flat, physical = state.present(layer, Part(1 - part))
                rows = real(flat, physical, self.length, self.length + count)
                warmcold.engine.kv.layout.append_token_kv(self._pool.rows(page, layer, part), at, rows)

    patch.setattr(warmcold.engine.kv.mirror.PageTable, "_copy_rows", copy)


def unclamped(patch: Patch) -> None:
    """What the state holds is taken to be what the context says."""
    real = warmcold.engine.turn.reuse.plan_prefix_reuse
    patch.setattr(
        warmcold.engine.turn.turn,
        "plan_prefix_reuse",
        lambda shared, current, wanted, parts: real(shared, shared, wanted, parts),
    )


def zeroed(patch: Patch) -> None:
    """A seeded state holds zeros: in both parts, so that nothing but the numbers is wrong."""
    real = warmcold.engine.kv.layout.write_present
    patch.setattr(
        warmcold.engine.kv.mirror, "write_present", lambda flat, at, start, rows: real(flat, at, start, rows * 0)
    )


def saltless(patch: Patch) -> None:
    """Tenants share."""
    real = warmcold.engine.turn.identity.identity_of
    patch.setattr(warmcold.engine.engine, "identity_of", lambda fields: real({**fields, "salt": None}))


def shared_page(patch: Patch) -> None:
    """A page that somebody else holds is written to."""
    real = warmcold.engine.kv.mirror.PageTable._writable

    def writable(self: Any) -> int | None:
        index = self.length // self._pool.page_size
        page: int | None = self._pages[index] if index < len(self._pages) else real(self)
        return page

    patch.setattr(warmcold.engine.kv.mirror.PageTable, "_writable", writable)


FAULTS: Mapping[str, Callable[[Patch], None]] = {
    fault.__name__: fault for fault in (swapped, unclamped, zeroed, saltless, shared_page)
}


def drawn(count: int) -> list[Scenario]:
    """Generated conversations, always the same."""
    return list(seeded(Profile(vocab_size=61, longest=64), count=count, seed=3))


def shown(arms: Arms, scenarios: list[Scenario]) -> ScenarioResult:
    """The first of them that shows a difference."""
    return next(result for s in scenarios if (result := run_scenario(arms, s)).findings)


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("source", ["plain", "generated", "hand-written"])
def test_a_fault_shrinks_to_three_turns(arms: Arms, monkeypatch: Patch, fault: str, source: str) -> None:
    """At most three turns, no odd settings, a handful of tokens, and the same fingerprint, found within a few hundred tries."""
    FAULTS[fault](monkeypatch)
    file = {"saltless": "05-two-tenants-same-words", "shared_page": "01-tool-loop"}.get(fault, "08-one-token-at-a-time")
    played = {"plain": [PLAIN], "generated": drawn(40), "hand-written": [load(CONVERSATIONS / f"{file}.json").scenario]}
    result = shown(arms, played[source])
    shrunk = smallest(arms, result.scenario, result.findings[0], Lineup(), seconds=600)
    assert mark(shrunk.finding) == mark(result.findings[0])
    assert mark(run_scenario(arms, shrunk.scenario).findings[0]) == mark(result.findings[0])
    assert shrunk.scenario.turns <= 3
    assert sum(len(turn.append) for turn in turns_of(shrunk.scenario)) <= 8
    assert shrunk.complete
    assert shrunk.tries <= 500


def test_what_shows_only_once_is_not_deterministic(arms: Arms) -> None:
    """A healthy engine does not show it again, and that is said."""
    finding = Finding(check="tokens", arm="matched", message="", left="", right="")
    with pytest.raises(NotShownError, match="nondeterministic"):
        smallest(arms, PLAIN, finding, Lineup(), seconds=5)


def test_another_finding_is_not_the_same(arms: Arms, monkeypatch: Patch) -> None:
    """A conversation that shows another difference is not shrunk for this one."""
    swapped(monkeypatch)
    finding = Finding(check="tokens", arm="matched", message="", left="", right="")
    with pytest.raises(NotShownError):
        smallest(arms, PLAIN, finding, Lineup(), seconds=5)


def test_crashes_are_told_apart_by_their_exception() -> None:
    """A fingerprint does not tell two crashes apart; where they were seen does not matter."""
    one, other = (
        Finding(check="crash", arm="subject", message="", left=f"{kind}: at 3", right="")
        for kind in ("IndexError", "KeyError")
    )
    assert one.fingerprint == other.fingerprint
    assert mark(one) != mark(other)
    assert mark(one) == mark(replace(one, left="IndexError: at 5", turn="t9"))


def test_texts_become_ids() -> None:
    """By the model's own tokenizer, before anything is shrunk."""
    words = Scenario(ops=(Turn(name="a", append="ab"), Turn(name="b", append=(7,))))
    assert in_ids(words, lambda text: [ord(letter) for letter in text]).ops == (
        Turn(name="a", append=(97, 98)),
        Turn(name="b", append=(7,)),
    )


def test_a_fresh_process_that_sees_nothing_says_so(arms: Arms, monkeypatch: Patch) -> None:
    """The fault is planted in this process only, so a fresh one cannot confirm it."""
    swapped(monkeypatch)
    finding = run_scenario(arms, PLAIN).findings[0]
    shrunk = smallest(arms, PLAIN, finding, Lineup(), seconds=20)
    assert shrunk.confirmed is None
    seen = confirm(shrunk, found=TARGET.to_json(), threads=1)
    assert (seen.confirmed, seen.why) == (False, "the fresh process shows no difference")


def test_a_fresh_process_that_fails_says_so(arms: Arms, monkeypatch: Patch, tmp_path: Path) -> None:
    """What it said comes along; nothing is taken for confirmed."""
    swapped(monkeypatch)
    finding = run_scenario(arms, PLAIN).findings[0]
    shrunk = smallest(arms, PLAIN, finding, Lineup(), seconds=20)
    seen = confirm(shrunk, found=Target(model=str(tmp_path / "gone"), subject="ort").to_json(), threads=1)
    assert not seen.confirmed
    assert "gone" in (seen.why or "")


def played(arms: Arms, *cases: str, **effort: Any) -> list[Event]:
    """The events of a leg that plays `PLAIN` so many times and shrinks."""
    wanted = Effort(examples=0, shrink_s=20.0, threads=1, **effort)
    return list(verify(TARGET, wanted, [(name, PLAIN) for name in cases], arms))


def test_the_first_failure_of_a_leg_is_shrunk(arms: Arms, monkeypatch: Patch) -> None:
    """Once, right after it was played, while the model is loaded; the leg goes on then if it is to."""
    swapped(monkeypatch)
    events = played(arms, "a", "b", keep_going=True)
    kinds = [type(event) for event in events[1:]]
    assert kinds == [ScenarioPlayed, FailureShrunk, ScenarioPlayed, LegFinished]
    told = events[2]
    assert isinstance(told, FailureShrunk)
    assert (told.number, told.before.scenario) == (1, PLAIN)
    assert told.shrunk is not None
    assert told.shrunk.scenario.turns == 1
    assert (told.shrunk.confirmed, told.shrunk.why) == (False, "the fresh process shows no difference")


def test_a_failure_that_does_not_show_again_says_so(arms: Arms, faulty: Callable[..., Arms]) -> None:
    """Nothing is shrunk, and why."""
    turns = 0

    def once(real: Callable[..., Observation], op: Turn, prompt: Sequence[int]) -> Observation:
        nonlocal turns
        turns += 1
        seen = real(op, prompt)
        return replace(seen, tokens=(*seen.tokens[:-1], (seen.tokens[-1] + 1) % 61)) if turns == 1 else seen

    told = played(faulty(turn=once), "a")[2]
    assert isinstance(told, FailureShrunk)
    assert told.shrunk is None
    assert "nondeterministic" in told.why


def test_the_run_folder_holds_both(arms: Arms, monkeypatch: Patch, tmp_path: Path) -> None:
    """The original, beside it the small one and a script; the report tells the small one in words."""
    swapped(monkeypatch)
    folder = RunFolder(tmp_path / "run")
    for event in played(arms, "a"):
        folder(event)
    data = folder.close()
    names = {path.name for path in (tmp_path / "run" / "cases").iterdir()}
    assert names == {f"ort-cpu-{MODEL.name}-1{end}" for end in (".json", ".shrunk.json", ".py")}
    (file,) = data["shrunk"]
    assert load(Path(data["cases"][0])).scenario == PLAIN
    small = load(Path(file))
    assert small.scenario.turns == 1
    found = small.found
    assert (found["model"], found["leg"], found["confirmed"]) == (str(MODEL), "ort-cpu", False)
    text = (tmp_path / "run" / "report.md").read_text()
    told = text.split("## Shortest conversation that shows it")[1]
    assert "Turn t0 sends 1 token" in told
    assert "Not confirmed: the fresh process shows no difference" in told
    assert f"`warmcold replay {file}`" in told
