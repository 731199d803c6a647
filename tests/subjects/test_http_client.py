"""The connection to a server: whose words an error keeps, when it is tried again, how a stream is left."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress

import httpx
import pytest

from warmcold.harness.contract.errors import RefusedError, SubjectError
from warmcold.harness.subjects.http.client import Http
from warmcold.harness.subjects.http.replies import Anything

from .canned import answering


@pytest.mark.parametrize(
    ("status", "content", "error", "words"),
    [
        (400, json.dumps({"error": {"message": "too long"}}).encode(), RefusedError, "too long"),
        (401, b"no", SubjectError, "key=KEY"),
        (500, json.dumps({"detail": "boom"}).encode(), SubjectError, "boom"),
        (200, b"data: <html>", SubjectError, "not JSON"),
    ],
)
def test_an_error_keeps_the_server_s_words(status: int, content: bytes, error: type[Exception], words: str) -> None:
    """A refusal is one; everything else is nobody's observation."""
    http = answering(lambda _: httpx.Response(status, content=content))
    with pytest.raises(error, match=words):
        http.ask("/v1/completions", {})
    with pytest.raises(error, match=words):
        list(http.stream("/v1/completions", {}))


def test_a_text_may_hold_what_unicode_takes_for_the_end_of_a_line() -> None:
    """Events end with a line feed; a text that holds another separator is not cut there, however it arrives."""
    event = json.dumps({"choices": [{"text": "a\u2028b\x85"}]}, ensure_ascii=False).encode()
    content = b"data: " + event + b"\n\n: a comment\r\ndata: {}\r\ndata: [DONE]\n"
    pieces = [content[at : at + 3] for at in range(0, len(content), 3)]
    http = answering(lambda _: httpx.Response(200, stream=Pieces(pieces)))
    assert list(http.stream("/", {})) == [json.loads(event), {}]


class Pieces(httpx.SyncByteStream):
    """A body that comes bit by bit."""

    def __init__(self, pieces: list[bytes]) -> None:
        self._pieces = pieces
        self.closed = False

    def __iter__(self) -> Iterator[bytes]:
        yield from self._pieces

    def close(self) -> None:
        """Remember it."""
        self.closed = True


def test_leaving_a_stream_closes_it() -> None:
    """Which is how a request is cancelled."""
    body = Pieces([b"data: {}\n"] * 9)
    events = answering(lambda _: httpx.Response(200, stream=body)).stream("/", {})
    assert next(events) == {}
    assert not body.closed
    events.close()
    assert body.closed


@pytest.mark.parametrize(("losses", "answers"), [(1, True), (2, False)])
def test_a_connection_that_was_closed_meanwhile_is_opened_again_once(losses: int, answers: bool) -> None:
    """A server may close what is kept alive; one that hangs up on a new connection too is not there."""
    asked: list[str] = []

    def answer(request: httpx.Request) -> httpx.Response:
        asked.append(request.url.path)
        if len(asked) <= losses:
            raise httpx.RemoteProtocolError("Server disconnected without sending a response.")
        return httpx.Response(200, json={})

    http = answering(answer)
    if answers:
        assert http.ask("/again", {}) == {}
    else:
        with pytest.raises(SubjectError, match="is the server running"):
            http.ask("/again", {})
    assert asked == ["/again"] * 2


EMPTY = b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\n\r\n{}"


@contextmanager
def listening(*replies: bytes) -> Iterator[tuple[str, list[bytes]]]:
    """A server that answers each connection with the next of `replies`, none at the end, and hangs up; and what it was sent."""
    asked: list[bytes] = []

    def serve(server: socket.socket) -> None:
        with suppress(OSError):
            while True:
                with server.accept()[0] as connection:
                    asked.append(connection.recv(2**16))
                    connection.sendall(replies[len(asked) - 1] if len(asked) <= len(replies) else b"")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=serve, args=(server,), daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{server.getsockname()[1]}", asked
        server.shutdown(socket.SHUT_RDWR)
    thread.join()


def test_a_server_may_hang_up_after_every_answer() -> None:
    """What it had said could be kept alive is opened anew."""
    with listening(EMPTY, EMPTY) as (url, asked), closing(Http(url)) as http:
        assert [http.ask("/", {}) for _ in range(2)] == [{}, {}]
        assert len(asked) == 2


def test_a_server_that_hangs_up_on_a_new_connection_is_asked_once() -> None:
    """What it was asked may be what it died of."""
    with listening() as (url, asked), closing(Http(url)) as http:
        with pytest.raises(SubjectError, match="is the server running"):
            http.ask("/", {})
        assert len(asked) == 1


def test_no_answer_in_time_is_said_so() -> None:
    """With the option that gives more."""

    def late(request: httpx.Request) -> httpx.Response:
        raise httpx.ReadTimeout("")

    with pytest.raises(SubjectError, match=r"no answer in time.*timeout=SECONDS"):
        answering(late).ask("/", {})


@pytest.mark.parametrize(
    ("url", "asked"),
    [
        ("http://h", "http://h/v1/completions"),
        ("http://h:8000/v1/", "http://h:8000/v1/completions"),
        ("https://me:secret@h/below", "https://h/below/v1/completions"),
        ("http://[::1]:8000", "http://[::1]:8000/v1/completions"),
    ],
)
def test_paths_begin_at_the_address(url: str, asked: str) -> None:
    """With or without /v1, which every path names."""
    seen: list[httpx.Request] = []

    def answer(request: httpx.Request) -> httpx.Response:
        seen.append(request)
        return httpx.Response(200, json={})

    Http(url, key="k", transport=httpx.MockTransport(answer)).ask("/v1/completions", {})
    assert [str(each.url) for each in seen] == [asked]
    assert seen[0].headers["Authorization"] == "Bearer k"


def test_proxies_of_the_environment_are_left_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """The server that is named is the one that is judged."""
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with listening(EMPTY) as (url, asked), closing(Http(url)) as http:
        assert http.find("GET", "/version", Anything) is not None
    assert len(asked) == 1
