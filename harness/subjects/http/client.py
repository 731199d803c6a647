"""JSON over HTTP/1.1, one kept-alive connection, from the standard library. Closing it is how a request is cancelled."""

from __future__ import annotations

import http.client
import json
from collections.abc import Iterator, Mapping
from typing import Any
from urllib.parse import urlsplit

from ...contract.errors import RefusedError, SubjectError

_REFUSALS = (400, 413, 422)


class Http:
    """One server. `timeout` in seconds for each answer; `key`: sent as a bearer token."""

    def __init__(self, url: str, *, timeout: float = 120.0, key: str | None = None) -> None:
        parts = urlsplit(url)
        try:
            port = parts.port
        except ValueError as error:
            raise SubjectError(f"{url}: {error}; give it as http://HOST:PORT") from error
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise SubjectError(f"{url}: not the address of a server; give it as http://HOST:PORT")
        self.url = url
        kind = http.client.HTTPSConnection if parts.scheme == "https" else http.client.HTTPConnection
        self._connection = kind(parts.hostname, port, timeout=timeout)
        self._prefix = parts.path.rstrip("/").removesuffix("/v1")
        self._headers = {"Content-Type": "application/json"} | ({"Authorization": f"Bearer {key}"} if key else {})

    def find(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """The JSON answer; None where the server has no such path, or answers it with something else than JSON."""
        status, content = self._whole(method, path, body)
        if status != 200:
            return None
        try:
            return json.loads(content)
        except ValueError:
            return None

    def ask(self, path: str, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """The JSON answer to a request. RefusedError with the server's words where it refuses it; SubjectError else."""
        status, content = self._whole("POST", path, body)
        self._check(path, status, content)
        try:
            answer = json.loads(content)
        except ValueError as error:
            raise SubjectError(f"{self.url}{path}: the answer is not JSON ({content[:200]!r})") from error
        if not isinstance(answer, Mapping):
            raise SubjectError(f"{self.url}{path}: the answer is {answer!r:.200}; an object was expected")
        if "error" in answer and "choices" not in answer:
            raise RefusedError(_words(content))
        return answer

    def stream(self, path: str, body: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
        """The events of a streamed answer. Closing the iterator closes the connection, which cancels the request."""
        response = self._send("POST", path, body)
        try:
            if response.status != 200:
                self._check(path, response.status, response.read())
            for line in response:
                data = line.decode("utf-8", "replace").strip()
                if data.startswith("data:") and data != "data: [DONE]":
                    yield json.loads(data.removeprefix("data:"))
        except (OSError, http.client.HTTPException) as error:
            raise self._broken(error) from error
        finally:
            self.close()

    def close(self) -> None:
        """Close the connection; the next request opens another."""
        self._connection.close()

    def _check(self, path: str, status: int, content: bytes) -> None:
        if status in _REFUSALS:
            raise RefusedError(_words(content))
        if status in (401, 403):
            raise SubjectError(
                f"{self.url}{path}: {status}, {_words(content)}; give the server's key as the option key=KEY"
            )
        if status != 200:
            raise SubjectError(f"{self.url}{path}: {status}, {_words(content)}; look at the server's log")

    def _whole(self, method: str, path: str, body: Mapping[str, Any] | None) -> tuple[int, bytes]:
        response = self._send(method, path, body)
        try:
            return response.status, response.read()
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise self._broken(error) from error

    def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> http.client.HTTPResponse:
        """Once more on a new connection where the server had closed the old one between two requests."""
        content = None if body is None else json.dumps(body)
        for again in (True, False):
            fresh = self._connection.sock is None
            try:
                self._connection.request(method, self._prefix + path, content, self._headers)
                return self._connection.getresponse()
            except (http.client.RemoteDisconnected, BrokenPipeError, ConnectionResetError) as error:
                self.close()
                if fresh or not again:
                    raise self._broken(error) from error
            except (OSError, http.client.HTTPException) as error:
                self.close()
                raise self._broken(error) from error
        raise AssertionError("unreachable")

    def _broken(self, error: Exception) -> SubjectError:
        what = "no answer in time" if isinstance(error, TimeoutError) else f"{type(error).__name__}: {error}"
        return SubjectError(
            f"{self.url}: {what}; is the server running, and is this its address? (option timeout=SECONDS)"
        )


def _words(content: bytes) -> str:
    """The message in an error's body, however it is wrapped."""
    text = content.decode("utf-8", "replace")
    try:
        data = json.loads(text)
    except ValueError:
        return text[:400]
    while isinstance(data, Mapping):
        data = next((data[key] for key in ("error", "message", "detail") if data.get(key)), str(dict(data)))
    return str(data)[:400]
