"""What a caller asks for and what comes back. Plain frozen data."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from .errors import UsageError
from .reuse import CutReason, ReuseSource


class StopReason(StrEnum):
    """Why a turn ended."""

    LENGTH = "length"
    EOS = "eos"
    STOP_TOKEN = "stop_token"
    CONTEXT_FULL = "context_full"
    CANCELLED = "cancelled"


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
    """How to choose tokens and when to stop. Greedy: the highest logit, ties to the lowest id."""

    max_new_tokens: int = 32
    stop_token_ids: tuple[int, ...] = ()
    ignore_eos: bool = False

    def __post_init__(self) -> None:
        if self.max_new_tokens < 0:
            raise UsageError(f"max_new_tokens is {self.max_new_tokens}: give 0 (prefill only) or more")


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
