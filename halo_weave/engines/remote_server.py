"""HTTP client for servers that run a model: requests, cancellable streams, retries, error messages for users."""

from __future__ import annotations

import json
import logging
import queue
import socket
import time
from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager, suppress
from threading import Thread
from typing import Any
from urllib.parse import urlsplit

import httpx

from halo_weave.engines.base import remote_host
from halo_weave.errors import BadInput, EngineError, ServerFailed

log = logging.getLogger(__name__)
CONNECT_TIMEOUT = 10.0  # timeout for connecting, in seconds
READ_TIMEOUT = 300.0  # timeout for the next bytes in seconds: a long prompt takes time
POLL_INTERVAL = 0.05  # seconds between two checks whether the user has stopped the reply
MAX_EVENT_BYTES = 64 << 20  # largest event in bytes: attention of a large model takes megabytes
RETRY_DELAYS = (0.5, 1.0, 2.0, 4.0)  # seconds before a rejected request is retried
RETRY_STATUSES = (408, 425, 429, 500, 502, 503, 504)
MAX_ERROR_TEXT = 300  # characters of a server's message that are shown


class KeyRejected(ServerFailed):
    """The server rejects the key."""


class RequestRejected(ServerFailed):
    """The server rejects the request."""

    def __init__(self, sentence: str, status: int, message: str) -> None:
        super().__init__(sentence)
        self.status, self.message = status, message


def check_url(url: str) -> str:
    """The URL without query and fragment. Raises if it is not the address of a server."""
    try:
        parts = urlsplit(url.strip())
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise BadInput("This is not the address of a server. Write it like http://127.0.0.1:5001.")
    if parts.username or parts.password:
        raise BadInput("The address must not contain a user name or password. Set the key separately.")
    return parts._replace(query="", fragment="").geturl().rstrip("/")


class RemoteServer:
    """One server. The key is sent in a header only: no message or log contains it."""

    def __init__(self, url: str, key: str = "", *, timeout: float = READ_TIMEOUT) -> None:
        self.url, self.read_timeout = check_url(url), timeout
        self._key = key
        headers = {"authorization": f"Bearer {key}"} if key else {}
        times = httpx.Timeout(timeout, connect=CONNECT_TIMEOUT)
        try:
            # Proxies from the environment are not used for servers on this machine.
            self._client = httpx.Client(
                base_url=self.url, headers=headers, timeout=times, trust_env=bool(remote_host(self.url))
            )
        except (UnicodeEncodeError, ValueError):
            raise BadInput("The key contains characters that cannot be sent. Copy it again.") from None
        self.closed = False
        self.received = 0  # received bytes of all streams

    def __repr__(self) -> str:
        return f"RemoteServer({self.url!r})"

    def close(self) -> None:
        self.closed = True
        self._client.close()

    def request(self, method: str, path: str, body: Any = None, *, timeout: float | None = None) -> Any:
        """The response to a request, as JSON."""
        self._check_open()
        with _errors_as_sentences(self.url):
            response = self._client.request(
                method,
                path,
                json=body,
                timeout=httpx.Timeout(timeout or self.read_timeout, connect=CONNECT_TIMEOUT),
            )
        if response.status_code >= 300:
            raise self._rejection(
                response.status_code, response.content, response.headers.get("location", "")
            )
        try:
            return response.json()
        except (ValueError, RecursionError):
            raise ServerFailed(
                f"{self.url}{path} does not answer with JSON. Is it the right address?"
            ) from None

    def stream(
        self, path: str, body: Any, stopped: Callable[[], bool], *, tries: int = len(RETRY_DELAYS)
    ) -> Generator[dict[str, Any], None, None]:
        """The events of a response as JSON objects, until it ends or the caller stops.

        A request that is rejected before its response begins is retried, with growing pauses.
        """
        for wait in (*RETRY_DELAYS[:tries], None):
            self._check_open()
            lines = _EventReader(self._client, path, body, self.url, self._rejection, self._count_received)
            try:
                yield from lines.events(stopped, self.read_timeout)
                return
            except RequestRejected as error:
                if wait is None or error.status not in RETRY_STATUSES or not self._wait(wait, stopped):
                    raise
                log.info("%s rejected a request (%d); trying again.", self.url, error.status)
            finally:
                lines.close()

    def _count_received(self, count: int) -> None:
        self.received += count

    def _check_open(self) -> None:
        if self.closed:
            raise EngineError("The engine is closed.")

    def _wait(self, seconds: float, stopped: Callable[[], bool]) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if stopped() or self.closed:
                return False
            time.sleep(POLL_INTERVAL)
        return True

    def _rejection(self, status: int, content: bytes, location: str) -> ServerFailed:
        if status < 400:  # redirects are not followed: text and key go only to the configured server
            return ServerFailed(
                f"{self.url} redirects to {self.clean_message(location)}. If that is right, use that address."
            )
        message = self._error_text(content)
        if status in (401, 403):
            return KeyRejected(
                f"{self.url} rejects the key ({status}). Set another one, with --engine-key or under Models. {message}".strip()
            )
        known = {
            404: "has nothing at this address: check the address and the name of the model",
            429: "is overloaded",
        }
        problem = known.get(status, "cannot answer" if status >= 500 else "rejects the request")
        return RequestRejected(f"{self.url} {problem} ({status}). {message}".strip(), status, message)

    def _error_text(self, content: bytes) -> str:
        """The message in a server's error response."""
        text = content.decode(errors="replace")
        with suppress(ValueError, RecursionError):
            body = json.loads(text)
            error = body.get("error", body) if isinstance(body, dict) else body
            if isinstance(error, dict):
                error = error.get("message") or ""
            text = str(error)
        if text.lstrip()[:1] == "<":
            return "It answers with an HTML page."
        return self.clean_message(text)

    def clean_message(self, message: Any) -> str:
        """A server's message on one line. If it contains the key, that is removed."""
        text = " ".join(str(message).split())
        if self._key:
            text = text.replace(self._key, "…")
        return text[:MAX_ERROR_TEXT]


@contextmanager
def _errors_as_sentences(url: str) -> Iterator[None]:
    """Convert connection errors to ServerFailed."""
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
        raise ServerFailed(_error_message(url, error)) from None


def _error_message(url: str, error: BaseException) -> str:
    if "CERTIFICATE" in str(error).upper():
        return f"{url} has a TLS certificate that this machine does not trust. Check the address and the certificate."
    if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError):
        return f"{url} cannot be reached. Is the server running, and the address right?"
    if isinstance(error, httpx.TimeoutException):
        return f"{url} did not answer in time. Try again, or check the server."
    return f"The connection to {url} was lost during the reply. The reply so far is kept; try again."


class _EventReader:
    """Reads one streamed response in a thread, so that the caller can stop waiting at any time."""

    def __init__(
        self,
        client: httpx.Client,
        path: str,
        body: Any,
        url: str,
        rejection: Callable[[int, bytes, str], ServerFailed],
        count_bytes: Callable[[int], None],
    ) -> None:
        self._lines: queue.SimpleQueue[bytes | BaseException | None] = queue.SimpleQueue()
        self._client, self._path, self._body, self._url, self._rejection = client, path, body, url, rejection
        self._socket: socket.socket | None = None
        self._closed, self._count_bytes = False, count_bytes
        Thread(target=self._run, name="response of a server", daemon=True).start()

    def close(self) -> None:
        """Close the connection, even while the thread waits for bytes."""
        self._closed = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def events(self, stopped: Callable[[], bool], timeout: float) -> Iterator[dict[str, Any]]:
        data: list[bytes] = []
        size, last_received = 0, time.monotonic()
        while not stopped():
            try:
                line = self._lines.get(timeout=POLL_INTERVAL)
            except queue.Empty:
                if time.monotonic() - last_received > timeout:
                    raise ServerFailed(_error_message(self._url, httpx.ReadTimeout(""))) from None
                continue
            last_received = time.monotonic()
            if line is None:
                return
            if isinstance(line, BaseException):
                raise line
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
                size += len(line)
                if size > MAX_EVENT_BYTES:
                    raise ServerFailed(f"{self._url} sends an event that is too large.")
            elif not line and data:
                event, data, size = b"\n".join(data), [], 0
                if event == b"[DONE]":
                    return
                yield self._object(event)

    def _object(self, raw: bytes) -> dict[str, Any]:
        try:
            event = json.loads(raw)
        except (ValueError, RecursionError):
            event = None
        if not isinstance(event, dict):
            raise ServerFailed(f"{self._url} sends events that are not JSON objects.")
        return event

    def _run(self) -> None:
        try:
            with (
                _errors_as_sentences(self._url),
                self._client.stream("POST", self._path, json=self._body) as response,
            ):
                network = response.extensions.get("network_stream")
                self._socket = network.get_extra_info("socket") if network is not None else None
                if response.status_code >= 300:
                    location = response.headers.get("location", "")
                    raise self._rejection(response.status_code, response.read(), location)
                kind = response.headers.get("content-type", "")
                if not kind.startswith("text/event-stream"):
                    what = "an HTML page" if "html" in kind else "something that is not a stream"
                    raise ServerFailed(
                        f"{self._url}{self._path} answers with {what}. Is it the right address?"
                    )
                rest = b""
                for block in response.iter_bytes():
                    self._count_bytes(len(block))
                    *lines, rest = (rest + block).replace(b"\r\n", b"\n").split(b"\n")
                    for line in lines:
                        self._lines.put(line)
                    if self._closed or len(rest) > MAX_EVENT_BYTES:
                        break
            self._lines.put(None)
        except BaseException as error:  # raised again in `events`
            self._lines.put(error)
