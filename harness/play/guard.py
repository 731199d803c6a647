"""A subject's instance whose unexpected exceptions are told apart from the harness's own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ParamSpec, TypeVar

from typing_extensions import override

from ..contract.errors import CrashError, MaskedError, RefusedError
from ..contract.observation import Observation, Pool
from ..contract.scenario import Turn
from ..contract.subject import Instance

P = ParamSpec("P")
R = TypeVar("R")


class Guarded(Instance):
    """Passes every call on; whatever the subject throws beside a refusal comes back as a CrashError."""

    def __init__(self, instance: Instance) -> None:
        self._real = instance

    @override
    def turn(self, op: Turn, prompt: Sequence[int]) -> Observation:
        return _guarded(self._real.turn, op, prompt)

    @override
    def cold(self, op: Turn, prompt: Sequence[int]) -> Observation:
        return _guarded(self._real.cold, op, prompt)

    @override
    def new_session(self, session: str) -> None:
        _guarded(self._real.new_session, session)

    @override
    def fork(self, session: str, to: str) -> None:
        _guarded(self._real.fork, session, to)

    @override
    def rewind(self, session: str, n: int) -> bool:
        return _guarded(self._real.rewind, session, n)

    @override
    def pool(self) -> Pool | None:
        return _guarded(self._real.pool)

    @override
    def clear(self) -> None:
        _guarded(self._real.clear)


def _guarded(call: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R:
    try:
        return call(*args, **kwargs)
    except (RefusedError, MaskedError):
        raise
    except (
        Exception,
        SystemExit,
    ) as error:  # whatever an engine throws is a finding about it; one that leaves is no pass
        raise CrashError(getattr(call, "__name__", "a call"), error) from error
