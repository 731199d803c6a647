"""What every dialect is: how a request is told, how an answer is read, and what of it may be missing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

import msgspec

from ...contract.errors import RefusedError, SubjectError
from .replies import Card, Cards, Ids

Json = Mapping[str, object]
T = TypeVar("T")


class Transport(Protocol):
    """What a dialect may ask of the connection while it finds out about a server."""

    url: str

    def find(self, method: str, path: str, kind: type[T], body: Json | None = None) -> T | None:
        """What of the JSON answer belongs to a `kind`; None where the server has no such path, or answers otherwise."""

    def ask(self, path: str, body: Json) -> Json:
        """The JSON answer to a request. RefusedError with the server's words where it refuses it."""


@dataclass(frozen=True, kw_only=True)
class Ask:
    """One greedy request. `space`: the tenant whose prefixes may be reused; `cold`: nothing may be, in a space of its own."""

    prompt: tuple[int, ...]
    count: int
    space: str
    cold: bool = False
    slot: int | None = None
    stream: bool = False


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a server said. `cached` None: it did not say."""

    tokens: tuple[int, ...]
    logprobs: tuple[Mapping[int, float], ...] | None
    cached: int | None


@dataclass(frozen=True, kw_only=True)
class Limits:
    """`context` in positions; `vocab` None where the server does not say."""

    context: int
    vocab: int | None


class Dialect(Protocol):
    """One kind of server. `salts`: tenants are kept apart; `isolates`: a cold request needs no help by other requests.

    `hides_zero`: a count of 0 is left out. `one_state`: it keeps the last request only, so that any other request takes its
    place, however short.
    """

    name: ClassVar[str]
    path: ClassVar[str]
    hides_zero: ClassVar[bool] = False
    one_state: ClassVar[bool] = False
    salts: bool
    isolates: bool

    def body(self, ask: Ask) -> dict[str, object]:
        """The request."""

    def read(self, answer: Json, ask: Ask) -> Answer:
        """A whole answer to `ask`. SubjectError where it lacks token ids; RefusedError where they cannot be told."""

    def delta(self, event: Json) -> Sequence[int]:
        """Token ids in one event of a stream."""

    def encode(self, text: str) -> Sequence[int]:
        """Ids of a text. RefusedError where the server has no way to tell."""

    def limits(self) -> Limits:
        """What may be asked. SubjectError where the server does not say."""

    def settle(self, ids: Iterable[int]) -> tuple[int, ...]:
        """Those of `ids` that can be sent, in their order. SubjectError where there are too few."""
        return tuple(ids)


def understood(http: Transport, answer: Json, kind: type[T]) -> T:
    """What of an answer belongs to a `kind`; SubjectError with the place where it has another shape."""
    try:
        return msgspec.convert(answer, kind, strict=False)
    except msgspec.ValidationError as error:
        raise SubjectError(f"{http.url}: its answer is not understood ({error}): {answer!r:.200}") from error


def tokenized(http: Transport, path: str, body: Json) -> tuple[int, ...]:
    """Ids by the server's own tokenizer. RefusedError where it shows none."""
    found = http.find("POST", path, Ids, body)
    if found is None:
        raise RefusedError(f"{http.url} has no /tokenize: give the option tokenizer=FILE (the model's tokenizer.json)")
    return found.tokens


def cards(http: Transport) -> tuple[Card, ...]:
    """The models that the server offers."""
    found = http.find("GET", "/v1/models", Cards)
    return (found.data if found is not None else None) or ()


def card(http: Transport, model: str) -> Card:
    """One of them; an empty one where it is not offered."""
    return next((each for each in cards(http) if each.id == model), Card())
