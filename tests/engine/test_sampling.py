"""Sampling and stopping: closed forms for each step, and nothing that depends on how the context was computed."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from warmcold.engine import Engine, SamplingParams, StopReason, UsageError
from warmcold.engine.turn.sampling import Sampler, candidates, penalised
from warmcold.engine.turn.stopping import StopRule
from warmcold.fixtures import closed_forms

SNAP = Path(__file__).parents[2] / "fixtures" / "models" / "snap-gqa-shared"
ZOO = Path(__file__).parents[2] / "fixtures" / "zoo" / "llama-genai-fp32"
PROMPT = (1, 7, 3, 60, 22, 5, 9)


def row(*values: float) -> np.ndarray[Any, np.dtype[np.float32]]:
    """A row of logits."""
    return np.array(values, np.float32)


def test_greedy_takes_the_lowest_id_among_equals() -> None:
    """Temperature 0: the highest score, ties to the lowest id, whatever the seed."""
    assert Sampler(SamplingParams(seed=5)).choose(row(1, 3, 3, 2), ()) == 1


def test_penalties_look_at_the_whole_context() -> None:
    """Repetition divides a positive logit and multiplies a negative one, frequency counts, presence does not."""
    params = SamplingParams(repetition_penalty=2.0, frequency_penalty=0.25, presence_penalty=1.0)
    scores = penalised(row(4, -4, 4, 0), (0, 1, 1, 3), params)
    assert scores.tolist() == [2 - 0.25 - 1, -8 - 0.5 - 1, 4, 0 - 0.25 - 1]


def test_without_penalties_scores_are_the_logits() -> None:
    """The context does not matter then."""
    assert penalised(row(1, 2), (0, 0, 1), SamplingParams()).tolist() == [1, 2]


@pytest.mark.parametrize(
    ("params", "ids"),
    [
        ({}, [1, 2, 0, 3]),
        ({"top_k": 2}, [1, 2]),
        ({"top_p": 0.5}, [1]),  # 8 of 15 reach a half
        ({"top_p": 0.8}, [1, 2]),  # 8 + 4 of 15 are four fifths
        ({"top_p": 0.81}, [1, 2, 0]),
        ({"min_p": 0.25}, [1, 2, 0]),
        ({"min_p": 0.26}, [1, 2]),
        ({"top_k": 3, "top_p": 0.85}, [1, 2]),  # of the three left, 12 of 14 are enough
    ],
)
def test_what_each_filter_leaves(params: dict[str, Any], ids: list[int]) -> None:
    """Weights 2, 8, 4, 1: top-k counts, top-p takes the least set that reaches p, min-p compares with the best."""
    scores = np.log(np.array([2.0, 8.0, 4.0, 1.0]))
    assert candidates(scores, SamplingParams(temperature=1.0, **params))[0].tolist() == ids


def test_equal_scores_are_ordered_by_id() -> None:
    """Top-k of a tie keeps the lowest ids."""
    assert candidates(np.zeros(4), SamplingParams(temperature=1.0, top_k=2))[0].tolist() == [0, 1]


def test_draws_follow_the_distribution() -> None:
    """With weights 3 to 1, a fixed seed gives counts within five standard deviations of three quarters."""
    sampler, n = Sampler(SamplingParams(temperature=1.0)), 4000
    logits = row(math.log(3), 0, -50)
    counts = np.bincount([sampler.choose(logits, ()) for _ in range(n)], minlength=3)
    assert abs(counts[0] - 0.75 * n) < 5 * math.sqrt(n * 0.75 * 0.25)
    assert counts[2] == 0


@given(st.integers(0, 2**31), st.lists(st.floats(-5, 5, width=32), min_size=2, max_size=6))
def test_a_seed_gives_one_sequence(seed: int, logits: list[float]) -> None:
    """Two samplers of one seed choose alike; a prefill step draws nothing."""
    left, right = (Sampler(SamplingParams(temperature=0.7, seed=seed)) for _ in range(2))
    assert [left.choose(row(*logits), ()) for _ in range(5)] == [right.choose(row(*logits), ()) for _ in range(5)]


@pytest.mark.parametrize("backend", ["native", "ort"])
def test_sampled_replies_do_not_depend_on_reuse(backend: str) -> None:
    """With temperature, penalties and a seed, a warm turn gives what a cold one gives, chunked or not, alone or among others."""
    params = SamplingParams(
        max_new_tokens=8, temperature=2.0, top_k=20, seed=11, repetition_penalty=1.3, frequency_penalty=0.5,
        presence_penalty=0.25,
    )  # fmt: skip
    with Engine.load(SNAP, backend=backend, page_size=4, chunk_size=3, min_capacity=4) as engine:
        cold = engine.generate(PROMPT, params, reuse=False)
        session = engine.session()
        session.generate(PROMPT[:5], SamplingParams(max_new_tokens=1))
        other = engine.session().stream(PROMPT[::-1], params)
        next(other)
        warm = session.generate(PROMPT, params)
        assert warm.reused > 0
        assert warm.tokens == cold.tokens
        assert engine.fresh(chunk_size=64).generate(PROMPT, params).tokens == cold.tokens


def test_two_seeded_requests_interleaved_are_each_as_alone() -> None:
    """Random state belongs to the request."""
    hot = SamplingParams(max_new_tokens=6, temperature=3.0, seed=3)
    with Engine.load(SNAP, backend="ort") as engine:
        alone = [engine.generate(prompt, hot, reuse=False).tokens for prompt in (PROMPT, PROMPT[::-1])]
        left, right = engine.session().stream(PROMPT, hot), engine.session().stream(PROMPT[::-1], hot)
        for _ in range(20):
            next(left, None), next(right, None)
        assert [left.completion.tokens, right.completion.tokens] == alone


def test_end_tokens_of_package_tokenizer_and_caller() -> None:
    """The package's end token ends a reply unless ignored; the caller's stop token ends it all the same."""
    rule = StopRule(SamplingParams(stop_token_ids=(9,)), eos=frozenset({257}), max_context=99)
    assert rule.reason((1, 257), 5) is StopReason.EOS
    assert rule.reason((1, 9), 5) is StopReason.STOP_TOKEN
    assert rule.reason((257, 1), 5) is None
    ignoring = StopRule(SamplingParams(stop_token_ids=(9,), ignore_eos=True), eos=frozenset({257}), max_context=99)
    assert ignoring.reason((1, 257), 5) is None
    assert ignoring.reason((9,), 5) is StopReason.STOP_TOKEN


def test_eos_is_collected_from_every_file_of_the_package() -> None:
    """genai_config, generation_config and the tokenizer's own end token together."""
    with Engine.load(ZOO, backend="ort") as engine:
        assert engine.spec.eos == {257}


@pytest.mark.parametrize("cut", range(1, 5))
def test_a_stop_string_is_found_wherever_its_tokens_end(cut: int) -> None:
    """Split over any tokens, also inside a multi-byte character, also when more text follows in the same token."""
    text = "ab→END"
    pieces = {0: text[:cut], 1: text[cut:] + "x"}
    rule = StopRule(
        SamplingParams(stop=("→END",)),
        eos=frozenset(),
        max_context=99,
        decode=lambda ids: "".join(pieces[i] for i in ids),
    )
    assert rule.reason((0,), 3) is None
    assert rule.reason((0, 1), 4) is StopReason.STOP_STRING


def test_a_stop_string_of_an_earlier_turn_is_forgotten() -> None:
    """The same session, the next turn: the matcher begins anew, and the reply is what the model means."""
    oracle = closed_forms.load(SNAP)
    assert oracle is not None
    with Engine.load(SNAP, backend="ort") as engine:
        session, letters = engine.session(), engine.tokenizer()
        reply = oracle.greedy(PROMPT, 6)
        stop = letters.decode([reply[1]])
        first = session.generate(PROMPT, SamplingParams(max_new_tokens=6, stop=(stop,)))
        assert first.stop is StopReason.STOP_STRING
        assert list(first.tokens) == reply[: reply.index(reply[1]) + 1]
        prompt = (*PROMPT, *first.tokens)
        assert list(session.generate(prompt, SamplingParams(max_new_tokens=4)).tokens) == oracle.greedy(prompt, 4)


@pytest.mark.parametrize(
    ("field", "value"),
    [("max_new_tokens", -1), ("temperature", -0.1), ("temperature", math.nan), ("top_k", -1), ("top_p", 0.0), ("top_p", 1.5),
     ("min_p", -0.1), ("min_p", 2.0), ("seed", -1), ("repetition_penalty", 0.0), ("frequency_penalty", math.nan),
     ("presence_penalty", math.inf), ("stop", ("",)), ("stop", "abc")],
)  # fmt: skip
def test_a_bad_parameter_is_a_usage_error(field: str, value: Any) -> None:
    """With the name, the value, and what to give."""
    with pytest.raises(UsageError, match=field):
        SamplingParams(**{field: value})


@pytest.mark.parametrize("name", ["snap-gqa-shared", "snap-gqa-growing"])
@pytest.mark.parametrize("backend", ["native", "ort"])
def test_a_fork_and_its_origin_go_their_own_ways(name: str, backend: str) -> None:
    """Each continues from the common context, rewinds and all, and gives what a cold engine gives."""
    oracle = closed_forms.load(SNAP.parent / name)
    assert oracle is not None
    params = SamplingParams(max_new_tokens=4)
    with Engine.load(SNAP.parent / name, backend=backend, page_size=4, pages=0, min_capacity=4) as engine:
        origin = engine.session()
        first = origin.generate(PROMPT, params)
        fork = origin.fork()
        context = (*PROMPT, *first.tokens)
        prompts = {"origin": (*context, 1, 2, 3), "fork": (*context, 50, 51), "back": (*PROMPT[:4], 8, 8, 8)}
        replies = {"origin": origin.generate(prompts["origin"], params), "fork": fork.generate(prompts["fork"], params)}
        replies["back"] = fork.fork().generate(prompts["back"], params)
        for key, prompt in prompts.items():
            assert replies[key].reused >= 4
            assert list(replies[key].tokens) == oracle.greedy(prompt, 4)
        again = (*prompts["fork"], *replies["fork"].tokens, 9)
        assert list(fork.generate(again, params).tokens) == oracle.greedy(again, 4)
        busy = origin.stream(PROMPT, params)
        next(busy)
        with pytest.raises(UsageError, match="between two turns"):
            origin.fork()
