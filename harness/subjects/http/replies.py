"""What servers answer, as far as it is read. What is not named here is left alone; what is missing has its default."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct


class Anything(Struct):
    """Any object: that a server has such a path says enough."""


class Ids(Struct):
    """What /tokenize says."""

    tokens: tuple[int, ...]


class CardMeta(Struct):
    """llama-server's own part of a card."""

    n_ctx: int | None = None
    n_vocab: int | None = None


class Card(Struct):
    """A model as /v1/models lists it."""

    id: str = ""
    owned_by: str | None = None
    max_model_len: int | None = None
    meta: CardMeta | None = None


class Cards(Struct):
    """What /v1/models says."""

    data: tuple[Card, ...] | None = None


class PromptDetails(Struct):
    """What became of a prompt."""

    cached_tokens: int | None = None


class Usage(Struct):
    """Counts."""

    prompt_tokens_details: PromptDetails | None = None


class Logprobs(Struct):
    """By token, in vLLM as `token_id:N`; the likeliest of each step."""

    tokens: tuple[str, ...] | None = None
    top_logprobs: tuple[dict[str, float] | None, ...] | None = None


class Choice(Struct):
    """A reply."""

    text: str | None = None
    token_ids: tuple[int, ...] | None = None
    logprobs: Logprobs | None = None


class Completion(Struct):
    """An answer of `/v1/completions`."""

    choices: Annotated[tuple[Choice, ...], Meta(min_length=1)]
    usage: Usage | None = None


class CompletionEvent(Struct):
    """A part of one, which may be about the usage alone."""

    choices: tuple[Choice, ...] = ()


class Scored(Struct, array_like=True):
    """A log-probability, its id, and a text that is left out."""

    logprob: float | None
    id: int


class MetaInfo(Struct):
    """All of an answer of SGLang but the ids."""

    output_token_logprobs: tuple[Scored, ...] | None = None
    output_top_logprobs: tuple[tuple[Scored, ...] | None, ...] | None = None
    cached_tokens: int | None = None


class Generated(Struct):
    """An answer of SGLang's `/generate`."""

    meta_info: MetaInfo
    output_ids: tuple[int, ...] | None = None


class GeneratedEvent(Struct):
    """An event of one."""

    output_ids: tuple[int, ...] | None = None


class ServerInfo(Struct):
    """What SGLang says of itself."""

    context_length: int | None = None
    vocab_size: int | None = None


class Top(Struct):
    """One of the likeliest."""

    id: int
    logprob: float


class Row(Struct):
    """A token of llama-server's with the likeliest in its place."""

    id: int | None = None
    top_logprobs: tuple[Top, ...] | None = None


class Timings(Struct):
    """Tokens that llama-server took from its cache, and computed."""

    cache_n: int | None = None
    prompt_n: int | None = None


class LlamaReply(Struct):
    """An answer of llama-server's `/completion`, or an event of one."""

    tokens: tuple[int, ...] | None = None
    completion_probabilities: tuple[Row, ...] | None = None
    timings: Timings | None = None
    tokens_evaluated: int | None = None
    stop: bool = False


class Generation(Struct):
    """How llama-server's slots are set up."""

    n_ctx: int | None = None


class Props(Struct):
    """What llama-server says of itself. Others have a /props too, with something else in it."""

    default_generation_settings: Generation


class Version(Struct):
    """What vLLM says at /version."""

    version: str = ""
