"""The uvicorn server: sockets, connection limits, startup and shutdown."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import logging
import math
import signal
import socket
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from http import HTTPStatus
from pathlib import Path
from types import FrameType
from typing import Any, cast

import anyio.to_thread
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from halo_weave.errors import BadSetting
from halo_weave.server.app import WEB, create_app
from halo_weave.server.auth import Policy
from halo_weave.server.errors import ApiError, error_response
from halo_weave.server.service import Service

if sys.platform != "win32":
    import resource

_log = logging.getLogger(__name__)
_SHUTDOWN_SECONDS = 3  # seconds that running requests may take to end
_IDLE_SECONDS = 30  # seconds that a connection may be idle between two requests
_HEADER_SECONDS = (
    10  # seconds from a new connection, or the first byte of a request, to the end of its headers
)
_MAX_CONNECTIONS = 512
_RESERVED_FILES = 128  # descriptors for other uses: the memory, files, the model
_LOG_INTERVAL = 60  # seconds between two log lines about missing file descriptors
_BACKLOG = 64


def _connection_limit() -> int:
    """The number of connections that this process has file descriptors for."""
    if sys.platform == "win32":
        return _MAX_CONNECTIONS
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _MAX_CONNECTIONS + _RESERVED_FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    if soft == resource.RLIM_INFINITY:
        return _MAX_CONNECTIONS
    return min(_MAX_CONNECTIONS, max(8, soft - _RESERVED_FILES))


class _Connection(H11Protocol):
    """A connection that is closed if no complete request arrives in time, or if a new connection needs its file descriptor."""

    limit = _MAX_CONNECTIONS
    _timer: asyncio.TimerHandle | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._await_headers()
        if len(self.connections) > self.limit and not close_idle_connection(self.connections, keep=self):
            sentence = f"{self.limit} connections are open already. Close some."
            self.transport.write(_raw_response(ApiError(503, "too_many_clients", sentence)))
            self.transport.close()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if not self.idle:
            self._stop_waiting()
        elif self._timer is None:
            self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        self._stop_waiting()
        super().connection_lost(exc)

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.since = time.monotonic()
        if self.idle and self.conn.trailing_data[0]:  # the next request has begun already
            self._await_headers()

    @property
    def idle(self) -> bool:
        """Whether no request is running: none has arrived, its headers are incomplete, or it was answered."""
        return self.cycle is None or self.cycle.response_complete

    def close_now(self) -> None:
        self.transport.abort()

    def _await_headers(self) -> None:
        self._stop_waiting()
        self.since = time.monotonic()
        self._timer = self.loop.call_later(_HEADER_SECONDS, self.close_now)

    def _stop_waiting(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None


def close_idle_connection(connections: Iterable[Any], keep: object = None) -> bool:
    """Close the connection that has been idle longest, except `keep`. Returns whether there was one."""
    idle = [
        connection
        for connection in connections
        if isinstance(connection, _Connection) and connection is not keep and connection.idle
    ]
    if idle:
        oldest = min(idle, key=lambda connection: connection.since)
        cast(set[Any], connections).discard(oldest)
        oldest.close_now()
    return bool(idle)


def _raw_response(error: ApiError) -> bytes:
    """An error response as bytes, without calling the application."""
    response = error_response(error)
    headers = b"".join(b"%b: %b\r\n" % header for header in response.raw_headers)
    status = f"{response.status_code} {HTTPStatus(response.status_code).phrase}".encode()
    return b"HTTP/1.1 %b\r\nconnection: close\r\n%b\r\n%b" % (status, headers, bytes(response.body))


class _WebSocketRejection(asyncio.Protocol):
    """Refuses WebSocket connections. Without it, uvicorn would log what to install."""

    def __init__(self, **_: object) -> None: ...

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        sentence = "This server has no WebSockets. Events come from /api/windows/{window_id}/events."
        writable = cast(asyncio.WriteTransport, transport)
        writable.write(_raw_response(ApiError(400, "bad_input", sentence)))
        writable.close()


class Server(uvicorn.Server):
    """The server. On shutdown it stops listening and stores running replies before it waits for connections."""

    def __init__(
        self, service: Service, policy: Policy, *, web: Path = WEB, mcp_writes: bool = False
    ) -> None:
        self.service = service
        self._reported_at = -math.inf  # when the log last reported that descriptors ran out
        super().__init__(
            uvicorn.Config(
                create_app(service, policy, web=web, mcp_writes=mcp_writes),
                http=type("Connection", (_Connection,), {"limit": _connection_limit()}),
                backlog=_BACKLOG,
                ws=_WebSocketRejection,
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=_IDLE_SECONDS,
                timeout_graceful_shutdown=_SHUTDOWN_SECONDS,
            )
        )

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        asyncio.get_running_loop().set_exception_handler(self._on_loop_error)
        await super().startup(sockets)

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Log missing file descriptors once: asyncio retries by itself, but reports an error for each waiting client."""
        error = context.get("exception")
        if not isinstance(error, OSError) or error.errno not in (errno.EMFILE, errno.ENFILE):
            loop.default_exception_handler(context)
            return
        close_idle_connection(self.server_state.connections)
        if time.monotonic() - self._reported_at > _LOG_INTERVAL:
            self._reported_at = time.monotonic()
            _log.warning("No more files or connections can be opened (%s). New clients wait.", error.strerror)

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal shuts the server down; a second Ctrl-C does not wait for requests."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await anyio.to_thread.run_sync(self.service.stop_turns)
        await super().shutdown(sockets)
        await anyio.to_thread.run_sync(self.service.close)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises BadSetting if the address cannot be used."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(
            host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
        )[0]
        listener = socket.socket(family, kind, protocol)
    except (OSError, UnicodeError):
        raise BadSetting(
            f"{host!r} is not a name or address of this machine. Choose another --host."
        ) from None
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(address)
        listener.listen()  # from now on clients wait instead of being refused
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise BadSetting(
                f"Port {port} is in use: is Halo Weave running already? Choose another with --port."
            ) from None
        raise BadSetting(f"Cannot listen on {host} port {port}: {error.strerror}. Choose others.") from None
    return listener


def _is_loopback(host: str) -> bool:
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def policy_for(
    host: str, port: int, *, key: str = "", names: tuple[str, ...] = (), origins: tuple[str, ...] = ()
) -> Policy:
    """The policy for a listening address. Without a key only loopback addresses are allowed."""
    own = {name.lower() for name in names}
    if not _is_loopback(host):
        if not key:
            raise BadSetting(
                f"Listening on {host} gives other machines access, so it needs a key: --key, or HALO_WEAVE_KEY. "
                "Without one, leave --host out: only this machine can use it then."
            )
        machine = socket.gethostname().lower()
        own |= {host.lower(), machine, f"{machine}.local"}
    return Policy(port, key, frozenset(own), not _is_loopback(host), frozenset(origins))


@contextmanager
def serve_in_thread(
    service: Service, *, key: str = "", origins: tuple[str, ...] = (), port: int = 0
) -> Iterator[str]:
    """Serve on loopback from another thread while the block runs. Yields the address."""
    listener = bind("127.0.0.1", port)
    port = listener.getsockname()[1]
    server = Server(service, policy_for("127.0.0.1", port, key=key, origins=origins))
    thread = threading.Thread(target=server.run, args=([listener],), name="server")
    thread.start()
    try:
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join()
