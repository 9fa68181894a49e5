"""HTTP client for servers that run a model: requests, streams that can be cancelled, retries, errors as sentences."""

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

    def __init__(self, sentence: str, status: int, told: str) -> None:
        super().__init__(sentence)
        self.status, self.told = status, told


def check_url(url: str) -> str:
    """The address in usable form, without what the user may have added to its path."""
    try:
        parts = urlsplit(url.strip())
        fits = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        fits = False
    if not fits:
        raise BadInput("This is no address of a server. Write it like http://127.0.0.1:5001.")
    if parts.username or parts.password:
        raise BadInput("An address must not hold a name or a password. Give the key on its own.")
    return parts._replace(query="", fragment="").geturl().rstrip("/")


class RemoteServer:
    """One server. The key is sent in a header only: no message or log contains it."""

    def __init__(self, url: str, key: str = "", *, patience: float = READ_TIMEOUT) -> None:
        self.url, self.patience = check_url(url), patience
        self._key = key
        headers = {"authorization": f"Bearer {key}"} if key else {}
        times = httpx.Timeout(patience, connect=CONNECT_TIMEOUT)
        try:
            # A proxy of the environment is for other machines: requests to this machine do not use it.
            self._client = httpx.Client(
                base_url=self.url, headers=headers, timeout=times, trust_env=bool(remote_host(self.url))
            )
        except (UnicodeEncodeError, ValueError):
            raise BadInput("The key holds characters that cannot be sent. Copy it again.") from None
        self.closed = False
        self.received = 0  # received bytes of all streams

    def __repr__(self) -> str:
        return f"RemoteServer({self.url!r})"

    def close(self) -> None:
        self.closed = True
        self._client.close()

    def ask(self, method: str, path: str, body: Any = None, *, patience: float | None = None) -> Any:
        """The response to a request, as JSON."""
        self._check_open()
        with _errors_as_sentences(self.url):
            answer = self._client.request(
                method,
                path,
                json=body,
                timeout=httpx.Timeout(patience or self.patience, connect=CONNECT_TIMEOUT),
            )
        if answer.status_code >= 300:
            raise self._refusal(answer.status_code, answer.content, answer.headers.get("location", ""))
        try:
            return answer.json()
        except (ValueError, RecursionError):
            raise ServerFailed(
                f"{self.url}{path} answers with something else than JSON. Is it the right address?"
            ) from None

    def stream(
        self, path: str, body: Any, stopped: Callable[[], bool], *, tries: int = len(RETRY_DELAYS)
    ) -> Generator[dict[str, Any], None, None]:
        """The events of a response as JSON objects, until it ends or the caller stops.

        A request that is rejected before its response begins is retried, with growing pauses.
        """
        for wait in (*RETRY_DELAYS[:tries], None):
            self._check_open()
            lines = _EventReader(self._client, path, body, self.url, self._refusal, self._note_received)
            try:
                yield from lines.events(stopped, self.patience)
                return
            except RequestRejected as error:
                if wait is None or error.status not in RETRY_STATUSES or not self._waited(wait, stopped):
                    raise
                log.info("%s turned a request away (%d); trying again.", self.url, error.status)
            finally:
                lines.leave()

    def _note_received(self, count: int) -> None:
        self.received += count

    def _check_open(self) -> None:
        if self.closed:
            raise EngineError("The engine is closed.")

    def _waited(self, seconds: float, stopped: Callable[[], bool]) -> bool:
        end = time.monotonic() + seconds
        while time.monotonic() < end:
            if stopped() or self.closed:
                return False
            time.sleep(POLL_INTERVAL)
        return True

    def _refusal(self, status: int, content: bytes, location: str) -> ServerFailed:
        if status < 400:  # redirects are not followed: text and key go only to the configured server
            return ServerFailed(
                f"{self.url} sends on to {self.told(location)}. If that is right, give that address."
            )
        told = self._words_of(content)
        if status in (401, 403):
            return KeyRejected(
                f"{self.url} does not take the key ({status}). Give another one, with --engine-key or under Models. {told}".strip()
            )
        known = {
            404: "has nothing at this address: check it, and the name of the model",
            429: "has too much to do",
        }
        says = known.get(status, "cannot answer" if status >= 500 else "does not take the request")
        return RequestRejected(f"{self.url} {says} ({status}). {told}".strip(), status, told)

    def _words_of(self, content: bytes) -> str:
        """The message in a server's error response."""
        text = content.decode(errors="replace")
        with suppress(ValueError, RecursionError):
            found = json.loads(text)
            error = found.get("error", found) if isinstance(found, dict) else found
            if isinstance(error, dict):
                error = error.get("message") or ""
            text = str(error)
        if text.lstrip()[:1] == "<":
            return "It answers with a page, not with data."
        return self.told(text)

    def told(self, words: Any) -> str:
        """A server's message, on one line, without the key, which it may contain."""
        text = " ".join(str(words).split())
        if self._key:
            text = text.replace(self._key, "…")
        return text[:MAX_ERROR_TEXT]


@contextmanager
def _errors_as_sentences(url: str) -> Iterator[None]:
    """Convert errors of the connection to sentences."""
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError, OSError) as error:
        raise ServerFailed(_error_message(url, error)) from None


def _error_message(url: str, error: BaseException) -> str:
    if "CERTIFICATE" in str(error).upper():
        return f"{url} shows a certificate that this machine does not trust. Check the address, or the certificate."
    if isinstance(error, httpx.ConnectTimeout | httpx.ConnectError):
        return f"{url} cannot be reached. Is the server running, and the address right?"
    if isinstance(error, httpx.TimeoutException):
        return f"{url} has been silent for too long. Try again, or look after the server."
    return f"{url} broke off in the middle of its answer. What it said so far is kept; try again."


class _EventReader:
    """Reads one streamed response in a thread, so that the caller can stop waiting at any time."""

    def __init__(
        self,
        client: httpx.Client,
        path: str,
        body: Any,
        url: str,
        refusal: Callable[[int, bytes, str], ServerFailed],
        note: Callable[[int], None],
    ) -> None:
        self._got: queue.SimpleQueue[bytes | BaseException | None] = queue.SimpleQueue()
        self._client, self._path, self._body, self._url, self._refusal = client, path, body, url, refusal
        self._socket: socket.socket | None = None
        self._left, self._note = False, note
        Thread(target=self._run, name="answer of a server", daemon=True).start()

    def leave(self) -> None:
        """Close the connection, even while the thread waits for bytes."""
        self._left = True
        if self._socket is not None:
            with suppress(OSError):
                self._socket.shutdown(socket.SHUT_RDWR)

    def events(self, stopped: Callable[[], bool], patience: float) -> Iterator[dict[str, Any]]:
        data: list[bytes] = []
        size, heard = 0, time.monotonic()
        while not stopped():
            try:
                line = self._got.get(timeout=POLL_INTERVAL)
            except queue.Empty:
                if time.monotonic() - heard > patience:
                    raise ServerFailed(_error_message(self._url, httpx.ReadTimeout(""))) from None
                continue
            heard = time.monotonic()
            if line is None:
                return
            if isinstance(line, BaseException):
                raise line
            if line.startswith(b"data:"):
                data.append(line[5:].strip())
                size += len(line)
                if size > MAX_EVENT_BYTES:
                    raise ServerFailed(f"{self._url} sends an event without an end.")
            elif not line and data:
                told, data, size = b"\n".join(data), [], 0
                if told == b"[DONE]":
                    return
                yield self._object(told)

    def _object(self, told: bytes) -> dict[str, Any]:
        try:
            found = json.loads(told)
        except (ValueError, RecursionError):
            found = None
        if not isinstance(found, dict):
            raise ServerFailed(f"{self._url} sends events that are no JSON objects.")
        return found

    def _run(self) -> None:
        try:
            with (
                _errors_as_sentences(self._url),
                self._client.stream("POST", self._path, json=self._body) as answer,
            ):
                network = answer.extensions.get("network_stream")
                self._socket = network.get_extra_info("socket") if network is not None else None
                if answer.status_code >= 300:
                    location = answer.headers.get("location", "")
                    raise self._refusal(answer.status_code, answer.read(), location)
                kind = answer.headers.get("content-type", "")
                if not kind.startswith("text/event-stream"):
                    what = "a page" if "html" in kind else "something else than a stream"
                    raise ServerFailed(
                        f"{self._url}{self._path} answers with {what}. Is it the right address?"
                    )
                rest = b""
                for block in answer.iter_bytes():
                    self._note(len(block))
                    *lines, rest = (rest + block).replace(b"\r\n", b"\n").split(b"\n")
                    for line in lines:
                        self._got.put(line)
                    if self._left or len(rest) > MAX_EVENT_BYTES:
                        break
            self._got.put(None)
        except BaseException as error:  # raised by the reader
            self._got.put(error)
