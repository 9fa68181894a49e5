"""The server on its socket: how it listens, whom it answers, and how it ends."""

from __future__ import annotations

import asyncio
import errno
import ipaddress
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import cast

import anyio.to_thread
import uvicorn

from halo_weave.errors import BadSetting
from halo_weave.server.app import WEB, create_app
from halo_weave.server.refusals import Refusal, refused
from halo_weave.server.security import Policy
from halo_weave.server.service import Service

_PATIENCE = 3  # seconds that requests under way get to end


class _NoWebSocket(asyncio.Protocol):
    """Takes over a connection that asks for a WebSocket, and refuses it. Without one, uvicorn would log what to install."""

    def __init__(self, **_: object) -> None: ...

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        sentence = "There are no WebSockets here. Events come from /api/windows/{window_id}/events."
        answer = refused(Refusal(400, "bad_input", sentence))
        headers = b"".join(b"%b: %b\r\n" % one for one in answer.raw_headers)
        writing = cast(asyncio.WriteTransport, transport)
        writing.write(
            b"HTTP/1.1 400 Bad Request\r\nconnection: close\r\n%b\r\n%b" % (headers, bytes(answer.body))
        )
        writing.close()


class Server(uvicorn.Server):
    """Ends by itself: listeners are let go and replies are stored before the connections are waited for."""

    def __init__(self, service: Service, policy: Policy, *, web: Path = WEB) -> None:
        self.service = service
        super().__init__(
            uvicorn.Config(
                create_app(service, policy, web=web),
                http="h11",
                ws=_NoWebSocket,
                loop="asyncio",
                lifespan="off",
                log_config=None,
                access_log=False,
                server_header=False,
                proxy_headers=False,
                timeout_keep_alive=30,
                timeout_graceful_shutdown=_PATIENCE,
            )
        )

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """The first signal ends the server, a second Ctrl-C does not wait. Neither is passed on: this is the end."""
        self.force_exit = self.should_exit and sig == signal.SIGINT
        self.should_exit = True

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        await anyio.to_thread.run_sync(self.service.quiet)
        await super().shutdown(sockets)
        await anyio.to_thread.run_sync(self.service.close)


def bind(host: str, port: int) -> socket.socket:
    """A listening socket, or a sentence that says why not."""
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
        listener.listen()  # from here on clients wait instead of being refused
    except OSError as error:
        listener.close()
        if error.errno == errno.EADDRINUSE:
            raise BadSetting(
                f"Port {port} is taken: is Halo Weave running already? Choose another with --port."
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
    """Loopback needs no key; every other address does."""
    own = {name.lower() for name in names}
    if not _is_loopback(host):
        if not key:
            raise BadSetting(
                f"Listening on {host} lets others in, so it needs a key: --key, or HALO_WEAVE_KEY. "
                "Without one, leave --host out: only this machine can use it then."
            )
        machine = socket.gethostname().lower()
        own |= {host.lower(), machine, f"{machine}.local"}
    return Policy(port, key, frozenset(own), not _is_loopback(host), frozenset(origins))


@contextmanager
def serving(
    service: Service, *, key: str = "", origins: tuple[str, ...] = (), port: int = 0
) -> Iterator[str]:
    """Serve on loopback from another thread while the block runs. Gives the address."""
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
