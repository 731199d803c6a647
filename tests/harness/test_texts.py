"""Text for models that were trained on text."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from warmcold.harness.contract.errors import RefusedError
from warmcold.harness.contract.scenario import Turn, resolve
from warmcold.harness.conversations.texts import chats
from warmcold.harness.subjects.tokenizer import TokenizerFile

MODEL = Path(__file__).parents[2] / "fixtures" / "models" / "snap-square"


def letters(text: str) -> Sequence[int]:
    """An encoder without turn markers."""
    return [ord(letter) for letter in text]


def marked(text: str) -> Sequence[int]:
    """An encoder whose vocabulary has the usual turn markers, as ids above every letter's."""
    for at, marker in enumerate(("<|im_start|>", "<|im_end|>")):
        text = text.replace(marker, chr(0x10FF00 + at))
    return letters(text)


def test_the_models_own_tokenizer() -> None:
    """`tokenizer.json` beside the model decides; nothing is added to the text."""
    encode = TokenizerFile(MODEL).encode
    ids = encode("abc")
    assert len(ids) > 0
    assert encode("abcabc") == [*ids, *ids]
    assert encode("") == []


def test_no_tokenizer(tmp_path: Path) -> None:
    """The message names the directory, the file, and what to give instead."""
    with pytest.raises(RefusedError, match=r"has no tokenizer.json, .*; give token ids") as caught:
        TokenizerFile(tmp_path).encode("abc")
    assert str(caught.value).startswith(str(tmp_path))


@pytest.mark.parametrize("encode", [letters, marked], ids=["plain", "marked"])
def test_later_turns_extend(encode: object) -> None:
    """Two chats of three turns; each prompt begins with the context before it, most of which can be reused."""
    assert callable(encode)
    played = list(chats(encode))
    assert [name for name, _ in played] == ["chat 1", "chat 2"]
    for _, scenario in played:
        history: dict[str, tuple[tuple[int, ...], tuple[int, ...]]] = {}
        turns = [op for op in scenario.ops if isinstance(op, Turn)]
        for op in turns:
            prompt = resolve(op, history, encode)
            if op.base is not None and op.part == "context":
                before = history[op.base][1]
                assert prompt[: len(before)] == before
                assert len(before) > 0.8 * len(prompt)
            history[op.name] = (prompt, (*prompt, *[0] * op.max_new_tokens))
        assert [op.name for op in turns[:3]] == ["t0", "t1", "t2"]


def test_the_second_chat_goes_back() -> None:
    """To an earlier prompt on another session, which only pages can serve."""
    (_, first), (_, second) = chats(letters)
    again = second.ops[-1]
    assert isinstance(again, Turn)
    assert (again.session, again.base, again.part, again.append) == ("other", "t1", "prompt", ())
    assert len(first.ops) == 3


def test_turn_markers_where_the_vocabulary_has_them() -> None:
    """A marked model is spoken to in its own markers, a plain one never sees them."""
    first = {encode: next(chats(encode))[1].ops for encode in (letters, marked)}
    assert all(isinstance(op, Turn) and "<|im_start|>" not in op.append for op in first[letters])
    assert all(isinstance(op, Turn) and "<|im_start|>user\n" in op.append for op in first[marked])
