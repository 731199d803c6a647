"""Text for models that were trained on text: the model's own tokenizer, and conversations worth having."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from ..contract.errors import RefusedError, ScenarioError
from ..contract.scenario import Encode, Scenario, Settings, Turn
from ..contract.subject import Subject

REAL_VOCABULARY = 4096
"""From this vocabulary on a model is taken for a real one: random ids would give near-ties everywhere, so it is fed text."""

_OPENINGS = (
    (
        "The lighthouse at the end of the harbour had been dark for eleven years when the council voted to sell it. "
        "Nobody expected a buyer. The roof leaked, the stairs were rotten from the third landing up, and the lamp room "
        "held nothing but gulls. Yet on the first morning of the sale a woman in a grey coat walked up the pier, read the "
        "notice twice, and asked the harbour master how much he thought the birds would mind. Summarise the story so far "
        "in one sentence, and say what she might want the building for.",
        "Now tell it from the point of view of the gulls.",
        "Which of the two versions is sadder, and why?",
    ),
    (
        "Here is a function that a colleague wrote:\n\n"
        "def merge(left, right):\n    result = []\n    while left and right:\n        if left[0] <= right[0]:\n"
        "            result.append(left.pop(0))\n        else:\n            result.append(right.pop(0))\n"
        "    return result + left + right\n\n"
        "It is called on two sorted lists of numbers. Explain step by step what it returns for [1, 4, 9] and [2, 3, 10], "
        "what it costs for long lists, and what happens to the lists that the caller passed in.",
        "Rewrite it so that the caller's lists are left alone.",
        "And how would you test that?",
    ),
)  # fmt: skip


def corpus(encode: Encode) -> tuple[int, ...]:
    """Ids of all the text that there is here, for generated conversations."""
    return tuple(encode("\n\n".join(text for texts in _OPENINGS for text in texts)))


def material(encode: Encode, vocab_size: int) -> tuple[int, ...] | None:
    """Ids of real text for a model that was trained on text; None where random ids will do, or nothing better can be had."""
    if vocab_size < REAL_VOCABULARY:
        return None
    try:
        return corpus(encode)
    except (RefusedError, ScenarioError):
        return None


def corpus_of(subject: Subject) -> Sequence[int]:
    """Ids to draw texts from: the subject's own, real text, or any ids of its vocabulary."""
    return subject.text or material(subject.encode, subject.vocab_size) or range(subject.vocab_size)


def chats(encode: Encode, *, sessions: bool = True) -> Iterator[tuple[str, Scenario]]:
    """Two chats of three turns each, in the model's own turn markers where its vocabulary has the usual ones.

    Later turns extend the context, so that more than four fifths of their prompt can be reused. The second chat then
    returns to its first turn on another session (the paged path), and regenerates, where there are several `sessions`.
    """
    marked = len(encode("<|im_start|>")) == 1
    settings = Settings(page_size=16, pages=64, chunk_size=32, min_capacity=64)
    for number, (opening, *more) in enumerate(_OPENINGS):
        ops = [Turn(name="t0", append=_said(opening, marked, first=True), max_new_tokens=8)]
        ops += [
            Turn(name=f"t{i}", base=f"t{i - 1}", append=_said(text, marked), max_new_tokens=8)
            for i, text in enumerate(more, start=1)
        ]
        if number and sessions:
            ops.append(Turn(name="again", session="other", base="t1", part="prompt", max_new_tokens=8))
        yield f"chat {number + 1}", Scenario(ops=tuple(ops), settings=settings, title=opening[:40])


def _said(text: str, marked: bool, *, first: bool = False) -> str:
    if not marked:
        return text if first else f"\n\n{text}\n\n"
    return f"{'' if first else '<|im_end|>' + chr(10)}<|im_start|>user\n{text}<|im_end|>\n<|im_start|>assistant\n"
