"""The decode loop. Prefill is a step with more tokens; there is no other phase.

The loop owns `fed`, the tokens that really ran through the model, in order. It sees ids and opaque logits: no text, no
device, no clock. It yields once per model call, at a step boundary, so that whoever stops iterating leaves a valid state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from ..contract.errors import BackendError, WarmcoldError
from ..contract.probe import Probe, Stepped
from ..contract.request import SamplingParams, Step, StopReason
from .decoder import Decoder
from .reuse import ReusedPrefix
from .sampling import Sampler
from .stopping import StopRule


@dataclass(kw_only=True)
class Progress:
    """What a running turn has done so far. `context` is prompt + sampled; `fed[:kv_len]` is what the state holds."""

    context: list[int]
    fed: list[int]
    prompt_len: int
    calls: list[int] = field(default_factory=list)
    stop: StopReason = StopReason.CANCELLED

    @property
    def tokens(self) -> tuple[int, ...]:
        """The tokens sampled so far."""
        return tuple(self.context[self.prompt_len :])


def begin(prompt: Sequence[int], prefix: ReusedPrefix) -> Progress:
    """A turn about to run on top of `prefix`."""
    return Progress(context=list(prompt), fed=list(prompt[: prefix.length]), prompt_len=len(prompt))


@dataclass(frozen=True, kw_only=True)
class Loop:
    """How one turn decodes: at most `chunk_size` rows a step; `commit` runs after each finished one."""

    decoder: Decoder
    params: SamplingParams
    stop: StopRule
    chunk_size: int
    commit: Callable[[], None]
    probe: Probe

    def run(self, progress: Progress) -> Iterator[Step]:
        """Feed what `progress` has not fed, sample, and go on until a stop."""
        sampler = Sampler(self.params)
        while True:
            start = len(progress.fed)
            rows = progress.context[start : start + self.chunk_size]
            logits = self._call(progress, rows)
            self.commit()
            if len(progress.fed) < len(progress.context):
                yield Step(rows=len(rows), start=start, token=None)
                continue
            token = None
            if self.params.max_new_tokens > 0:
                token = sampler.choose(logits, progress.context)
                progress.context.append(token)
            reason = self.stop.reason(progress.tokens, len(progress.fed))
            if reason is not None:
                progress.stop = reason
            yield Step(rows=len(rows), start=start, token=token)
            if reason is not None:
                return

    def _call(self, progress: Progress, rows: list[int]) -> NDArray[np.float32]:
        start = len(progress.fed)
        try:
            logits = self.decoder.step(progress.fed, rows)
        except WarmcoldError:
            raise
        except Exception as error:  # a runtime may raise anything; the turn must know that its state is void
            raise BackendError(f"the step at position {start} with {len(rows)} rows failed: {error}") from error
        if not np.isfinite(np.max(logits)):
            raise BackendError(
                f"the step at position {start} with {len(rows)} rows computed no distribution: "
                f"its highest logit is {np.max(logits)}"
            )
        progress.fed.extend(rows)
        progress.calls.append(len(rows))
        self.probe(Stepped(tokens=rows, start=start, logits=logits, state=self.decoder.state))
        return logits
