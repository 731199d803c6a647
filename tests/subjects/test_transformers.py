"""The transformers adapter: it passes on a healthy library, and every fault planted around it is found."""

from __future__ import annotations

import copy
import importlib
import json
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

from warmcold.harness.arms.arms import Arms
from warmcold.harness.contract.errors import RefusedError, SubjectError
from warmcold.harness.contract.observation import Observation
from warmcold.harness.contract.scenario import Settings, Turn
from warmcold.harness.contract.verdict import Level, Verdict
from warmcold.harness.run.events import LegFinished
from warmcold.harness.run.player import Effort
from warmcold.harness.run.target import Target
from warmcold.harness.run.verify import judged as conclude

pytestmark = pytest.mark.transformers

SMALL = {
    "vocab_size": 96,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "initializer_range": 0.3,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
SLIDING = {"sliding_window": 8, "layer_types": ["sliding_attention", "full_attention"]}
CONVOLUTION = {"layer_types": ["conv", "full_attention"], "conv_L_cache": 3, "block_auto_adjust_ff_dim": False}


@pytest.fixture(scope="module")
def adapter() -> ModuleType:
    """The module under test, imported late: the library is optional."""
    return importlib.import_module("warmcold.harness.subjects.transformers.subject")


def directory(where: Path, kind: str, **more: Any) -> Path:
    """A model directory that holds a configuration and no weights."""
    (where / "config.json").write_text(json.dumps({"model_type": kind, **SMALL, **more}), encoding="utf-8")
    return where


def judged(subject: Any, examples: int = 4) -> LegFinished:
    """What the harness concludes of generated conversations."""
    target = Target(model=str(subject.model), subject="transformers")
    return conclude(target, Effort(examples=examples, threads=1), arms=Arms.of(subject, threads=1))


@pytest.mark.parametrize("options", [{}, {"cache": "static", "capacity": "64"}, {"way": "generate"}])
def test_healthy_caches_pass_at_the_highest_level(adapter: ModuleType, tmp_path: Path, options: dict[str, str]) -> None:
    """Cropped and fed on, logits and KV are bit for bit those of a cache built anew from recorded rows."""
    seen = judged(adapter.Transformers(directory(tmp_path, "llama"), threads=1, **options))
    assert seen.verdict is Verdict.PASS, seen.findings
    assert seen.level is Level.L4
    for check in ("logits", "kv_seed", "kv_end", "tokens", "cold", "oracle", "efficiency"):
        assert seen.checks[check].compared > 0, check


@pytest.mark.parametrize(
    ("kind", "more", "options"),
    [
        ("gemma3_text", SLIDING, {}),
        ("gemma3_text", SLIDING, {"cache": "static", "capacity": "64"}),
        ("lfm2", CONVOLUTION, {}),
        ("lfm2", CONVOLUTION, {"record": "yes"}),
    ],
)
def test_what_cannot_always_be_rewound_passes_too(
    adapter: ModuleType, tmp_path: Path, kind: str, more: dict[str, Any], options: dict[str, str]
) -> None:
    """Windows and states: where the library refuses to crop, the turn begins afresh, and no bit differs."""
    seen = judged(adapter.Transformers(directory(tmp_path, kind, **more), threads=1, **options))
    assert seen.verdict is Verdict.PASS, seen.findings
    assert seen.count.reused_turns > 0


def swapped(self: Any, live: Any, n: int) -> bool:
    """A crop after which keys and values have changed places."""
    done: bool = plain_crop(self, live, n)
    for layer in live.cache.layers:
        layer.keys, layer.values = layer.values, layer.keys
    return done


def one_late(self: Any, live: Any, n: int) -> bool:
    """A crop that keeps one position too many, and says that it did not."""
    done: bool = plain_crop(self, live, min(n + 1, live.held))
    live.held = n
    return done


def skipped(self: Any, live: Any, n: int) -> bool:
    """A crop that leaves the stale tail where it is."""
    live.held = n
    return True


def foreign(self: Any, live: Any, n: int) -> bool:
    """A crop of the cache of whichever session was used first."""
    first = next(iter(self._sessions.values()))
    if first is not live and first.held >= n:
        live.cache, live.held = copy.deepcopy(first.cache), first.held
    return plain_crop(self, live, n)


def plain_crop(self: Any, live: Any, n: int) -> bool:
    """The adapter's own crop."""
    done: bool = self.honest_crop(live, n)
    return done


@pytest.mark.parametrize("fault", [swapped, one_late, skipped, foreign])
def test_each_planted_fault_is_found(
    adapter: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fault: Any
) -> None:
    """A fault in the rewind shows as FAIL within a few conversations."""
    honest = adapter.TransformersInstance.crop
    monkeypatch.setattr(adapter.TransformersInstance, "honest_crop", honest, raising=False)
    monkeypatch.setattr(adapter.TransformersInstance, "crop", fault)
    seen = judged(adapter.Transformers(directory(tmp_path, "llama"), threads=1), examples=30)
    assert seen.verdict is Verdict.FAIL


def opened(adapter: ModuleType, where: Path, **options: str) -> Any:
    """An instance over a small model."""
    return adapter.Transformers(directory(where, "llama"), threads=1, **options).open(Settings(), poison=None)


def played(instance: Any, prompt: Sequence[int], **fields: Any) -> Observation:
    """One turn on the session that is there by default."""
    seen: Observation = instance.turn(Turn(name="t", **fields), prompt)
    return seen


def test_a_turn_feeds_what_is_not_held_and_not_its_last_token(adapter: ModuleType, tmp_path: Path) -> None:
    """After T > 0 tokens the cache holds prompt + T - 1 positions, and the next turn reuses them."""
    instance = opened(adapter, tmp_path)
    first = played(instance, [3, 4, 5, 6], max_new_tokens=3)
    assert (first.rows, first.reused, len(first.tokens)) == ((4, 1, 1), 0, 3)
    second = played(instance, [3, 4, 5, 6, *first.tokens, 7], max_new_tokens=0)
    assert (second.rows, second.reused, second.tokens) == ((2,), 6, ())


def test_a_cancelled_turn_keeps_what_was_fed(adapter: ModuleType, tmp_path: Path) -> None:
    """Closed after two calls, the cache holds the prompt and one reply token."""
    instance = opened(adapter, tmp_path)
    seen = played(instance, [3, 4, 5, 6], max_new_tokens=5, cancel_after=2)
    assert (seen.rows, len(seen.tokens)) == ((4, 1), 2)
    assert seen.end is not None
    assert seen.end[0][0].shape == (2, 5, 8)


def test_a_fork_and_its_origin_do_not_touch(adapter: ModuleType, tmp_path: Path) -> None:
    """What the fork is told does not show in the origin's next reply."""
    instance = opened(adapter, tmp_path)
    played(instance, [3, 4, 5, 6])
    instance.fork("s", "f")
    played(instance, [3, 4, 9, 9], session="f")
    seen = played(instance, [3, 4, 5, 6, 8])
    assert seen.end is not None
    alone = opened(adapter, tmp_path)
    played(alone, [3, 4, 5, 6])
    same = played(alone, [3, 4, 5, 6, 8])
    assert same.end is not None
    assert seen.tokens == same.tokens
    np.testing.assert_array_equal(seen.end, same.end)


def test_an_empty_or_too_long_prompt_is_refused(adapter: ModuleType, tmp_path: Path) -> None:
    """Both ends of the context, typed."""
    instance = opened(adapter, tmp_path)
    for prompt in ([], [3] * 129):
        with pytest.raises(RefusedError, match="a prompt has 1 to 128"):
            played(instance, prompt)


def test_the_context_may_be_filled_exactly(adapter: ModuleType, tmp_path: Path) -> None:
    """A prompt of the whole context gives one token."""
    assert len(played(opened(adapter, tmp_path), [3] * 128, max_new_tokens=4).tokens) == 1


@pytest.mark.parametrize("way", ["forward", "generate"])
def test_both_ways_say_the_same(adapter: ModuleType, tmp_path: Path, way: str) -> None:
    """By hand or through `generate`, greedy tokens are those of the uncached model."""
    subject = adapter.Transformers(directory(tmp_path, "llama"), threads=1, way=way)
    tokens = played(subject.open(Settings(), poison=None), [3, 4, 5, 6], max_new_tokens=4).tokens
    rows = subject.recompute()([3, 4, 5, 6, *tokens], None)
    assert tokens == tuple(int(t) for t in rows[3:7].argmax(axis=1))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"cache": "warm"}, "option cache=warm"),
        ({"colour": "red"}, "option colour=red"),
        ({"seed": "x"}, "option seed=x: give a whole number, 0 or more"),
    ],
)
def test_a_wrong_option_is_named(adapter: ModuleType, tmp_path: Path, options: dict[str, str], says: str) -> None:
    """The message says which option, and what it takes."""
    with pytest.raises(SubjectError, match=says):
        adapter.Transformers(directory(tmp_path, "llama"), **options)


def test_a_directory_without_a_configuration_is_named(adapter: ModuleType, tmp_path: Path) -> None:
    """No config.json: the message says what to give."""
    with pytest.raises(SubjectError, match=r"neither config\.json nor hf_config\.json"):
        adapter.Transformers(tmp_path)
