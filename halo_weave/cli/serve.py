"""`halo-weave serve`: the page and the API."""

from __future__ import annotations

import webbrowser
from threading import Thread
from typing import TYPE_CHECKING, Annotated, Literal

import typer
from rich.console import Console

from halo_weave.assemble import Options, assemble_without_model
from halo_weave.cli.app import app
from halo_weave.cli.glow import plain
from halo_weave.cli.starting import progress_bar, say_default, with_options
from halo_weave.config import read_config, text_of, texts_of, whole_of
from halo_weave.lastrun import note_server

if TYPE_CHECKING:
    from halo_weave.server.listening import Server
    from halo_weave.server.service import Service

HOST, PORT = "127.0.0.1", 4256  # "HALO" on a keypad

Host = Annotated[str | None, typer.Option("--host", help=f"Address to listen on. Default: {HOST}.")]
Port = Annotated[
    int | None, typer.Option("--port", min=0, max=65535, help=f"Default: {PORT}; 0 takes a free one.")
]
Key = Annotated[
    str | None,
    typer.Option("--key", help="Asked of every client. Needed to listen elsewhere than on this machine."),
]
Origins = Annotated[
    list[str] | None,
    typer.Option("--origin", help="Another site whose pages may use this server, like https://example.org."),
]
Names = Annotated[
    list[str] | None,
    typer.Option("--allow-host", help="Another name this server goes by, like box.lan or box.lan:8080."),
]
_Writes = Annotated[
    bool, typer.Option("--allow-writes", help="MCP clients of /mcp may also write into memory and forget.")
]
_Log = Annotated[
    Literal["text", "json"],
    typer.Option(
        "--log", help="The log on the error stream. json: one object a line, with the figures of each turn."
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
    # Here, since the web framework takes longer to import than most other commands take to run.
    from halo_weave.server.listening import Server, bind, policy_for
    from halo_weave.server.logs import write_log
    from halo_weave.server.service import Service

    config = read_config()
    host = host or text_of(config, "host") or HOST
    key = key or text_of(config, "key")
    names = (*(allow_host or ()), *texts_of(config, "allow_host"))
    origins = (*(origin or ()), *texts_of(config, "origin"))
    configured = whole_of(config, "port", 0, 65_535)
    wanted = next(one for one in (port, configured, PORT) if one is not None)
    policy_for(host, wanted, key=key, names=names, origins=origins)  # before anything is opened
    listener = bind(host, wanted)
    taken = listener.getsockname()[1]
    write_log(log)
    service = Service(lambda _: assemble_without_model(options, progress_bar))
    policy = policy_for(host, taken, key=key, names=names, origins=origins)
    server = Server(service, policy, mcp_writes=allow_writes)
    address = f"http://[{host}]:{taken}" if ":" in host else f"http://{host}:{taken}"
    note_server(options.data, address.replace("0.0.0.0", "127.0.0.1").replace("[::]", "[::1]"))
    console = Console(stderr=True, highlight=False)
    console.print(plain(f"Halo Weave is at {address} (Ctrl-C ends it)"))
    say_default(options, console)
    Thread(target=_attend, args=(service, server, options, console), name="start", daemon=True).start()
    if open_page:
        webbrowser.open(address)
    server.run([listener])
    if service.failure and options.model is not None:
        raise service.failure


def _attend(service: Service, server: Server, options: Options, console: Console) -> None:
    """Wait until the system is assembled, and say so if it fails. A --model that cannot be used ends the server."""
    service.begin().join()
    if service.failure is None:
        return
    if options.model is not None:
        server.should_exit = True
    else:
        console.print(plain(f"halo-weave: {service.failure}", "red"))
        console.print("The page is served all the same, and can try again.")
