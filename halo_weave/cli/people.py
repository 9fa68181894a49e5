"""halo-weave people and halo-weave share."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Annotated

import typer

from halo_weave.chat.people import People
from halo_weave.chat.windows import find_window
from halo_weave.cli.app import Data, Json, app
from halo_weave.cli.store import now, open_or_create, open_to_read, print_json
from halo_weave.cli.terminal import plain
from halo_weave.config import read_config, text_of
from halo_weave.errors import BadInput
from halo_weave.store.records import OWNER_NAME
from halo_weave.store.sql_store import SqlStore

_people = typer.Typer(help="People with a key and a memory of their own.", no_args_is_help=True)
app.add_typer(_people, name="people")
_share = typer.Typer(help="What people share with each other.", no_args_is_help=True)
app.add_typer(_share, name="share")

_Name = Annotated[str, typer.Argument(help="Their name.")]
_Window = Annotated[
    str | None, typer.Option("--window", help="A window, by its name or id. Default: all of someone's.")
]
_Of = Annotated[str, typer.Option("--of", help="Whose windows are shared, if no window is named.")]
_With = Annotated[
    str, typer.Argument(help=f"The person to share with; {OWNER_NAME!r} is the owner of the server.")
]


@contextmanager
def _opened(data: Data, *, change: bool = True) -> Iterator[tuple[SqlStore, People]]:
    with open_or_create(data) if change else open_to_read(data) as store:
        yield store, People(store, now)


@_people.command("add")
def add(name: _Name, data: Data = None, as_json: Json = False) -> None:
    """Add a person with a key and a memory of their own. The key is shown once: only its hash is stored."""
    with _opened(data) as (store, people):
        first = not store.several()
        person, key = people.add(name)
    if as_json:
        print_json({"name": person.name, "key": key})
        return
    _say(f"{person.name}'s key, shown this once: {key}")
    if first and not text_of(read_config(), "key"):
        _say("From now on everyone needs a key, you too: start the server with --key, or set HALO_WEAVE_KEY.")


@_people.command("list")
def people_list(data: Data = None, as_json: Json = False) -> None:
    """List the people."""
    with _opened(data, change=False) as (store, people):
        listed = people.list()
        windows = {person.id: len(store.access_of(person.id).own) for person in listed}
    if as_json:
        print_json(
            [
                {
                    "name": person.name,
                    "created": person.created,
                    "revoked": person.revoked,
                    "windows": windows[person.id],
                }
                for person in listed
            ]
        )
        return
    for person in listed:
        state = f"revoked {person.revoked:%Y-%m-%d}" if person.revoked else f"since {person.created:%Y-%m-%d}"
        _say(f"{person.name}  {windows[person.id]} windows  {state}")
    if not listed:
        _say("Nobody was added: all of the memory is yours. Add someone with: halo-weave people add NAME")


@_people.command("revoke")
def revoke(name: _Name, data: Data = None) -> None:
    """Revoke a person's key. Their memory stays; `people add` gives them a new key."""
    with _opened(data) as (_, people):
        person = people.revoke(name)
    _say(f"{person.name}'s key is revoked.")


@_share.command("add")
def share_add(
    person: _With,
    window: _Window = None,
    of: _Of = OWNER_NAME,
    writes: Annotated[bool, typer.Option("--write", help="They may also write there.")] = False,
    data: Data = None,
) -> None:
    """Let someone read a window, or all windows of someone."""
    with _opened(data) as (store, people):
        share = people.share(_id_of(store, window), person, writes=writes, owner=of)
    what = f"the window {share.window_name!r}" if share.window else f"all windows of {share.owner}"
    _say(f"{share.person} may {'read and write' if share.writes else 'read'} {what}.")


@_share.command("remove")
def share_remove(person: _With, window: _Window = None, of: _Of = OWNER_NAME, data: Data = None) -> None:
    """Stop sharing. Chunks of it that were resurrected in their windows are removed there."""
    with _opened(data) as (store, people):
        if not people.unshare(_id_of(store, window), person, owner=of):
            raise BadInput("That was not shared. To see what is: halo-weave share list")
    _say("It is not shared any more.")


@_share.command("list")
def share_list(data: Data = None, as_json: Json = False) -> None:
    """List what is shared with whom."""
    with _opened(data, change=False) as (_, people):
        shares = people.shares()
    if as_json:
        names = ("owner", "window", "window_name", "person", "writes", "made")
        print_json([{name: getattr(share, name) for name in names} for share in shares])
        return
    for share in shares:
        what = f"{share.window_name} ({share.window})" if share.window else "everything"
        _say(f"{share.owner} -> {share.person}: {what}, to {'write' if share.writes else 'read'}")
    if not shares:
        _say("Nothing is shared.")


def _say(sentence: str) -> None:
    typer.echo(plain(sentence).plain)


def _id_of(store: SqlStore, window: str | None) -> str:
    return find_window(store.windows(), window).id if window is not None else ""
