"""What is kept between the turns of one conversation: context, identity and decoder, together or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Protocol, Unpack

from ..contract.errors import UsageError
from ..contract.request import Completion, RequestOptions, SamplingParams
from .slot import Retained, Slot
from .turn import Turn


class OpenTurn(Protocol):
    """How a session gets its turns: an engine's checked turn that has not started, over the slot it is given."""

    def __call__(
        self, prompt_ids: Sequence[int], params: SamplingParams | None, slot: Slot, **request: Unpack[RequestOptions]
    ) -> Turn: ...


class Session:
    """One conversation on an engine. Bounded by the engine's `max_context` positions of KV. Not for two threads."""

    def __init__(self, open_turn: OpenTurn, retained: Retained | None = None) -> None:
        """`retained`: what the first turn may reuse."""
        self._open_turn = open_turn
        self._slot = Slot(retained)
        self._closed = False

    def generate(
        self, prompt_ids: Sequence[int], params: SamplingParams | None = None, **request: Unpack[RequestOptions]
    ) -> Completion:
        """Run one turn to its end. `request`: see `Engine.generate`."""
        return self.stream(prompt_ids, params, **request).finish()

    def stream(
        self, prompt_ids: Sequence[int], params: SamplingParams | None = None, **request: Unpack[RequestOptions]
    ) -> Turn:
        """A turn to iterate: one `Step` per model call, token None for a prefill chunk; `close()` cancels.

        UsageError for a bad prompt or while another turn of this session runs; the session is as it was.
        """
        if self._closed:
            raise UsageError("the session is closed: open a new one with engine.session()")
        slot = self._slot if request.get("reuse", True) else Slot()
        return self._open_turn(prompt_ids, params, slot, **request)

    def rewind(self, n: int) -> bool:
        """Make what is retained hold only its first `n` tokens. False, and nothing changed, if it holds fewer or declines."""
        if n < 0:
            raise UsageError(f"rewind to {n}: give a length of 0 or more")
        retained = self._slot.retained
        if retained is None or n > retained.decoder.state.kv_len:
            return False
        try:
            done = retained.decoder.state.rewind_to(n)
        except BaseException:  # an interrupt in the middle of a cut leaves it half done too
            self._slot.retained = None  # the state is poisoned
            raise
        if done:
            self._slot.retained = replace(retained, context=retained.context[:n])
        return done

    def fork(self) -> Session:
        """A session of its own that retains the same; from here on neither touches the other. UsageError while a turn runs."""
        if self._closed or self._slot.busy:
            raise UsageError("only an open session between two turns can be forked")
        retained = self._slot.retained
        forked = replace(retained, decoder=retained.decoder.fork()) if retained is not None else None
        return Session(self._open_turn, forked)

    def close(self) -> None:
        """Drop what is retained. Idempotent."""
        self._slot.retained = None
        self._closed = True

    @property
    def retained(self) -> Retained | None:
        """What the next turn may reuse, for an observer; None while a turn runs."""
        return self._slot.retained
