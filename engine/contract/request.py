"""What a caller asks for and what comes back. Plain frozen data."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import StrEnum
from typing import TypedDict

from .errors import UsageError

Identity = bytes
"""A digest of all that conditions KV beside its tokens; requests share KV only under the same one (`turn.identity`)."""


class StopReason(StrEnum):
    """Why a turn ended."""

    LENGTH = "length"
    EOS = "eos"
    STOP_TOKEN = "stop_token"
    STOP_STRING = "stop_string"
    CONTEXT_FULL = "context_full"
    CANCELLED = "cancelled"


class CutReason(StrEnum):
    """Why not more was reused: the first of these, in this order, that the cut equals or that forbids one more.

    Those after `shared` are names of components. The list grows with the components that a decoder may carry.
    """

    STATELESS = "stateless"
    IDENTITY = "identity"
    WANTED = "wanted"
    CURRENT = "current"
    SHARED = "shared"
    WINDOW = "window"


class ReuseSource(StrEnum):
    """Where reused positions came from."""

    NONE = "none"
    RETAINED = "retained"
    PAGED = "paged"


class GateReason(StrEnum):
    """Why the paged path was not used in a turn."""

    NO_KV = "no_kv"
    NO_IDENTITY = "no_identity"
    REUSE_OFF = "reuse_off"
    NO_PAGES = "no_pages"
    POOL_EXHAUSTED = "pool_exhausted"


class MirrorStop(StrEnum):
    """Why mirroring into pages stopped before the end of a turn."""

    POOL_EXHAUSTED = "pool_exhausted"
    NO_PAGE_FOR_COPY = "no_page_for_copy"


@dataclass(frozen=True, kw_only=True)
class SamplingParams:
    """How to choose tokens and when to stop.

    `temperature` 0 is greedy: the highest score, ties to the lowest id. `top_k` 0, `top_p` 1 and `min_p` 0 leave everything
    in. Penalties cover the whole context. `seed` belongs to the request. `stop`: strings that end the reply (the token that
    completes one is its last). End tokens are those of the package, its tokenizer and `stop_token_ids` together.
    """

    max_new_tokens: int = 32
    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    seed: int = 0
    repetition_penalty: float = 1.0
    frequency_penalty: float = 0.0
    presence_penalty: float = 0.0
    stop_token_ids: tuple[int, ...] = ()
    stop: tuple[str, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        for name, good, wanted in (
            ("max_new_tokens", self.max_new_tokens >= 0, "0 (prefill only) or more"),
            ("temperature", 0 <= self.temperature < math.inf, "0 (greedy) or more"),
            ("top_k", self.top_k >= 0, "0 (off) or more"),
            ("top_p", 0 < self.top_p <= 1, "more than 0, at most 1"),
            ("min_p", 0 <= self.min_p <= 1, "0 to 1"),
            ("seed", self.seed >= 0, "0 or more"),
            ("repetition_penalty", 0 < self.repetition_penalty < math.inf, "more than 0 (1 is off)"),
            ("frequency_penalty", math.isfinite(self.frequency_penalty), "a finite number"),
            ("presence_penalty", math.isfinite(self.presence_penalty), "a finite number"),
            ("stop", "" not in self.stop and not isinstance(self.stop, str), "a tuple of texts, none of them empty"),
        ):
            if not good:
                raise UsageError(f"{name} is {getattr(self, name)!r}: give {wanted}")


class RequestOptions(TypedDict, total=False):
    """What a request says beside its prompt and how to sample.

    `salt`: anything canonical; requests with different salts never share KV. `reuse` False: cold, and nothing is kept.
    """

    salt: object
    reuse: bool


@dataclass(frozen=True, kw_only=True)
class Step:
    """One model call: `rows` positions fed from position `start`; `token` is None for a prefill chunk before the last."""

    rows: int
    start: int
    token: int | None


@dataclass(frozen=True, kw_only=True)
class Completion:
    """One finished turn. `reused + prefilled == len(prompt)`; `calls` is the schedule, rows per model call."""

    tokens: tuple[int, ...]
    reused: int
    prefilled: int
    source: ReuseSource
    reason: CutReason
    declined: bool
    gate: GateReason | None
    mirror_stop: MirrorStop | None
    stop: StopReason
    calls: tuple[int, ...]
