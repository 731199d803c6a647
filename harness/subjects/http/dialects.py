"""How servers are asked for token ids, and what each of them shows. One small class a dialect; requests are left to the
connection that it is given, of which it asks what it must know itself: models, limits, ids of a text.

| dialect | prefix cache told apart by | cold by | cached count | log-probabilities |
|---|---|---|---|---|
| vLLM, and servers that speak like it | `cache_salt` | a salt of its own | `cached_tokens` | up to 20 |
| SGLang | `extra_key` | a key of its own | `cached_tokens` | any number |
| llama-server | nothing | `cache_prompt: false` | `timings.cache_n` | any number |
| llama-cpp-python's server | nothing | an unrelated request in between | none | any number, by text |
| other OpenAI servers | nothing | an unrelated request in between | `cached_tokens` | 5 |
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import ClassVar

from typing_extensions import override

from ...contract.errors import SubjectError
from .protocol import Answer, Ask, Dialect, Json, Limits, Transport, card, cards, tokenized, understood
from .replies import (
    Anything,
    Card,
    Choice,
    Completion,
    CompletionEvent,
    Generated,
    GeneratedEvent,
    LlamaReply,
    Logprobs,
    PromptDetails,
    Props,
    Row,
    ServerInfo,
    Timings,
    Version,
)
from .text import LlamaCppPython


class Vllm(Dialect):
    """vLLM's `/v1/completions`. The count needs `--enable-prompt-tokens-details`, and a count of 0 is left out."""

    name: ClassVar[str] = "vllm"
    path: ClassVar[str] = "/v1/completions"
    hides_zero: ClassVar[bool] = True
    first_with_salts: ClassVar[tuple[int, int]] = (0, 9)

    def __init__(self, http: Transport, model: str, top: int, version: str = "") -> None:
        self._http, self._model, self._top = http, model, top
        self.salts = self.isolates = _version(version) >= self.first_with_salts

    @override
    def body(self, ask: Ask) -> dict[str, object]:
        body: dict[str, object] = {
            "model": self._model,
            "prompt": list(ask.prompt),
            "max_tokens": ask.count,
            "temperature": 0,
            "logprobs": self._top,
            "ignore_eos": True,
            "return_token_ids": True,
            "return_tokens_as_token_ids": True,
            "stream": ask.stream,
        }
        return body | ({"cache_salt": ask.space} if self.salts else {})

    @override
    def read(self, answer: Json, ask: Ask) -> Answer:
        said = understood(self._http, answer, Completion)
        choice = said.choices[0]
        shown = choice.logprobs or Logprobs()
        tokens = self._tokens(choice, shown)
        details = (said.usage and said.usage.prompt_tokens_details) or PromptDetails()
        return Answer(tokens=tokens, logprobs=_named(shown.top_logprobs, len(tokens)), cached=details.cached_tokens)

    def _tokens(self, choice: Choice, shown: Logprobs) -> tuple[int, ...]:
        if choice.token_ids is not None:
            found: Sequence[int | None] = choice.token_ids
        else:
            found = [_numbered(token) for token in shown.tokens or ()]
        tokens = tuple(token for token in found if token is not None)
        if len(tokens) < len(found) or (choice.text and not tokens):
            raise SubjectError(
                f"{self._http.url}: its answer has text but no token ids (neither token_ids nor logprobs as token_id:N); "
                "warmcold compares ids, so use a server that returns them (vLLM, SGLang, llama-server)"
            )
        return tokens

    @override
    def delta(self, event: Json) -> Sequence[int]:
        choices = understood(self._http, event, CompletionEvent).choices
        return [token for choice in choices for token in choice.token_ids or ()]

    @override
    def encode(self, text: str) -> Sequence[int]:
        return _tokenized_as(self._http, self._model, text)

    @override
    def limits(self) -> Limits:
        context = card(self._http, self._model).max_model_len
        if context is None:
            raise SubjectError(
                f"{self._http.url}: /v1/models has no max_model_len for {self._model!r}; give the option context=N"
            )
        return Limits(context=context, vocab=None)


class OpenAi(Vllm):
    """Any other `/v1/completions` that takes and returns ids."""

    name: ClassVar[str] = "openai"

    def __init__(self, http: Transport, model: str, top: int) -> None:
        super().__init__(http, model, min(top, 5))
        self.salts = self.isolates = False


class Sglang(Dialect):
    """SGLang's `/generate`. Log-probabilities of the prompt are never asked for: they switch hits off."""

    name: ClassVar[str] = "sglang"
    path: ClassVar[str] = "/generate"

    def __init__(self, http: Transport, model: str, top: int) -> None:
        self._http, self._model, self._top = http, model, top
        self.salts = self.isolates = True

    @override
    def body(self, ask: Ask) -> dict[str, object]:
        return {
            "input_ids": list(ask.prompt),
            "sampling_params": {"temperature": 0, "max_new_tokens": ask.count, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": -1,
            "top_logprobs_num": self._top,
            "extra_key": ask.space,
            "stream": ask.stream,
        }

    @override
    def read(self, answer: Json, ask: Ask) -> Answer:
        said = understood(self._http, answer, Generated)
        meta, tokens = said.meta_info, said.output_ids
        if tokens is None:
            tokens = tuple(each.id for each in meta.output_token_logprobs or ())
        shown = tuple(
            {each.id: each.logprob for each in row or () if each.logprob is not None}
            for row in meta.output_top_logprobs or ()
        )
        return Answer(tokens=tokens, logprobs=shown if len(shown) == len(tokens) else None, cached=meta.cached_tokens)

    @override
    def delta(self, event: Json) -> Sequence[int]:
        return understood(self._http, event, GeneratedEvent).output_ids or ()

    @override
    def encode(self, text: str) -> Sequence[int]:
        return _tokenized_as(self._http, self._model, text)

    @override
    def limits(self) -> Limits:
        places = ("/get_server_info", "/server_info")
        found = (self._http.find("GET", place, ServerInfo) for place in places)
        info = next((each for each in found if each is not None), ServerInfo())
        context = info.context_length or card(self._http, self._model).max_model_len
        if not context:
            raise SubjectError(
                f"{self._http.url}: the server does not say its context length; give the option context=N"
            )
        return Limits(context=context, vocab=info.vocab_size)


class LlamaServer(Dialect):
    """llama.cpp's own `/completion`. Its slots are left to it unless one is named."""

    name: ClassVar[str] = "llama-server"
    path: ClassVar[str] = "/completion"

    def __init__(self, http: Transport, model: str, top: int) -> None:
        self._http, self._model, self._top = http, model, top
        self.salts, self.isolates = False, True

    @override
    def body(self, ask: Ask) -> dict[str, object]:
        body: dict[str, object] = {
            "prompt": list(ask.prompt),
            "n_predict": ask.count,
            "temperature": 0,
            "cache_prompt": not ask.cold,
            "n_probs": self._top,
            "ignore_eos": True,
            "return_tokens": True,
            "stream": ask.stream,
        }
        return body | ({"id_slot": ask.slot} if ask.slot is not None else {})

    @override
    def read(self, answer: Json, ask: Ask) -> Answer:
        """`tokens_cached` counts what the slot holds at the end, reply and all: that is not a hit."""
        said = understood(self._http, answer, LlamaReply)
        rows = said.completion_probabilities or ()
        tokens = said.tokens or tuple(row.id for row in rows if row.id is not None)
        shown = _aligned(tokens, rows)
        return Answer(tokens=tokens, logprobs=shown if any(shown) else None, cached=_cache_n(said))

    @override
    def delta(self, event: Json) -> Sequence[int]:
        """The last event repeats them all, and is left out."""
        said = understood(self._http, event, LlamaReply)
        return () if said.stop else said.tokens or ()

    @override
    def encode(self, text: str) -> Sequence[int]:
        return tokenized(self._http, "/tokenize", {"content": text, "add_special": False})

    @override
    def limits(self) -> Limits:
        props, meta = self._http.find("GET", "/props", Props), card(self._http, self._model).meta
        context = (props and props.default_generation_settings.n_ctx) or (meta and meta.n_ctx)
        if not context:
            raise SubjectError(f"{self._http.url}: /props does not say n_ctx; give the option context=N")
        return Limits(context=context, vocab=meta.n_vocab if meta else None)


def detect(http: Transport, model: str | None, top: int) -> Dialect:
    """The dialect of the server, by what it says of itself. SubjectError where it offers no model."""
    offered = cards(http)
    chosen = next((each for each in offered if not model or each.id == model), None)
    if http.find("GET", "/props", Props) is not None:
        return LlamaServer(http, chosen.id if chosen is not None else "", top)
    if chosen is None:
        raise SubjectError(
            f"{http.url}: no model {model or 'at all'} at /v1/models; it offers {sorted(each.id for each in offered)}, "
            "so give model=NAME"
        )
    return _completions(http, chosen, top)


def _completions(http: Transport, chosen: Card, top: int) -> Dialect:
    """A server that names its models."""
    if chosen.owned_by == "sglang" or http.find("GET", "/get_model_info", Anything) is not None:
        return Sglang(http, chosen.id, top)
    version = http.find("GET", "/version", Version)
    if chosen.owned_by == "vllm" or (version is not None and chosen.max_model_len is not None):
        return Vllm(http, chosen.id, min(top, 20), version.version if version is not None else "")
    if LlamaCppPython.spoken(http):
        return LlamaCppPython(http, chosen.id, top)
    return OpenAi(http, chosen.id, top)


def _version(text: str) -> tuple[int, int]:
    """Major and minor; a version that cannot be read is taken for a new one."""
    parts = text.split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else (1, 0)


def _numbered(token: str) -> int | None:
    digits = token.removeprefix("token_id:")
    return int(digits) if token.startswith("token_id:") and digits.isdigit() else None


def _named(rows: Sequence[Mapping[str, float] | None] | None, count: int) -> tuple[Mapping[int, float], ...] | None:
    """Log-probabilities by id; None where some token is named by its text only."""
    if not rows or len(rows) != count:
        return None
    named = [{_numbered(token): value for token, value in (row or {}).items()} for row in rows]
    shown = tuple({token: value for token, value in row.items() if token is not None} for row in named)
    return shown if all(shown) and shown == tuple(named) else None


def _aligned(tokens: Sequence[int], rows: Sequence[Row]) -> tuple[Mapping[int, float], ...]:
    """llama-server has no row for a token that ends within a character. A row that fits two places is shown at neither."""
    ids = [row.id for row in rows]
    first = _earliest(tokens, ids)
    last = [len(tokens) - 1 - at for at in reversed(_earliest(tokens[::-1], ids[::-1]))]
    shown: list[Mapping[int, float]] = [{} for _ in tokens]
    for row, at, latest in zip(rows, first, last, strict=False):
        if at == latest:
            shown[at] = {each.id: each.logprob for each in row.top_logprobs or ()}
    return tuple(shown)


def _earliest(tokens: Sequence[int], ids: Sequence[int | None]) -> list[int]:
    """For each of `ids` the earliest place in `tokens` that keeps their order; none from the first that has no place."""
    places, at = [], 0
    for wanted in ids:
        at = next((place for place in range(at, len(tokens)) if tokens[place] == wanted), len(tokens)) + 1
        if at > len(tokens):
            return []
        places.append(at - 1)
    return places


def _cache_n(said: LlamaReply) -> int | None:
    timings = said.timings or Timings()
    if timings.cache_n is not None:
        return timings.cache_n
    if timings.prompt_n is not None and said.tokens_evaluated is not None:
        return said.tokens_evaluated - timings.prompt_n
    return None


def _tokenized_as(http: Transport, model: str, text: str) -> Sequence[int]:
    """By the tokenizer of `model`, as vLLM and SGLang are asked."""
    return tokenized(http, "/tokenize", {"model": model, "prompt": text, "add_special_tokens": False})
