"""The dialect of a server that takes and gives text alone: ids that survive the way through text, and no others."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, ClassVar

from msgspec import Meta, Struct
from typing_extensions import override

from ...contract.errors import RefusedError, SubjectError
from .protocol import Answer, Ask, Dialect, Json, Limits, Transport, tokenized, understood
from .replies import Anything, Ids


class _Logprobs(Struct):
    top_logprobs: tuple[dict[str, float], ...] | None = None


class _Choice(Struct):
    text: str
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


class _Usage(Struct):
    prompt_tokens: int
    completion_tokens: int


class _Completion(Struct):
    choices: Annotated[tuple[_Choice, ...], Meta(min_length=1)]
    usage: _Usage


class _Piece(Struct):
    text: str | None = None


class _Event(Struct):
    choices: tuple[_Piece, ...] = ()


class LlamaCppPython(Dialect):
    """llama-cpp-python's own `/v1/completions`: text in, text out, and what follows a token id must follow from its text.

    So only ids are used whose texts, put together in any order, are these ids again (`settle`), and the reply is held to them
    by a bias: it never ends by itself, and its text says which ids it is. Log-probabilities come before the bias.
    """

    name: ClassVar[str] = "llama-cpp-python"
    path: ClassVar[str] = "/v1/completions"
    one_state: ClassVar[bool] = True
    bias: ClassVar[float] = 100.0
    """OpenAI's reference has it that 100 "should result in exclusive selection". More would cost bits of the logits."""
    too_long: ClassVar[int] = 2**15
    """So many words are sent to be told how long a prompt may be; they are refused before anything is computed."""

    def __init__(self, http: Transport, model: str, top: int) -> None:
        self._http, self._model = http, model
        self.salts = self.isolates = False
        self._head = self._ids("")
        letter = self._ids("a")
        if letter[: len(self._head)] != self._head:
            raise SubjectError(
                f"{http.url}: {model} ends each prompt with a token of its own; no reply continues a prompt"
            )
        self._space = " " if (self._spelt(letter[len(self._head) :]) or "").startswith(" ") else ""
        self._pieces: dict[int, str] = {}
        self._labels: dict[str, int] = {}
        asked = {"model": model, "prompt": "a", "max_tokens": 1, "logprobs": top}
        self._top = top if http.find("POST", self.path, Anything, asked) is not None else None

    @classmethod
    def spoken(cls, http: Transport) -> bool:
        """Whether the server speaks so: nobody else has this path."""
        return http.find("POST", "/extras/tokenize", Ids, {"input": ""}) is not None

    @override
    def settle(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Those that may stand next to each other in any order."""
        ids = tuple(ids)
        spelt = {token: self._spelt([token]) or "" for token in dict.fromkeys(ids)}
        for token in sorted(spelt, key=lambda each: not spelt[each].startswith(" ")):  # whole words before their parts
            others = [part for other in self._pieces for part in (other, token)]
            self._pieces[token] = spelt[token]
            if not spelt[token] or not self._survives([token, *others, token]):
                del self._pieces[token]
        if len(self._pieces) < 2:
            raise SubjectError(
                f"{self._http.url}: text does not survive {self._model}'s tokenizer, so no ids can be sent"
            )
        self._labels = {piece: token for token, piece in self._pieces.items()}
        return tuple(token for token in ids if token in self._pieces)

    @override
    def body(self, ask: Ask) -> dict[str, object]:
        """RefusedError for a prompt that no text stands for."""
        body: dict[str, object] = {
            "model": self._model,
            "prompt": self._text(ask.prompt),
            "max_tokens": ask.count,
            "temperature": 0,
            "repeat_penalty": 1,
            "logit_bias": {str(token): self.bias for token in self._pieces},
            "stream": ask.stream,
        }
        if self._top is not None and not ask.stream:
            body["logprobs"] = self._top
        return body

    @override
    def read(self, answer: Json, ask: Ask) -> Answer:
        """The ids are those of prompt and reply as one text, if they are as many as the server counted."""
        said = understood(self._http, answer, _Completion)
        choice, usage = said.choices[0], said.usage
        prompt = (*self._head, *ask.prompt)
        ids = self._ids(self._text(ask.prompt) + choice.text)
        reply = ids[len(prompt) :]
        if ids[: len(prompt)] != prompt or usage.prompt_tokens != len(prompt):
            raise RefusedError(f"as text, followed by {choice.text!r:.80}, the prompt is other tokens than it was")
        if len(reply) != usage.completion_tokens or not self._pieces.keys() >= set(reply):
            raise RefusedError(f"the reply {choice.text!r:.80} does not say which tokens it is")
        if choice.finish_reason != "length":
            raise RefusedError(f"the reply ended by itself after {len(reply)} tokens, in spite of the bias")
        rows = (choice.logprobs and choice.logprobs.top_logprobs) or ()
        shown = tuple(self._row(row, token) for row, token in zip(rows, reply, strict=False))
        return Answer(tokens=reply, logprobs=shown if len(shown) == len(reply) else None, cached=None)

    @override
    def delta(self, event: Json) -> Sequence[int]:
        """A text that is none of the settled ones is left out."""
        texts = [choice.text for choice in understood(self._http, event, _Event).choices]
        ids = [self._labels[text] for text in texts if text in self._labels]
        return [token for token in ids if token >= 0]

    @override
    def encode(self, text: str) -> Sequence[int]:
        """What the server puts before each prompt is left out."""
        return self._ids(text)[len(self._head) :]

    @override
    def limits(self) -> Limits:
        """Learnt from a refusal: the server says it nowhere else."""
        try:
            self._http.ask(self.path, {"model": self._model, "prompt": "a " * self.too_long, "max_tokens": 1})
        except RefusedError as error:
            found = re.search(r"maximum context length is (\d+)", str(error))
            if found:
                return Limits(context=int(found[1]) - len(self._head), vocab=None)
        raise SubjectError(f"{self._http.url}: the server does not say its context length; give the option context=N")

    def _row(self, row: Mapping[str, float], chosen: int) -> Mapping[int, float]:
        """Texts of unsettled tokens get a number below 0, the same each time; parts of characters are nothing and left out.

        The chosen token is shown even where it is none of the likeliest. As the least of them it is left out, because what is
        not shown is taken to be at most the least that is.
        """
        labels = self._labels
        shown = {labels.setdefault(text, -1 - len(labels)): value for text, value in row.items() if text}
        if chosen in shown and shown[chosen] == min(shown.values()):
            del shown[chosen]
        return shown

    def _text(self, ids: Sequence[int]) -> str:
        """The text that is these ids. Of settled ones it needs no asking; `read` looks at what came of it."""
        known = all(token in self._pieces for token in ids)
        spelt = "".join(self._pieces[token] for token in ids) if known else self._spelt(ids)
        text = None if spelt is None or not spelt.startswith(self._space) else spelt.removeprefix(self._space)
        if not text or not (known or self._ids(text) == (*self._head, *ids)):
            raise RefusedError(f"this server takes text, and none stands for these {len(ids)} tokens; give others")
        return text

    def _survives(self, ids: Sequence[int]) -> bool:
        try:
            return self._ids(self._text(ids)) == (*self._head, *ids)
        except RefusedError:
            return False

    def _spelt(self, ids: Sequence[int]) -> str | None:
        """None where the ids end within a character."""
        body = {"model": self._model, "tokens": list(ids)}
        found = self._http.find("POST", "/extras/detokenize", _Piece, body)
        return found.text if found is not None else None

    def _ids(self, text: str) -> tuple[int, ...]:
        return tokenized(self._http, "/extras/tokenize", {"model": self._model, "input": text})
