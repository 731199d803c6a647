"""What a subject is judged with: whatever replays its schedules, recomputes a context, or knows what the model means."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from ..contract.errors import CrashError, HarnessError
from ..contract.scenario import Settings
from ..contract.subject import AnyLoop, ClosedForm, Recompute, Subject
from .external_twin import ExternalTwin
from .oracle import BareLoop, RawModel
from .twin import Twin


@dataclass(frozen=True, kw_only=True)
class Arms:
    """`matched`: what replays a schedule, on pasts that the harness holds; `oracle`: what recomputes a context from nothing;
    `closed`: the closed form. None where there is none."""

    subject: Subject
    matched: AnyLoop | None
    oracle: Recompute | None
    closed: ClosedForm | None

    @classmethod
    def of(cls, subject: Subject, *, threads: int = 2) -> Arms:
        """The subject's own lowest-level call where it offers one, else its model under raw ONNX Runtime."""
        raw = None
        if subject.onnx is not None:
            model = RawModel(subject.onnx, threads=threads)
            raw = BareLoop(model.ports, model.run)
        own = subject.recompute()
        return cls(
            subject=subject,
            matched=subject.loop() or raw,
            oracle=_blamed(own) if own is not None else raw.recompute if raw is not None else None,
            closed=subject.closed_form(),
        )

    @property
    def judgeable(self) -> bool:
        """Whether a single turn can be judged, without statistics: something replays it, recomputes it, or cold is exact."""
        return self.matched is not None or self.oracle is not None or self.subject.capabilities.invariant

    def twin(self, settings: Settings) -> Twin:
        """The bookkeeping that the subject's reuse model asks for, holding nothing."""
        model, subject = self.subject.capabilities.reuse, self.subject
        if model.scope == "policy":
            return Twin(settings=settings, stateful=subject.stateful, max_context=subject.max_context)
        return ExternalTwin(
            settings=replace(settings, pages=0), stateful=subject.stateful, max_context=subject.max_context, model=model
        )


def _blamed(recompute: Recompute) -> Recompute:
    """The oracle where it is the subject's own library: what that raises is a finding about it."""

    def call(tokens: Sequence[int], schedule: Sequence[int] | None) -> NDArray[np.float32]:
        try:
            return recompute(tokens, schedule)
        except HarnessError:
            raise
        except Exception as error:  # a library may raise anything
            raise CrashError("recompute", error) from error

    return call
