"""What every dialect is: how a request is told, how an answer is read, and what of it may be missing."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

from ...contract.errors import RefusedError

Json = Mapping[str, Any]


class Transport(Protocol):
    """What a dialect may ask of the connection while it finds out about a server."""

    url: str

    def find(self, method: str, path: str, body: Json | None = None) -> Any:
        """The JSON answer; None where the server has no such path."""

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

    `one_state`: it keeps the last request only, so that any other request takes its place, however short.
    """

    name: ClassVar[str]
    path: ClassVar[str]
    salts: bool
    isolates: bool
    hides_zero: ClassVar[bool]
    one_state: ClassVar[bool]

    def body(self, ask: Ask) -> dict[str, Any]:
        """The request."""

    def read(self, answer: Json, ask: Ask) -> Answer:
        """A whole answer to `ask`. SubjectError where it lacks token ids; RefusedError where they cannot be told."""

    def delta(self, event: Json) -> Sequence[int]:
        """Token ids in one event of a stream."""

    def encode(self, text: str) -> Sequence[int]:
        """Ids of a text. RefusedError where the server has no way to tell."""

    def limits(self) -> Limits:
        """What may be asked. SubjectError where the server does not say."""


def tokens_of(http: Transport, answer: Any) -> Sequence[int]:
    """Ids in an answer of /tokenize. RefusedError where it is none."""
    if not isinstance(answer, Mapping) or not isinstance(answer.get("tokens"), list):
        raise RefusedError(f"{http.url} has no /tokenize: give the option tokenizer=FILE (the model's tokenizer.json)")
    ids: Sequence[int] = answer["tokens"]
    return ids
