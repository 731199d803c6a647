"""llama-cpp-python's own server, which takes text alone: what survives the way through text is sent, and nothing else."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from warmcold.harness.contract.errors import RefusedError, SubjectError
from warmcold.harness.contract.scenario import Settings, Turn
from warmcold.harness.contract.verdict import Level, Verdict
from warmcold.harness.subjects.http.protocol import Ask, Json
from warmcold.harness.subjects.http.subject import OpenAiHttp
from warmcold.harness.subjects.http.text import LlamaCppPython

from .canned import TURN, completed, text_server
from .test_openai_http import played


def test_only_ids_whose_text_survives_are_sent() -> None:
    """Words before their parts; what joins with a neighbour, or has no text, is left out. The reply is held to the rest."""
    dialect = LlamaCppPython(text_server(), "m", 5)
    assert dialect.settle((2, 3, 5, 4, 6, 3, 7)) == (2, 5, 4, 6)
    body = dialect.body(Ask(prompt=(5, 4), count=3, space="a"))
    assert (body["prompt"], body["logprobs"]) == (" aab", 5)
    assert body["logit_bias"] == {"5": 100.0, "2": 100.0, "4": 100.0, "6": 100.0}
    assert body["repeat_penalty"] == 1
    with pytest.raises(RefusedError, match="none stands for"):
        dialect.body(Ask(prompt=(2, 3), count=1, space="a"))


def test_a_model_whose_texts_do_not_survive_is_refused() -> None:
    """One id alone cannot make room for itself."""
    with pytest.raises(SubjectError, match="does not survive"):
        LlamaCppPython(text_server(), "m", 5).settle((7, 4))


def test_a_text_reply_says_which_ids_it_is() -> None:
    """Unsettled texts keep a number of their own; a part of a character is no text; the chosen token is no proof of a least."""
    dialect = LlamaCppPython(text_server(), "m", 5)
    dialect.settle((4, 5))
    shown = {"top_logprobs": [{"ab": -0.5, "xy": -1.0, "": -2.0}, {" a": -9.0, "z": -1.5, "xy": -2.5}]}
    seen = dialect.read(completed("ab a", 3, 2, logprobs=shown), Ask(prompt=(4, 5), count=2, space="a"))
    assert (seen.tokens, seen.cached) == ((4, 5), None)
    assert seen.logprobs == ({4: -0.5, -3: -1.0}, {-4: -1.5, -3: -2.5})
    assert dialect.delta({"choices": [{"text": " a"}]}) == [5]
    assert dialect.delta({"choices": [{"text": "xy"}]}) == []
    assert dialect.encode("ab a") == (4, 5)


@pytest.mark.parametrize(
    ("prompt", "answer", "words"),
    [
        ((2,), completed("b", 2, 1), "other tokens"),
        ((4,), completed("ab", 3, 1), "other tokens"),
        ((4,), completed("ab", 2, 2), "does not say"),
        ((4,), completed("b", 2, 1), "does not say"),
        ((4,), completed("ab", 2, 1, finish_reason="stop"), "ended by itself"),
    ],
    ids=["joined", "counted otherwise", "lost", "not biased", "ended"],
)
def test_a_text_reply_that_does_not_is_refused(prompt: tuple[int, ...], answer: Json, words: str) -> None:
    """Ids are never guessed: a reply that could be others is nobody's observation."""
    dialect = LlamaCppPython(text_server(), "m", 5)
    dialect.settle((4, 5))
    with pytest.raises(RefusedError, match=words):
        dialect.read(answer, Ask(prompt=prompt, count=1, space="a"))


def test_a_text_server_says_its_limits_in_a_refusal() -> None:
    """What it puts before each prompt takes room as well; log-probabilities are asked for where they are to be had."""
    dialect = LlamaCppPython(
        text_server(refusal="This model's maximum context length is 64 tokens", logprobs=False), "m", 5
    )
    assert dialect.limits().context == 63
    assert "logprobs" not in dialect.body(Ask(prompt=(4,), count=1, space="a"))
    with pytest.raises(SubjectError, match="context=N"):
        LlamaCppPython(text_server(refusal="no"), "m", 5).limits()


@contextmanager
def llama_cpp_python(model: Path, *faults: str) -> Iterator[str]:
    """llama-cpp-python's own server in a process of its own; `faults`: as `tests.llama_cpp_server` names them."""
    command = [sys.executable, "-m", "tests.llama_cpp_server", str(model), *faults]
    process = subprocess.Popen(
        command, cwd=Path(__file__).parents[2], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    )
    try:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()
    finally:
        process.kill()
        process.communicate()


@pytest.fixture(scope="session")
def gguf(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The tiny llama for engines that read GGUF."""
    from warmcold.fixtures.tiny_gguf import write_tiny_gguf

    return write_tiny_gguf(tmp_path_factory.mktemp("gguf") / "tiny.gguf")


@pytest.mark.llama_cpp
@pytest.mark.slow
def test_llama_cpp_python_s_server_passes(gguf: Path) -> None:
    """Text in and out, and still judged by ids; that its cold arm is cold is seen in its bits."""
    with llama_cpp_python(gguf) as url:
        subject = OpenAiHttp(url)
        assert (subject.name, subject.capabilities.level) == ("llama-cpp-python", Level.L0)
        assert subject.logprobs
        assert not subject.remembers
        instance, prompt = subject.open(Settings(), poison=None), subject.text[:50]
        whole = instance.turn(Turn(name="w", max_new_tokens=30), prompt)
        assert (len(whole.tokens), whole.reused) == (30, None)
        assert set(whole.tokens) <= set(subject.text)
        assert instance.turn(Turn(name="c", max_new_tokens=30, cancel_after=3), prompt).tokens == whole.tokens[:3]
        assert instance.cold(TURN, prompt).tokens == whole.tokens[:4]
        subject.close()
        result = played(url)
    assert (result.verdict, result.findings, result.suspects) == (Verdict.PASS, [], [])


@pytest.mark.llama_cpp
@pytest.mark.slow
def test_a_prefix_match_of_one_too_many_is_found(gguf: Path) -> None:
    """Planted in llama-cpp-python: a token that differs is kept as if it matched, in the cold arm too."""
    with llama_cpp_python(gguf, "late") as url:
        result = played(url)
    assert result.verdict is Verdict.FAIL
    assert {finding.check for _, finding in result.findings} == {"cold"}


@pytest.mark.llama_cpp
@pytest.mark.parametrize("options", [(), ("unscored",)], ids=["by the bits", "by the time"])
def test_a_server_that_remembers_more_than_one_has_no_cold_arm(gguf: Path, options: tuple[str, ...]) -> None:
    """Its `--cache`: an unrelated request displaces nothing there, and warm would be compared with warm."""
    with llama_cpp_python(gguf, "cache", *options) as url:
        subject = OpenAiHttp(url)
        assert subject.logprobs is not bool(options)
        assert subject.remembers
        with pytest.raises(RefusedError, match="start the server without --cache"):
            subject.open(Settings(), poison=None).cold(TURN, subject.text[:50])
        subject.close()
