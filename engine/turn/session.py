"""What is kept between the turns of one conversation: context, identity and decoder, together or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from ..contract.errors import UsageError
from ..contract.request import Completion, SamplingParams
from .turn import Retained, Turn

if TYPE_CHECKING:
    from ..engine import Engine


class Session:
    """One conversation on an engine. Bounded by the engine's `max_context` positions of KV. Not for two threads."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._retained: Retained | None = None
        self._busy = False
        self._closed = False

    def generate(self, prompt_ids: Sequence[int], params: SamplingParams | None = None, **request: Any) -> Completion:
        """Run one turn to its end. `request`: see `Engine.generate`."""
        turn = self.stream(prompt_ids, params, **request)
        for _ in turn:
            pass
        return turn.completion

    def stream(self, prompt_ids: Sequence[int], params: SamplingParams | None = None, **request: Any) -> Turn:
        """A turn to iterate: one `Step` per model call, token None for a prefill chunk; `close()` cancels.

        UsageError for a bad prompt or while another turn of this session runs; the session is as it was.
        """
        if self._closed:
            raise UsageError("the session is closed: open a new one with engine.session()")
        if request.get("reuse", True):
            return self._engine.turn(prompt_ids, params, take=self._take, put_back=self._put_back, **request)
        return self._engine.turn(prompt_ids, params, take=_nothing, put_back=_drop, **request)

    def rewind(self, n: int) -> bool:
        """Make what is retained hold only its first `n` tokens. False, and nothing changed, if it holds fewer or declines."""
        if n < 0:
            raise UsageError(f"rewind to {n}: give a length of 0 or more")
        retained = self._retained
        if self._busy or retained is None or n > retained.decoder.state.kv_len:
            return False
        try:
            done = retained.decoder.state.rewind_to(n)
        except BaseException:
            self._retained = None  # the state is poisoned
            raise
        if done:
            self._retained = replace(retained, context=retained.context[:n])
        return done

    def fork(self) -> Session:
        """A session of its own that retains the same; from here on neither touches the other. UsageError while a turn runs."""
        if self._closed or self._busy:
            raise UsageError("only an open session between two turns can be forked")
        twin = Session(self._engine)
        if self._retained is not None:
            twin._retained = replace(self._retained, decoder=self._retained.decoder.fork())
        return twin

    def close(self) -> None:
        """Drop what is retained. Idempotent."""
        self._retained = None
        self._closed = True

    @property
    def retained(self) -> Retained | None:
        """What the next turn may reuse, for an observer; None while a turn runs."""
        return self._retained

    def _take(self) -> Retained | None:
        if self._busy:
            raise UsageError("another turn of this session is running: finish it or close() it first")
        self._busy = True
        retained, self._retained = self._retained, None
        return retained

    def _put_back(self, retained: Retained | None) -> None:
        self._busy = False
        self._retained = retained


def _nothing() -> Retained | None:
    return None


def _drop(retained: Retained | None) -> None:
    return None
