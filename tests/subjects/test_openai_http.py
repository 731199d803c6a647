"""The HTTP subject against small servers of ours, and the verdicts of the bounded tier on them."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import pytest

from tests.servers import CONFIG, FAULTS, serving, write_model
from warmcold.engine import Engine
from warmcold.harness.contract.errors import RefusedError, SubjectError
from warmcold.harness.contract.scenario import Settings, Turn
from warmcold.harness.contract.verdict import Level, Verdict
from warmcold.harness.conversations.shapes import Texts
from warmcold.harness.play.blackbox import Blackbox, BlackboxResult
from warmcold.harness.play.evidence import EVIDENCE
from warmcold.harness.subjects.http.client import Http
from warmcold.harness.subjects.http.dialects import LlamaServer, OpenAi, Sglang, Vllm, detect
from warmcold.harness.subjects.http.protocol import Ask
from warmcold.harness.subjects.http.subject import OpenAiHttp
from warmcold.harness.subjects.http.text import LlamaCppPython

from .canned import TURN, canned, models, text_server

SECONDS = 600.0
"""No test waits that long: it is there for a machine that is busy with something else."""
ASK = Ask(prompt=(1,), count=1, space="a")


@pytest.fixture(scope="session")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Engine:
    """The random llama whose schedules differ in rounding."""
    return Engine.load(write_model(tmp_path_factory.mktemp("tiny")), backend="native", numerics="fast", threads=1)


@pytest.fixture
def server(engine: Engine) -> Iterator[str]:
    """The URL of a conforming server."""
    with serving(engine) as url:
        yield url


@pytest.fixture
def subject(server: str) -> Iterator[OpenAiHttp]:
    """It as a subject."""
    opened = OpenAiHttp(server)
    yield opened
    opened.close()


def judged(subject: OpenAiHttp, seconds: float) -> BlackboxResult:
    """What is concluded of it in so much time."""
    box = Blackbox(subject, Texts(corpus=subject.text, source=random.Random(0)), seconds=seconds)
    for _ in box.run():
        pass
    return box.result


def played(url: str) -> BlackboxResult:
    """The verdict on a server."""
    subject = OpenAiHttp(url)
    try:
        return judged(subject, SECONDS)
    finally:
        subject.close()


def test_a_server_declares_what_it_shows(subject: OpenAiHttp) -> None:
    """Counts, log-probabilities and tenants, found out by asking; nothing of it is configured."""
    assert (subject.name, subject.capabilities.level) == ("vllm", Level.L2)
    assert {"salt", "cancel"} <= subject.capabilities.operations
    assert subject.max_context == CONFIG.context_length
    assert subject.loop() is None
    assert subject.recompute() is None


def test_a_server_without_counts_is_a_level_lower(engine: Engine) -> None:
    """What it does not count is None, never 0."""
    with serving(engine, counts=False) as url:
        subject = OpenAiHttp(url)
        assert subject.capabilities.level == Level.L0
        seen = subject.open(Settings(), poison=None).turn(TURN, subject.text[:40])
        assert (seen.reused, seen.prefilled) == (None, None)
        subject.close()


def test_warm_reuses_and_cold_does_not(subject: OpenAiHttp) -> None:
    """The same prompt again is a hit; the cold arm has a tenant of its own each time."""
    instance, prompt = subject.open(Settings(), poison=None), subject.text[:50]
    first, again = instance.turn(TURN, prompt), instance.turn(TURN, prompt)
    assert (first.reused, first.prefilled) == (0, 50)
    assert again.reused
    assert again.reused + (again.prefilled or 0) == 50
    assert [instance.cold(TURN, prompt).reused for _ in range(2)] == [0, 0]
    assert len(again.tokens) == len(again.logprobs or ()) == 4


def test_a_fresh_instance_has_seen_nothing(subject: OpenAiHttp) -> None:
    """Not even what another instance of the same subject sent."""
    prompt = subject.text[:50]
    assert [subject.open(Settings(), poison=None).turn(TURN, prompt).reused for _ in range(2)] == [0, 0]


def test_no_tokens_asked_for_are_none_given(subject: OpenAiHttp) -> None:
    """Prefill only; the prompt is then there to be reused."""
    instance = subject.open(Settings(), poison=None)
    assert instance.turn(Turn(name="p", max_new_tokens=0), subject.text[:50]).tokens == ()
    assert instance.turn(TURN, subject.text[:60]).reused


def test_a_full_context_ends_a_turn(subject: OpenAiHttp) -> None:
    """And one token more is refused."""
    instance = subject.open(Settings(), poison=None)
    full = [subject.text[at % len(subject.text)] for at in range(CONFIG.context_length - 2)]
    seen = instance.turn(TURN, full)
    assert (len(seen.tokens), seen.stop) == (2, "context_full")
    for prompt in ([*full, 1, 2], []):
        with pytest.raises(RefusedError):
            instance.turn(TURN, prompt)


def test_a_cancelled_turn_gives_what_was_seen(subject: OpenAiHttp) -> None:
    """The connection is closed, and the server answers the next request all the same."""
    instance, prompt = subject.open(Settings(), poison=None), subject.text[:50]
    whole = instance.turn(Turn(name="w", max_new_tokens=30), prompt)
    seen = instance.turn(Turn(name="c", max_new_tokens=30, cancel_after=3), prompt)
    assert (seen.tokens, seen.stop) == (whole.tokens[:3], "cancelled")
    assert instance.turn(TURN, prompt).tokens == whole.tokens[:4]


@pytest.mark.slow
def test_a_conforming_server_passes(server: str) -> None:
    """With power: at least 60 wrong pages were planted, and seen."""
    result = played(server)
    assert (result.verdict, result.findings, result.suspects) == (Verdict.PASS, [], [])
    assert result.power.enough
    assert result.judged >= 10


@pytest.mark.slow
@pytest.mark.parametrize("fault", FAULTS[:3])
def test_a_wrong_reply_is_found(engine: Engine, fault: str) -> None:
    """By evidence gathered on fresh texts, in less than two minutes."""
    with serving(engine, fault) as url:
        result = played(url)
    assert result.verdict is Verdict.FAIL
    assert {finding.check for _, finding in result.findings} == {"cold"}
    assert result.evidence >= EVIDENCE


@pytest.mark.parametrize(("fault", "check"), [("saltless", "cold"), ("overstated", "reuse")])
def test_a_wrong_count_is_found(engine: Engine, fault: str, check: str) -> None:
    """Without any statistics: another tenant's tokens were reused, or more than there are."""
    with serving(engine, fault) as url:
        result = played(url)
    assert result.verdict is Verdict.FAIL
    assert {finding.check for _, finding in result.findings} == {check}


def test_what_depends_on_other_traffic_is_found(engine: Engine) -> None:
    """Far below what legal schedules round: the same requests alone give other bits, and that takes no statistics."""
    with serving(engine, "crowded") as url:
        result = played(url)
    assert result.verdict is Verdict.FAIL
    assert {finding.check for _, finding in result.findings} == {"placement"}
    assert result.evidence < EVIDENCE


def test_too_little_time_is_no_pass(server: str) -> None:
    """What was compared showed no difference, and that is said to be worth nothing."""
    subject = OpenAiHttp(server)
    result = judged(subject, 2)
    subject.close()
    assert result.verdict is Verdict.UNKNOWN
    assert result.why is not None


@pytest.mark.parametrize(
    ("http", "kind", "name"),
    [
        (canned(v1_models=models(owned_by="vllm"), version={"version": "0.32.0"}), Vllm, "vllm"),
        (canned(v1_models=models(owned_by="sglang")), Sglang, "sglang"),
        (canned(v1_models=models(), props={"default_generation_settings": {}}), LlamaServer, "llama-server"),
        (text_server(), LlamaCppPython, "llama-cpp-python"),
        (canned(v1_models=models(owned_by="me")), OpenAi, "openai"),
    ],
)
def test_a_server_is_known_by_what_it_says(http: Http, kind: type, name: str) -> None:
    """Nobody has to name the dialect."""
    found = detect(http, None, 20)
    assert type(found) is kind
    assert found.name == name


@pytest.mark.parametrize(("version", "salts"), [("0.8.5", False), ("0.9.0", True), ("0.32.0", True), ("dev", True)])
def test_salts_are_used_where_the_version_has_them(version: str, salts: bool) -> None:
    """An older vLLM takes the field and ignores it, which is no fault of it."""
    vllm = Vllm(canned(), "m", 20, version)
    assert vllm.salts is vllm.isolates is salts
    assert ("cache_salt" in vllm.body(ASK)) is salts


def test_sglang_is_read() -> None:
    """Rows are (log-probability, id, text)."""
    meta = {"cached_tokens": 16, "output_top_logprobs": [[[-0.5, 7, None], [-1.5, 8, None]]]}
    dialect = Sglang(canned(), "m", 2)
    seen = dialect.read({"output_ids": [7], "meta_info": meta}, ASK)
    assert (seen.tokens, seen.logprobs, seen.cached) == ((7,), ({7: -0.5, 8: -1.5},), 16)
    assert dialect.body(ASK)["logprob_start_len"] == -1


def test_llama_server_is_read() -> None:
    """The cold arm is a switch of the request; a hit is what the timings call it."""
    dialect = LlamaServer(canned(), "m", 2)
    row = {"id": 7, "logprob": -0.5, "top_logprobs": [{"id": 7, "logprob": -0.5}, {"id": 8, "logprob": -1.5}]}
    seen = dialect.read(
        {"tokens": [7], "completion_probabilities": [row], "tokens_cached": 99, "timings": {"cache_n": 5}}, ASK
    )
    assert (seen.tokens, seen.logprobs, seen.cached) == ((7,), ({7: -0.5, 8: -1.5},), 5)
    asked = [dialect.body(Ask(prompt=(1,), count=1, space="a", cold=cold)) for cold in (False, True)]
    assert [body["cache_prompt"] for body in asked] == [True, False]
    assert dialect.read({"tokens": [7], "timings": {"prompt_n": 3}, "tokens_evaluated": 8}, ASK).cached == 5


def test_llama_server_s_missing_rows_are_not_made_up() -> None:
    """It has none for a token that ends within a character; where that leaves two places for a row, it is shown at neither."""

    def rows(*ids: int) -> list[dict[str, Any]]:
        return [{"id": each, "top_logprobs": [{"id": each, "logprob": -0.5}]} for each in ids]

    dialect = LlamaServer(canned(), "m", 1)
    seen = dialect.read({"tokens": [7, 8, 9], "completion_probabilities": rows(7, 9)}, ASK)
    assert seen.logprobs == ({7: -0.5}, {}, {9: -0.5})
    twice = dialect.read({"tokens": [7, 7, 9], "completion_probabilities": rows(7, 9)}, ASK)
    assert twice.logprobs == ({}, {}, {9: -0.5})
    assert dialect.read({"tokens": [7, 8], "completion_probabilities": []}, ASK).logprobs is None


def test_text_without_ids_is_not_guessed_at() -> None:
    """Two texts may be the same and the ids not."""
    with pytest.raises(SubjectError, match="no token ids"):
        OpenAi(canned(), "m", 5).read({"choices": [{"text": "hello", "logprobs": {"tokens": ["hel", "lo"]}}]}, ASK)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"colour": "red"}, "unknown option"),
        ({"slot": "left"}, "whole number"),
        ({"model": "other"}, "give model=NAME"),
    ],
)
def test_a_wrong_option_is_named(server: str, options: dict[str, str], message: str) -> None:
    """With what may be given instead."""
    with pytest.raises(SubjectError, match=message):
        OpenAiHttp(server, **options)


def test_a_tokenizer_that_is_not_there_is_named(server: str) -> None:
    """It is never left out in silence."""
    with pytest.raises(SubjectError, match=r"tokenizer=gone\.json: no such file"):
        OpenAiHttp(server, tokenizer="gone.json", vocab="97")


@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "localhost", "ftp://x"])
def test_no_server_is_said_with_its_address(url: str) -> None:
    """And with what to do."""
    with pytest.raises(SubjectError, match=url):
        OpenAiHttp(url, timeout="2")


def test_an_answer_of_another_shape_is_named_with_its_place() -> None:
    """The server's fault, not a crash of ours."""
    with pytest.raises(SubjectError, match=r"http://canned: .*\$\.choices"):
        Vllm(canned(), "m", 20).read({"choices": []}, ASK)
