"""When a turn ends: end tokens, stop tokens, stop strings, length, a full context."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from ..contract.request import SamplingParams, StopReason

Decode = Callable[[Sequence[int]], str]


class StopRule:
    """One turn's rule. Its state is the turn's own; nothing of it outlives the turn."""

    def __init__(
        self, params: SamplingParams, *, eos: frozenset[int], max_context: int, decode: Decode | None = None
    ) -> None:
        """`eos`: end tokens of the package and its tokenizer. `decode` is needed for stop strings only."""
        assert not params.stop or decode is not None, "stop strings need a decoder"
        self._params = params
        self._eos = frozenset() if params.ignore_eos else eos
        self._max_context = max_context
        self._decode = decode

    def reason(self, tokens: Sequence[int], fed: int) -> StopReason | None:
        """Why to stop after `tokens` were sampled and `fed` positions fed; None to go on."""
        if tokens:
            if tokens[-1] in self._params.stop_token_ids:
                return StopReason.STOP_TOKEN
            if tokens[-1] in self._eos:
                return StopReason.EOS
            if self._params.stop and self._matches(tokens):
                return StopReason.STOP_STRING
        if len(tokens) >= self._params.max_new_tokens:
            return StopReason.LENGTH
        return StopReason.CONTEXT_FULL if fed >= self._max_context else None

    def _matches(self, tokens: Sequence[int]) -> bool:
        """Whether a stop string is complete. Only as many tokens are decoded as it can span: a byte a token at worst."""
        assert self._decode is not None
        span = max(len(text.encode()) for text in self._params.stop) + 4
        tail = self._decode(tokens[-span:])
        return any(text in tail for text in self._params.stop)
