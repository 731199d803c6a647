"""JSON over HTTP/1.1, on a connection that is kept alive. Closing a stream is how a request is cancelled."""

from __future__ import annotations

import json
import ssl
from collections.abc import Generator, Iterable, Iterator, Mapping
from typing import TypeVar
from urllib.parse import urlsplit

import httpx
import msgspec

from ...contract.errors import RefusedError, SubjectError
from .protocol import Json

T = TypeVar("T")

_REFUSALS = (400, 413, 422)
_LOST = (httpx.RemoteProtocolError, httpx.ReadError, httpx.WriteError)
"""What a request meets on a connection that the other side has closed."""


class Http:
    """One server. `timeout` in seconds for each answer; `key`: sent as a bearer token; `transport`: in place of a network.

    What the environment says of proxies is left alone: the server named is the one that is asked.
    """

    def __init__(
        self,
        url: str,
        *,
        timeout: float = 120.0,
        key: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.url = url
        headers = {"Content-Type": "application/json", "Accept-Encoding": "identity"}
        self._client = httpx.Client(
            base_url=_base(url),
            headers=headers | ({"Authorization": f"Bearer {key}"} if key else {}),
            timeout=timeout,
            verify=ssl.create_default_context(),
            trust_env=False,
            transport=transport,
        )

    def find(self, method: str, path: str, kind: type[T], body: Json | None = None) -> T | None:
        """What of the JSON answer belongs to a `kind`; None where the server has no such path, or answers otherwise."""
        status, content = self._whole(method, path, body)
        if status != 200:
            return None
        try:
            return msgspec.convert(json.loads(content), kind, strict=False)
        except (ValueError, msgspec.ValidationError):  # no JSON, or of another shape
            return None

    def ask(self, path: str, body: Json) -> Json:
        """The JSON answer to a request. RefusedError with the server's words where it refuses it; SubjectError else."""
        status, content = self._whole("POST", path, body)
        self._check(path, status, content)
        answer = self._object(path, content)
        if "error" in answer and "choices" not in answer:
            raise RefusedError(_words(content))
        return answer

    def stream(self, path: str, body: Json) -> Generator[Json, None, None]:
        """The events of a streamed answer. Closing the iterator closes the connection, which cancels the request."""
        response = self._send("POST", path, body)
        try:
            if response.status_code != 200:
                self._check(path, response.status_code, response.read())
            for line in _lines(response.iter_bytes()):
                data = line.strip()
                if data.startswith(b"data:") and data != b"data: [DONE]":
                    yield self._object(path, data.removeprefix(b"data:"))
        except httpx.RequestError as error:
            raise self._broken(error) from error
        finally:
            response.close()

    def close(self) -> None:
        """Close the connection. Nothing can be asked afterwards."""
        self._client.close()

    def _object(self, path: str, content: bytes) -> Json:
        try:
            answer = json.loads(content)
        except ValueError as error:
            raise SubjectError(f"{self.url}{path}: the answer is not JSON ({content[:200]!r})") from error
        if not isinstance(answer, Mapping):
            raise SubjectError(f"{self.url}{path}: the answer is {answer!r:.200}; an object was expected")
        return answer

    def _check(self, path: str, status: int, content: bytes) -> None:
        if status in _REFUSALS:
            raise RefusedError(_words(content))
        said = f"{self.url}{path}: {status}, {_words(content)}"
        if status in (401, 403):
            raise SubjectError(f"{said}; give the server's key as the option key=KEY")
        if status != 200:
            raise SubjectError(f"{said}; look at the server's log")

    def _whole(self, method: str, path: str, body: Json | None) -> tuple[int, bytes]:
        response = self._send(method, path, body)
        try:
            return response.status_code, response.read()
        except httpx.RequestError as error:
            raise self._broken(error) from error
        finally:
            response.close()

    def _send(self, method: str, path: str, body: Json | None) -> httpx.Response:
        """Once more on a new connection where the server had closed the old one between two requests. Its body is unread."""
        events: list[str] = []
        try:
            try:
                return self._once(method, path, body, events)
            except _LOST:
                if any("connect_tcp" in event for event in events):
                    raise
                return self._once(method, path, body, events)
        except httpx.RequestError as error:
            raise self._broken(error) from error

    def _once(self, method: str, path: str, body: Json | None, events: list[str]) -> httpx.Response:
        """`events`: gets the names of what the connection does, an opening among them."""
        request = self._client.build_request(
            method,
            path,
            content=None if body is None else json.dumps(body),
            extensions={"trace": lambda event, _: events.append(event)},
        )
        return self._client.send(request, stream=True)

    def _broken(self, error: Exception) -> SubjectError:
        slow = isinstance(error, httpx.TimeoutException)
        what = "no answer in time" if slow else f"{type(error).__name__}: {error}"
        return SubjectError(
            f"{self.url}: {what}; is the server running, and is this its address? (option timeout=SECONDS)"
        )


def _base(url: str) -> httpx.URL:
    """Where paths begin: the address without /v1, query or a user's name. SubjectError where it is none."""
    try:
        parts = urlsplit(url)
        known = parts.scheme in ("http", "https") and parts.hostname and (parts.port or 1)
        path = parts.path.rstrip("/").removesuffix("/v1")
        base = httpx.URL(f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{path}") if known else None
    except (ValueError, httpx.InvalidURL) as error:
        raise SubjectError(f"{url}: {error}; give it as http://HOST:PORT") from error
    if base is None:
        raise SubjectError(f"{url}: not the address of a server; give it as http://HOST:PORT")
    return base


def _lines(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Lines as they come. Only a line feed ends one: a text may hold what Unicode takes for an end of line."""
    rest = b""
    for chunk in chunks:
        *whole, rest = (rest + chunk).split(b"\n")
        yield from whole
    yield rest


def _words(content: bytes) -> str:
    """The message in an error's body, however it is wrapped."""
    text = content.decode("utf-8", "replace")
    try:
        data: object = json.loads(text)
    except ValueError:
        return text[:400]
    while isinstance(data, Mapping):
        data = next((data[key] for key in ("error", "message", "detail") if data.get(key)), str(dict(data)))
    return str(data)[:400]
