"""halo-weave serve (page and API) and halo-weave mcp (MCP over standard input and output)."""

from __future__ import annotations

import logging
import sys
import webbrowser
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Literal

import httpx
import typer
from rich.console import Console

from halo_weave.app import Options, build_weave_without_model
from halo_weave.cli.app import announce_default_model, app, progress_bar, with_options
from halo_weave.cli.terminal import plain
from halo_weave.config import read_config, text_of, texts_of, whole_of
from halo_weave.state_file import mark_server_running, running_server

if TYPE_CHECKING:
    from halo_weave.server.http_server import Server
    from halo_weave.server.service import Service


HOST, PORT = "127.0.0.1", 4256  # "HALO" on a telephone keypad

Host = Annotated[str | None, typer.Option("--host", help=f"Address to listen on. Default: {HOST}.")]
Port = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, help=f"Default: {PORT}; 0 takes a free one.")
]
Key = Annotated[
    str | None,
    typer.Option(
        "--key",
        help="Key that every client must send. Required to listen on other addresses than this machine's own.",
    ),
]
Origins = Annotated[
    list[str] | None,
    typer.Option("--origin", help="Another site whose pages may use this server, like https://example.org."),
]
Names = Annotated[
    list[str] | None,
    typer.Option("--allow-host", help="Another name of this server, such as box.lan or box.lan:8080."),
]
_Writes = Annotated[
    bool,
    typer.Option(
        "--allow-writes", help="MCP clients of /mcp may also write to the memory and delete from it."
    ),
]
_Log = Annotated[
    Literal["text", "json"],
    typer.Option(
        "--log",
        help="Format of the log on the error stream. json: one object per line, with the figures of each turn.",
    ),
]
Open = Annotated[bool, typer.Option("--open", help="Open the page in the browser.")]


@app.command()
@with_options
def serve(
    options: Options,
    host: Host = None,
    port: Port = None,
    key: Key = None,
    origin: Origins = None,
    allow_host: Names = None,
    open_page: Open = False,
    allow_writes: _Writes = False,
    log: _Log = "text",
) -> None:
    """Serve the page and the API on http://127.0.0.1:4256. The default command."""
    # Imported here because the web framework takes longer to import than most other commands take to run.
    from halo_weave.server.http_server import Server, bind, policy_for
    from halo_weave.server.logs import configure_logging
    from halo_weave.server.service import Service

    config = read_config()
    host = host or text_of(config, "host") or HOST
    key = key or text_of(config, "key")
    names = (*(allow_host or ()), *texts_of(config, "allow_host"))
    origins = (*(origin or ()), *texts_of(config, "origin"))
    configured = whole_of(config, "port", 0, 65_535)
    requested_port = next(number for number in (port, configured, PORT) if number is not None)
    policy_for(host, requested_port, key=key, names=names, origins=origins)  # before anything is opened
    listener = bind(host, requested_port)
    bound_port = listener.getsockname()[1]
    configure_logging(log)
    service = Service(lambda _: build_weave_without_model(options, progress_bar))
    policy = policy_for(host, bound_port, key=key, names=names, origins=origins)
    server = Server(service, policy, mcp_writes=allow_writes)
    address = f"http://[{host}]:{bound_port}" if ":" in host else f"http://{host}:{bound_port}"
    mark_server_running(options.data, address.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]"))
    console = Console(stderr=True, highlight=False)
    console.print(plain(f"Halo Weave is at {address} (Ctrl-C ends it)"))
    announce_default_model(options, console)
    Thread(target=_report_start, args=(service, server, options, console), name="start", daemon=True).start()
    if open_page:
        webbrowser.open(address)
    server.run([listener])
    if service.failure and options.model is not None:
        raise service.failure


def _report_start(service: Service, server: Server, options: Options, console: Console) -> None:
    """Wait until the system is built, and report a failure. A --model that cannot be used ends the server."""
    service.begin().join()
    if service.failure is None:
        return
    if options.model is not None:
        server.should_exit = True
    else:
        console.print(plain(f"halo-weave: {service.failure}", "red"))
        console.print("The page is served all the same, and can try again.")


_AllowMcpWrites = Annotated[
    bool,
    typer.Option(
        "--allow-writes", help="Also tools that write to the memory and delete from it. Default: read only."
    ),
]
_OwnKey = Annotated[str | None, typer.Option("--key", help="Key of the running server, if it has one.")]
_STATUS_TIMEOUT = 3.0  # seconds for a running server to answer


@app.command()
@with_options
def mcp(options: Options, allow_writes: _AllowMcpWrites = False, key: _OwnKey = None) -> None:
    """Serve the memory to an MCP host over standard input and output. No chat model is loaded.

    If `halo-weave serve` is running on the same data folder, requests are forwarded to it; else this process opens the memory.
    """
    # Imported here because this takes a second.
    from halo_weave.server.mcp.tools import proxy_stdio, serve_stdio

    logging.basicConfig(level=logging.WARNING, stream=sys.stderr)
    key = key or text_of(read_config(), "key")
    address = running_server(options.data)
    if address and _responds(address, key):
        proxy_stdio(address, key, writes=allow_writes)
        return
    weave = build_weave_without_model(options)
    try:
        serve_stdio(weave.library, writes=allow_writes)
    finally:
        weave.close()


def _responds(address: str, key: str) -> bool:
    headers = {"authorization": f"Bearer {key}"} if key else {}
    try:
        return httpx.get(f"{address}/api/status", headers=headers, timeout=_STATUS_TIMEOUT).status_code == 200
    except httpx.HTTPError:
        return False
