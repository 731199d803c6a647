"""An adapter's options: texts become what the adapter wants, and a wrong one is told what to give."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import pytest
from msgspec import Meta, Struct

from warmcold.harness.contract.errors import RefusedError, SubjectError
from warmcold.harness.subjects.options import Natural, Positions, converted, texts
from warmcold.harness.subjects.tokenizer import TokenizerFile
from warmcold.harness.subjects.transformers.network import TransformersOptions

from .conftest import ROOT


class Options(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of each kind."""

    way: Literal["this", "that"] = "this"
    seed: Natural = 0
    room: Positions | None = None
    wait: Annotated[float, Meta(gt=0, le=10, description="seconds")] = 1.0
    shared: bool | None = None
    key: str | None = None


def test_texts_become_what_the_adapter_wants() -> None:
    """And what is a number already may be given as one."""
    given = {"way": "that", "seed": "7", "room": "8", "wait": "2.5", "shared": "true", "key": "7"}
    assert converted(Options, given, "engine") == Options(way="that", seed=7, room=8, wait=2.5, shared=True, key="7")
    assert converted(Options, {"room": 8}, "engine").room == 8


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("way", "other", "option way=other: give that or this"),
        ("seed", "-1", "option seed=-1: give a whole number, 0 or more"),
        ("room", "many", "option room=many: give a whole number of positions, 1 or more"),
        ("wait", "0", "option wait=0: give a number of seconds, more than 0, at most 10"),
        ("shared", "yes", "option shared=yes: give true or false"),
        ("key", 3, "option key=3: give a text"),
        ("colour", "red", "unknown option colour=red: engine takes way: that or this; seed: a whole number, 0 or more"),
    ],
)
def test_a_wrong_option_is_told_what_to_give(name: str, value: object, said: str) -> None:
    """Name, value, and what would do."""
    with pytest.raises(SubjectError) as refused:
        converted(Options, {name: value}, "engine")
    assert said in str(refused.value)


def test_reports_show_what_is_set() -> None:
    """As it is written on the command line."""
    assert texts(Options(shared=False)) == {"way": "this", "seed": 0, "wait": 1.0, "shared": "false"}


@pytest.mark.parametrize(
    ("given", "asks"),
    [({}, True), ({"record": "yes"}, False), ({"ask": "no"}, False), ({"ask": "yes", "record": "yes"}, True)],
)
def test_a_recording_cache_is_not_asked_unless_told(given: dict[str, str], asks: bool) -> None:
    """What it has recorded can be cropped whatever it says."""
    assert converted(TransformersOptions, given, "transformers").asks is asks


def test_a_tokenizer_is_loaded_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many texts it is given."""
    import tokenizers

    file = TokenizerFile(ROOT / "fixtures" / "zoo" / "llama-genai-fp32")
    first = file.encode("abc")
    monkeypatch.delattr(tokenizers, "Tokenizer")
    assert file.encode("abc") == first != []


def test_a_model_without_a_tokenizer_is_given_ids(tmp_path: Path) -> None:
    """A refusal, which says so."""
    with pytest.raises(RefusedError, match=r"no tokenizer\.json.*give token ids"):
        TokenizerFile(tmp_path).encode("abc")
