"""How servers are asked for token ids, and what each of them shows. One small class a dialect; no I/O of its own.

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
from typing import Any, ClassVar

from ...contract.errors import SubjectError
from .protocol import Answer, Ask, Dialect, Json, Limits, Transport, tokens_of
from .text import LlamaCppPython


class Vllm:
    """vLLM's `/v1/completions`. The count needs `--enable-prompt-tokens-details`, and a count of 0 is left out."""

    name: ClassVar[str] = "vllm"
    path: ClassVar[str] = "/v1/completions"
    hides_zero: ClassVar[bool] = True
    one_state: ClassVar[bool] = False
    first_with_salts: ClassVar[tuple[int, int]] = (0, 9)

    def __init__(self, http: Transport, model: str, top: int, version: str = "") -> None:
        self._http, self._model, self._top = http, model, top
        self.salts = self.isolates = _version(version) >= self.first_with_salts

    def body(self, ask: Ask) -> dict[str, Any]:
        """See `Dialect.body`."""
        body: dict[str, Any] = {
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
        if self.salts:
            body["cache_salt"] = ask.space
        return body

    def read(self, answer: Json, ask: Ask) -> Answer:
        """See `Dialect.read`."""
        choice = answer["choices"][0]
        shown = choice.get("logprobs") or {}
        tokens = choice.get("token_ids")
        if tokens is None:
            tokens = [_numbered(token) for token in shown.get("tokens") or ()]
        if None in tokens or not (tokens or not choice.get("text")):
            raise SubjectError(
                f"{self._http.url}: its answer has text but no token ids (neither token_ids nor logprobs as token_id:N); "
                "warmcold compares ids, so use a server that returns them (vLLM, SGLang, llama-server)"
            )
        details = (answer.get("usage") or {}).get("prompt_tokens_details") or {}
        return Answer(tokens=tuple(tokens), logprobs=_named(shown.get("top_logprobs"), len(tokens)),
                      cached=details.get("cached_tokens"))  # fmt: skip

    def delta(self, event: Json) -> Sequence[int]:
        """See `Dialect.delta`."""
        return [token for choice in event.get("choices", ()) for token in choice.get("token_ids") or ()]

    def encode(self, text: str) -> Sequence[int]:
        """See `Dialect.encode`."""
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return tokens_of(self._http, self._http.find("POST", "/tokenize", body))

    def limits(self) -> Limits:
        """See `Dialect.limits`."""
        card = _card(self._http, self._model)
        if "max_model_len" not in card:
            raise SubjectError(
                f"{self._http.url}: /v1/models has no max_model_len for {self._model!r}; give the option context=N"
            )
        return Limits(context=int(card["max_model_len"]), vocab=None)


class OpenAi(Vllm):
    """Any other `/v1/completions` that takes and returns ids."""

    name: ClassVar[str] = "openai"

    def __init__(self, http: Transport, model: str, top: int) -> None:
        super().__init__(http, model, min(top, 5))
        self.salts = self.isolates = False


class Sglang:
    """SGLang's `/generate`. Log-probabilities of the prompt are never asked for: they switch hits off."""

    name: ClassVar[str] = "sglang"
    path: ClassVar[str] = "/generate"
    hides_zero: ClassVar[bool] = False
    one_state: ClassVar[bool] = False

    def __init__(self, http: Transport, model: str, top: int) -> None:
        self._http, self._model, self._top = http, model, top
        self.salts = self.isolates = True

    def body(self, ask: Ask) -> dict[str, Any]:
        """See `Dialect.body`."""
        return {
            "input_ids": list(ask.prompt),
            "sampling_params": {"temperature": 0, "max_new_tokens": ask.count, "ignore_eos": True},
            "return_logprob": True,
            "logprob_start_len": -1,
            "top_logprobs_num": self._top,
            "extra_key": ask.space,
            "stream": ask.stream,
        }

    def read(self, answer: Json, ask: Ask) -> Answer:
        """See `Dialect.read`."""
        meta = answer["meta_info"]
        tokens = answer.get("output_ids")
        if tokens is None:
            tokens = [token for _, token, *_ in meta.get("output_token_logprobs") or ()]
        rows = meta.get("output_top_logprobs")
        shown = tuple({int(t): float(lp) for lp, t, *_ in row or ()} for row in rows or ())
        return Answer(
            tokens=tuple(tokens),
            logprobs=shown if len(shown) == len(tokens) else None,
            cached=meta.get("cached_tokens"),
        )

    def delta(self, event: Json) -> Sequence[int]:
        """See `Dialect.delta`."""
        ids: Sequence[int] = event.get("output_ids") or ()
        return ids

    def encode(self, text: str) -> Sequence[int]:
        """See `Dialect.encode`."""
        body = {"model": self._model, "prompt": text, "add_special_tokens": False}
        return tokens_of(self._http, self._http.find("POST", "/tokenize", body))

    def limits(self) -> Limits:
        """See `Dialect.limits`."""
        info = self._http.find("GET", "/get_server_info") or self._http.find("GET", "/server_info") or {}
        context = info.get("context_length") or _card(self._http, self._model).get("max_model_len")
        if not context:
            raise SubjectError(
                f"{self._http.url}: the server does not say its context length; give the option context=N"
            )
        return Limits(context=int(context), vocab=info.get("vocab_size"))


class LlamaServer:
    """llama.cpp's own `/completion`. Its slots are left to it unless one is named."""

    name: ClassVar[str] = "llama-server"
    path: ClassVar[str] = "/completion"
    hides_zero: ClassVar[bool] = False
    one_state: ClassVar[bool] = False

    def __init__(self, http: Transport, model: str, top: int) -> None:
        self._http, self._model, self._top = http, model, top
        self.salts, self.isolates = False, True

    def body(self, ask: Ask) -> dict[str, Any]:
        """See `Dialect.body`."""
        body: dict[str, Any] = {
            "prompt": list(ask.prompt),
            "n_predict": ask.count,
            "temperature": 0,
            "cache_prompt": not ask.cold,
            "n_probs": self._top,
            "ignore_eos": True,
            "return_tokens": True,
            "stream": ask.stream,
        }
        if ask.slot is not None:
            body["id_slot"] = ask.slot
        return body

    def read(self, answer: Json, ask: Ask) -> Answer:
        """See `Dialect.read`. `tokens_cached` counts what the slot holds at the end, reply and all: that is not a hit."""
        rows = answer.get("completion_probabilities") or ()
        tokens = answer.get("tokens") or [row["id"] for row in rows if "id" in row]
        shown = _aligned(tokens, rows)
        return Answer(
            tokens=tuple(tokens),
            logprobs=shown if any(shown) else None,
            cached=_cache_n(answer),
        )

    def delta(self, event: Json) -> Sequence[int]:
        """See `Dialect.delta`. The last event repeats them all, and is left out."""
        ids: Sequence[int] = () if event.get("stop") else event.get("tokens") or ()
        return ids

    def encode(self, text: str) -> Sequence[int]:
        """See `Dialect.encode`."""
        return tokens_of(self._http, self._http.find("POST", "/tokenize", {"content": text, "add_special": False}))

    def limits(self) -> Limits:
        """See `Dialect.limits`."""
        props = self._http.find("GET", "/props") or {}
        meta = _card(self._http, self._model).get("meta") or {}
        context = (props.get("default_generation_settings") or {}).get("n_ctx") or meta.get("n_ctx")
        if not context:
            raise SubjectError(f"{self._http.url}: /props does not say n_ctx; give the option context=N")
        return Limits(context=int(context), vocab=meta.get("n_vocab"))


def detect(http: Transport, model: str | None, top: int) -> Dialect:
    """The dialect of the server, by what it says of itself. SubjectError where it offers no model."""
    cards = (http.find("GET", "/v1/models") or {}).get("data") or []
    chosen = next((card for card in cards if card.get("id") == model), None) if model else next(iter(cards), None)
    props = http.find("GET", "/props")
    if props is not None and "default_generation_settings" in props:
        return LlamaServer(http, (chosen or {}).get("id", ""), top)
    if chosen is None:
        names = sorted(str(card.get("id")) for card in cards)
        raise SubjectError(
            f"{http.url}: no model {model or 'at all'} at /v1/models; it offers {names}, so give model=NAME"
        )
    if chosen.get("owned_by") == "sglang" or http.find("GET", "/get_model_info") is not None:
        return Sglang(http, chosen["id"], top)
    version = http.find("GET", "/version")
    if chosen.get("owned_by") == "vllm" or (version is not None and "max_model_len" in chosen):
        return Vllm(http, chosen["id"], min(top, 20), str((version or {}).get("version", "")))
    if "tokens" in (http.find("POST", "/extras/tokenize", {"input": ""}) or {}):
        return LlamaCppPython(http, chosen["id"], top)
    return OpenAi(http, chosen["id"], top)


def _card(http: Transport, model: str) -> Json:
    cards = (http.find("GET", "/v1/models") or {}).get("data") or []
    return next((card for card in cards if card.get("id") == model), {})


def _version(text: str) -> tuple[int, int]:
    """Major and minor; a version that cannot be read is taken for a new one."""
    parts = text.split(".")
    return (int(parts[0]), int(parts[1])) if len(parts) > 1 and parts[0].isdigit() and parts[1].isdigit() else (1, 0)


def _numbered(token: str) -> int | None:
    digits = token.removeprefix("token_id:")
    return int(digits) if token.startswith("token_id:") and digits.isdigit() else None


def _named(rows: Any, count: int) -> tuple[Mapping[int, float], ...] | None:
    """Log-probabilities by id; None where some token is named by its text only."""
    if not rows or len(rows) != count:
        return None
    shown = [{_numbered(token): float(value) for token, value in (row or {}).items()} for row in rows]
    if any(None in row or not row for row in shown):
        return None
    return tuple({token: value for token, value in row.items() if token is not None} for row in shown)


def _aligned(tokens: Sequence[int], rows: Sequence[Json]) -> tuple[Mapping[int, float], ...]:
    """llama-server has no row for a token that ends within a character. A row that fits two places is shown at neither."""
    ids = [row.get("id") for row in rows]
    first = _earliest(tokens, ids)
    last = [len(tokens) - 1 - at for at in reversed(_earliest(tokens[::-1], ids[::-1]))]
    shown: list[Mapping[int, float]] = [{} for _ in tokens]
    for row, at, latest in zip(rows, first, last, strict=False):
        if at == latest:
            shown[at] = {int(each["id"]): float(each["logprob"]) for each in row.get("top_logprobs") or ()}
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


def _cache_n(answer: Json) -> int | None:
    timings = answer.get("timings") or {}
    if "cache_n" in timings:
        return int(timings["cache_n"])
    if "prompt_n" in timings and "tokens_evaluated" in answer:
        return int(answer["tokens_evaluated"]) - int(timings["prompt_n"])
    return None
