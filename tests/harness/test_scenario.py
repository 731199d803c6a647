"""A conversation as data: read, written, resolved; and every way in which a case file can be malformed."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from warmcold.harness.contract.errors import ScenarioError
from warmcold.harness.contract.scenario import (
    FAIL_POINTS,
    Fork,
    NewSession,
    Rewind,
    Scenario,
    Settings,
    Turn,
    from_json,
    load,
    resolve,
)
from warmcold.harness.conversations.profile import Profile
from warmcold.harness.conversations.strategies import conversations

HISTORY = {"t0": ((1, 2, 3, 4), (1, 2, 3, 4, 5, 6))}
TURN: dict[str, Any] = {"op": "turn", "name": "t0", "append": [1]}


def case(**fields: Any) -> dict[str, Any]:
    """A case file's content with some fields replaced."""
    return {"warmcold_case": 1, "ops": [TURN], **fields}


def no_text(text: str) -> list[int]:
    """An encoder for models without a tokenizer."""
    raise AssertionError(f"asked to encode {text!r}")


@given(conversations(Profile(vocab_size=61, longest=64)))
def test_every_drawn_conversation_survives_json(scenario: Scenario) -> None:
    """Written and read back it is the same scenario, types included."""
    again = from_json(json.loads(json.dumps(scenario.to_json())))
    assert again == scenario
    assert repr(again) == repr(scenario)


@pytest.mark.parametrize(
    "op",
    [
        Turn(name="t", append="some text", keep=0.5, drop=(1, 2), part="prompt", base="x", salt="", max_new_tokens=0),
        Turn(name="t", keep=0),
        Turn(name="t", keep=1.0),
        Turn(name="t", keep=-3, decline_rewind=True),
        Turn(name="t", cancel_after=0),
        Turn(name="t", cancel_after=2, fail=("mirror", 1)),
        NewSession(session="b"),
        Fork(session="a", to="b"),
        Rewind(session="b", to=0),
        Rewind(session="b", to=0.25),
    ],
)
def test_every_kind_of_field_survives_json(op: Any) -> None:
    """An int stays an int, a fraction a fraction, an empty salt is not none."""
    scenario = Scenario(ops=(op,), settings=Settings(page_size=1, pages=0, chunk_size=1, min_capacity=1), title="ö")
    assert repr(from_json(json.loads(json.dumps(scenario.to_json())))) == repr(scenario)


def test_defaults_are_left_out() -> None:
    """A case file holds only what was chosen."""
    plain = Scenario(ops=(Turn(name="t0", append=(1,)), NewSession(session="b"))).to_json()
    assert plain["ops"] == [TURN, {"op": "new", "session": "b"}]


def test_missing_settings_are_the_defaults() -> None:
    """A case written by hand need not name what it does not care about."""
    assert from_json(case()).settings == Settings()
    assert from_json(case(settings={"pages": 3})).settings == Settings(pages=3)


def test_turns_are_counted() -> None:
    """`turns` counts requests, not other operations."""
    assert Scenario(ops=(Turn(name="a"), NewSession(session="s"), Rewind(session="s", to=1), Turn(name="b"))).turns == 2


@pytest.mark.parametrize(
    "data", [None, 3, "x", [], {}, {"ops": [TURN]}, case(warmcold_case=2), case(warmcold_case="1")]
)
def test_not_a_case_file(data: object) -> None:
    """Whatever is no case file of this format is told so, with what was expected."""
    with pytest.raises(ScenarioError, match='expected an object with "warmcold_case": 1'):
        from_json(data)


@pytest.mark.parametrize("ops", [None, [], {}, "turn", 3])
def test_a_case_has_operations(ops: object) -> None:
    """No operations is no case."""
    with pytest.raises(ScenarioError, match=r"^ops: Expected `array`.*, found .*docs/formats\.md"):
        from_json(case(ops=ops))


@pytest.mark.parametrize(
    "item", [None, 3, "turn", [], {}, {"op": "trun", "name": "t"}, {"op": None}, {"op": []}, {"op": {}}]
)
def test_an_operation_has_a_known_kind(item: object) -> None:
    """The place, and what stands there."""
    with pytest.raises(ScenarioError, match=r"^ops\[1\](\.op)?: .*, found "):
        from_json(case(ops=[TURN, item]))


@pytest.mark.parametrize("name", ["page_size", "pages", "chunk_size", "min_capacity"])
@pytest.mark.parametrize("value", [-1, "4", 2.0, None, [4], True])
def test_malformed_setting(name: str, value: object) -> None:
    """Settings are integers; the message names the field, what was expected and the value."""
    with pytest.raises(ScenarioError, match=rf"^settings\.{name}: Expected `int`.*, found {re.escape(repr(value))};"):
        from_json(case(settings={name: value}))


@pytest.mark.parametrize("name", ["page_size", "chunk_size", "min_capacity"])
def test_only_pages_may_be_zero(name: str) -> None:
    """No pages is a setting (unpaged); an empty page, chunk or bucket is not."""
    assert from_json(case(settings={"pages": 0})).settings.pages == 0
    with pytest.raises(ScenarioError, match=rf"^settings\.{name}: Expected `int` >= 1, found 0;"):
        from_json(case(settings={name: 0}))


@pytest.mark.parametrize("settings", [None, 3, [], "x"])
def test_settings_are_an_object(settings: object) -> None:
    """And not something else."""
    with pytest.raises(ScenarioError, match=r"^settings: Expected `object`"):
        from_json(case(settings=settings))


@pytest.mark.parametrize(
    ("data", "place", "field"),
    [
        (case(settings={"pagesize": 3}), "settings", "pagesize"),
        (case(ops=[{**TURN, "max_tokens": 3}]), r"ops\[0\]", "max_tokens"),
        (case(ops=[{"op": "new", "session": "s", "to": 1}]), r"ops\[0\]", "to"),
        (case(ops=[{"op": "rewind", "session": "s", "to": 1, "n": 1}]), r"ops\[0\]", "n"),
        (case(setings={"pages": 3}), "the file", "setings"),
    ],
)
def test_an_unknown_field_is_an_error(data: object, place: str, field: str) -> None:
    """A misspelt field must not be dropped silently: the case would then test something else."""
    with pytest.raises(ScenarioError, match=rf"^{place}: Object contains unknown field `{field}`"):
        from_json(data)


@pytest.mark.parametrize(
    ("item", "missing"),
    [
        ({"op": "turn", "append": [1]}, "name"),
        ({"op": "new"}, "session"),
        ({"op": "rewind", "session": "s"}, "to"),
        ({"op": "rewind", "to": 1}, "session"),
        ({"op": "fork", "session": "s"}, "to"),
    ],
)
def test_a_missing_field_is_named(item: object, missing: str) -> None:
    """The place and the field that has to be there."""
    with pytest.raises(ScenarioError, match=rf"^ops\[0\]: Object missing required field `{missing}`"):
        from_json(case(ops=[item]))


NOT_TEXT: list[object] = [None, 3, ["s"], True]
FIELDS: dict[str, list[object]] = {
    "append": [None, 3, {}, [-1], [1.5], ["1"], [[1]], [True], [None]],
    "part": ["reply", "", None, 3, ["prompt"]],
    "max_new_tokens": [-1, 1.5, "4", None, True, [4]],
    "keep": ["3", True, [3], {}],
    "drop": [5, "ab", {}, [], [1], [1, 2, 3], [-1, 2], [0.5, 2], [True, 2], True],
    "cancel_after": [-1, 1.5, "1", True, [1]],
    "fail": [
        *(3, "feed", {}, [], ["feed"], ["nowhere", 1], ["feed", -1]),
        *(["feed", 0], ["feed", True], ["feed", 1, 2], [["feed"], 1]),
    ],
    "decline_rewind": [None, 0, 1, "true", []],
    "name": NOT_TEXT,
    "session": NOT_TEXT,
    "base": [3, ["t"], True],
    "salt": [3, ["t"], False],
}
MALFORMED = [(name, value) for name, values in FIELDS.items() for value in values]


@pytest.mark.parametrize(("name", "value"), MALFORMED)
def test_malformed_field_of_a_turn(name: str, value: object) -> None:
    """The operation's place, the field, what stands there and what was expected."""
    with pytest.raises(ScenarioError, match=rf"^ops\[1\]\.{name}(\[\d\])?: .*, found .*; docs/formats\.md"):
        from_json(case(ops=[TURN, {**TURN, name: value}]))


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
@pytest.mark.parametrize(("op", "name"), [(TURN, "keep"), ({"op": "rewind", "session": "s"}, "to")])
def test_a_length_is_finite(op: dict[str, Any], name: str, value: float) -> None:
    """Python's reader of JSON takes NaN and Infinity; a case file does not."""
    with pytest.raises(ScenarioError, match=rf"^ops\[0\](\.{name})?: .*(give a finite number|Expected)"):
        from_json(case(ops=[{**op, name: value}]))


def test_a_span_has_two_ends() -> None:
    """In this order."""
    with pytest.raises(ScenarioError, match=r"^ops\[0\]: drop is \[3, 1\]; give \[start, stop\] with start <= stop"):
        from_json(case(ops=[{**TURN, "drop": [3, 1]}]))


@pytest.mark.parametrize("value", NOT_TEXT)
@pytest.mark.parametrize("item", [{"op": "new"}, {"op": "rewind", "to": 1}])
def test_malformed_session(item: dict[str, Any], value: object) -> None:
    """A session is named by a text in every operation."""
    with pytest.raises(ScenarioError, match=r"^ops\[0\]\.session: Expected `str`"):
        from_json(case(ops=[{**item, "session": value}]))


@pytest.mark.parametrize("value", [None, -1, -0.5, "1", True, [1]])
def test_malformed_rewind(value: object) -> None:
    """A rewind goes to a length or a fraction."""
    with pytest.raises(ScenarioError, match=r"^ops\[0\]\.to: "):
        from_json(case(ops=[{"op": "rewind", "session": "s", "to": value}]))


@pytest.mark.parametrize(("session", "to"), [(None, "b"), ("a", 3), (["a"], "b"), ("a", True)])
def test_malformed_fork(session: object, to: object) -> None:
    """A fork names two sessions."""
    with pytest.raises(ScenarioError, match=r"^ops\[0\]\.(session|to): Expected `str`"):
        from_json(case(ops=[{"op": "fork", "session": session, "to": to}]))


@pytest.mark.parametrize("point", FAIL_POINTS)
def test_an_error_can_be_planted_at_each_point(point: str) -> None:
    """The first visit is number 1."""
    (op,) = from_json(case(ops=[{**TURN, "fail": [point, 1]}])).ops
    assert isinstance(op, Turn)
    assert op.fail == (point, 1)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        (b"[]", "not a case file"),
        (b'{"warmcold_case": 1}', "missing required field `ops`"),
    ],
)
def test_a_bad_file_is_named(tmp_path: Path, content: bytes, message: str) -> None:
    """The message begins with the path."""
    file = tmp_path / "case.json"
    file.write_bytes(content)
    with pytest.raises(ScenarioError) as caught:
        load(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert message in str(caught.value)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    """The path, the reason, the next thing to do."""
    with pytest.raises(ScenarioError, match=r"gone.json: cannot be read .*; give the path of a JSON file"):
        load(tmp_path / "gone.json")


@pytest.mark.parametrize(
    ("fields", "prompt"),
    [
        ({}, (1, 2, 3, 4, 5, 6)),
        ({"part": "prompt"}, (1, 2, 3, 4)),
        ({"keep": 2}, (1, 2)),
        ({"keep": 0}, ()),
        ({"keep": 99}, (1, 2, 3, 4, 5, 6)),
        ({"keep": -1}, (1, 2, 3, 4, 5)),
        ({"keep": -6}, ()),
        ({"keep": -99}, ()),
        ({"keep": 0.5}, (1, 2, 3)),
        ({"keep": 0.0}, ()),
        ({"keep": 1.0}, (1, 2, 3, 4, 5, 6)),
        ({"keep": 1}, (1,)),
        ({"part": "prompt", "keep": 0.5}, (1, 2)),
        ({"part": "prompt", "keep": -1}, (1, 2, 3)),
        ({"drop": (1, 3)}, (1, 4, 5, 6)),
        ({"drop": (0, 6)}, ()),
        ({"drop": (4, 99)}, (1, 2, 3, 4)),
        ({"drop": (2, 2)}, (1, 2, 3, 4, 5, 6)),
        ({"keep": 4, "drop": (1, 2)}, (1, 3, 4)),
        ({"append": (8, 9)}, (1, 2, 3, 4, 5, 6, 8, 9)),
        ({"keep": 3, "drop": (0, 1), "append": (7,)}, (2, 3, 7)),
    ],
)
def test_prompt_from_an_earlier_turn(fields: dict[str, Any], prompt: tuple[int, ...]) -> None:
    """Part of the base, cut, a span dropped from what is kept, then the new tokens."""
    assert resolve(Turn(name="t1", base="t0", **fields), HISTORY, no_text) == prompt


@pytest.mark.parametrize("base", [None, "gone"])
def test_from_nothing(base: str | None) -> None:
    """No base, or one whose turn was dropped while shrinking, is the empty history."""
    assert resolve(Turn(name="t1", base=base, keep=-1, drop=(0, 2), append=(7, 8)), HISTORY, no_text) == (7, 8)


def test_text_goes_through_the_encoder() -> None:
    """A text is appended as the model's own ids."""
    turn = Turn(name="t1", base="t0", keep=1, append="ab")
    assert resolve(turn, HISTORY, lambda text: [ord(letter) for letter in text]) == (1, 97, 98)
