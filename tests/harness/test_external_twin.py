"""The twin of somebody else's engine: the most that its declared reuse model lets it reuse."""

from __future__ import annotations

import pytest

from warmcold.harness.arms.external_twin import ExternalTwin
from warmcold.harness.contract.observation import Observation
from warmcold.harness.contract.scenario import Settings
from warmcold.harness.contract.subject import ReuseModel

HELD = tuple(range(20))


def twin(**model: object) -> ExternalTwin:
    """One that has seen `HELD`, whose last token was sampled and not fed, on session s under no salt."""
    made = ExternalTwin(settings=Settings(pages=0), stateful=True, max_context=64, model=ReuseModel(**model))  # type: ignore[arg-type]
    plan = made.predict("s", HELD[:10], None)
    assert plan.reused == 0
    made.finish("s", HELD, HELD[:19], None, plan)
    return made


@pytest.mark.parametrize(
    ("prompt", "reused"),
    [
        ((*HELD, 90, 91), 19),  # what was fed, not what was sampled
        (HELD[:12], 11),  # one position is always computed again
        ((*HELD[:7], 90, 91), 7),
        ((90, 91), 0),
        ((0,), 0),
    ],
)
def test_a_session_reuses_what_it_holds_of_the_prompt(prompt: tuple[int, ...], reused: int) -> None:
    """The glossary's cut, on retained state alone."""
    assert twin().predict("s", prompt, None).reused == reused


def test_another_session_holds_nothing() -> None:
    """Scope `session`; scope `engine` knows all that any of them was told."""
    assert twin().predict("t", (*HELD, 90), None).reused == 0
    assert twin(scope="engine").predict("t", (*HELD, 90), None).reused == 19


def test_another_salt_holds_nothing() -> None:
    """In either scope."""
    for scope in ("session", "engine"):
        assert twin(scope=scope).predict("s", (*HELD, 90), "x").reused == 0


def test_an_engine_keeps_every_context() -> None:
    """An older one too: that it was not evicted is its own affair, so this is the most."""
    seen = twin(scope="engine")
    plan = seen.predict("s", (50, 51, 52), None)
    seen.finish("s", (50, 51, 52, 53), (50, 51, 52), None, plan)
    assert seen.predict("s", (*HELD[:15], 99, 98), None).reused == 15


def test_hits_are_multiples_of_the_granularity() -> None:
    """And so many positions are left at least."""
    assert twin(scope="engine", granularity=8).predict("s", (*HELD, 90), None).reused == 16
    assert twin(scope="engine", granularity=4, leaves=5).predict("s", HELD[:19], None).reused == 12
    assert twin(scope="engine", leaves=100).predict("s", HELD[:19], None).reused == 0


def test_a_rewound_session_holds_less() -> None:
    """What a session was rewound to is all that it can reuse."""
    seen = twin()
    assert seen.rewinds("s", 6) is None
    seen.rewind("s", 6)
    assert seen.predict("s", (*HELD, 90), None).reused == 6


@pytest.mark.parametrize(("reused", "source"), [(19, "retained"), (4, "retained"), (0, "none")])
def test_a_plan_follows_what_was_seen(reused: int, source: str) -> None:
    """An engine that may reuse less is matched with what it did, in its own calls; the most that it may reuse stays."""
    prompt, seen = (*HELD, 90), twin()
    said = Observation(tokens=(7,), stop="length", reused=reused, rows=(len(prompt) - reused, 1))
    plan = seen.follow(seen.predict("s", prompt, None), prompt, said)
    assert (plan.reused, plan.bound, plan.source, plan.rows) == (reused, 19, source, (21 - reused, 1))
    assert seen.fed(prompt, (7,), plan, None) == (*prompt, 7)


@pytest.mark.parametrize("reused", [None, 20, -1])
def test_a_count_that_cannot_be_is_not_followed(reused: int | None) -> None:
    """More than the bound, or no count at all: the matched arm plays what was predicted, and `reuse` says the rest."""
    prompt, seen = (*HELD, 90), twin()
    plan = seen.predict("s", prompt, None)
    assert seen.follow(plan, prompt, Observation(tokens=(), stop="length", reused=reused, rows=(1,))) == plan


def test_without_state_nothing_is_reused() -> None:
    """Whatever it declares."""
    stateless = ExternalTwin(
        settings=Settings(pages=0), stateful=False, max_context=64, model=ReuseModel(scope="engine")
    )
    plan = stateless.predict("s", HELD, None)
    stateless.finish("s", HELD, HELD, None, plan)
    assert stateless.predict("s", (*HELD, 1), None).reused == 0
