"""The `halo-weave` command: every family of commands registers here."""

from __future__ import annotations

import typer

from halo_weave import __version__

app = typer.Typer(
    name="halo-weave",
    help="One endless conversation for local models: forgets by attention, remembers in place.",
    no_args_is_help=False,
    pretty_exceptions_enable=False,
    add_completion=False,
)


def _show_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"halo-weave {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def root(
    context: typer.Context,
    version: bool = typer.Option(
        False, "--version", callback=_show_version, is_eager=True, help="Show the version."
    ),
) -> None:
    pass
