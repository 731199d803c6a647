"""From a row of logits to a token. Pure: what was reused, and how the prompt was fed, cannot matter here.

Penalties look at the whole context, prompt and reply, whether or not its KV was reused. Random numbers come from a
generator of the turn's own, one draw for each sampled token and none for a prefill step.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from ..contract.request import SamplingParams

Scores = NDArray[np.float64]


class Sampler:
    """Chooses one token after another for one turn."""

    def __init__(self, params: SamplingParams) -> None:
        self._params = params
        self._random = np.random.default_rng(params.seed)

    def choose(self, logits: NDArray[np.float32], context: Sequence[int]) -> int:
        """The next token after `context`, from finite-topped logits `[V]`."""
        params = self._params
        scores = penalised(logits, context, params)
        if params.temperature == 0:
            return int(np.argmax(scores))  # the lowest id among equals
        ids, probabilities = candidates(scores / params.temperature, params)
        drawn = self._random.random() * probabilities.sum()
        place = int(np.searchsorted(np.cumsum(probabilities), drawn, side="right"))
        return int(ids[min(place, len(ids) - 1)])


def penalised(logits: NDArray[np.float32], context: Sequence[int], params: SamplingParams) -> Scores:
    """Logits after repetition (Keskar et al. 2019, CTRL), frequency and presence penalties (as the OpenAI API has them).

    Repetition divides a positive logit of a token that occurs and multiplies a negative one; frequency subtracts once
    for each occurrence, presence once in all.
    """
    scores: Scores = logits.astype(np.float64)
    if (params.repetition_penalty, params.frequency_penalty, params.presence_penalty) == (1.0, 0.0, 0.0):
        return scores
    counts = np.bincount(np.asarray(context, dtype=np.int64), minlength=len(scores))
    seen = counts > 0
    scaled = np.where(scores > 0, scores / params.repetition_penalty, scores * params.repetition_penalty)
    scores = np.where(seen, scaled, scores)
    scores -= params.frequency_penalty * counts + params.presence_penalty * seen
    return scores


def candidates(scores: Scores, params: SamplingParams) -> tuple[NDArray[np.int64], Scores]:
    """Ids that top-k, top-p and min-p leave, most probable first (ties by id), with their probabilities, unnormalised.

    Order as in the usual implementations: top-k, then top-p (the least set that reaches p) over what is left, then min-p
    relative to the most probable.
    """
    ids = np.argsort(-scores, kind="stable").astype(np.int64)
    if params.top_k:
        ids = ids[: params.top_k]
    weights: Scores = np.exp(scores[ids] - scores[ids[0]])
    if params.top_p < 1.0:
        reached = np.cumsum(weights) / weights.sum()
        ids = ids[: int(np.searchsorted(reached, params.top_p, side="left")) + 1]
        weights = weights[: len(ids)]
    keep = weights >= params.min_p * weights[0]
    return ids[keep], weights[keep]
