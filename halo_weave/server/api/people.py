"""People: keys, the current user, shares."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi import Path as InPath
from pydantic import Field

from halo_weave.errors import BadInput
from halo_weave.server.auth import CURRENT_USER, Policy
from halo_weave.server.schema import NON_BLANK_PATTERN, Input, Output
from halo_weave.server.service import Service
from halo_weave.store.records import NAME_LENGTH, OWNER, OWNER_NAME, WINDOW_ID

_PersonName = Annotated[str, InPath(min_length=1, max_length=NAME_LENGTH, pattern=NON_BLANK_PATTERN)]
_Named = Annotated[str, Field(min_length=1, max_length=NAME_LENGTH, pattern=NON_BLANK_PATTERN)]
_SharedWindow = Annotated[
    str, Field(pattern=f"{WINDOW_ID}|^$", description="A window; empty: all of yours, also those to come.")
]


class NewPerson(Input):
    name: _Named


class PersonView(Output):
    name: str
    created: datetime
    revoked: datetime | None = Field(description="When the key was revoked; null: it is valid.")


class People(Output):
    people: list[PersonView] = Field(description="All people except the owner.")


class NewKey(Output):
    name: str
    key: str = Field(description="Shown once: only its hash is kept.")


class CurrentUser(Output):
    name: str
    is_owner: bool = Field(
        description="Whether they own the server: the owner chooses its models and its people."
    )
    multiple_people: bool = Field(description="Whether other people have a memory on this server.")
    can_add_people: bool = Field(
        description="Whether they can add people: they own the server, and it has a key."
    )


class ShareChange(Input):
    window: _SharedWindow = ""
    person: _Named = Field(description=f"Who may read it; {OWNER_NAME!r} is the owner of the server.")
    can_write: bool = Field(default=False, description="They may also write there.")


class ShareView(Output):
    owner: str
    window: str
    window_name: str
    person: str
    can_write: bool = Field(validation_alias="writes")
    created: datetime = Field(validation_alias="made")


class Shares(Output):
    shares: list[ShareView] = Field(description="What you share, and what is shared with you.")


def routes(service: Service, policy: Policy) -> APIRouter:
    router = APIRouter(tags=["People"])

    @router.get("/api/me", summary="Show the current user")
    def get_me() -> CurrentUser:
        people, person = service.weave.people, CURRENT_USER.get()
        return CurrentUser(
            name=people.name_of(person or OWNER),
            is_owner=service.is_owner,
            multiple_people=people.several(),
            can_add_people=service.is_owner and bool(policy.key),
        )

    @router.get("/api/people", summary="List people")
    def get_people() -> People:
        return People.model_validate({"people": service.unrestricted_weave.people.list()})

    @router.post("/api/people", summary="Add a person, with a key and a memory of their own", status_code=201)
    def post_person(body: NewPerson) -> NewKey:
        """A person whose key was revoked gets a new one. As soon as there is another person, everybody needs a key."""
        people = service.unrestricted_weave.people
        if not policy.key:
            raise BadInput("Start the server with --key first: with several people, everybody needs a key.")
        person, key = people.add(body.name)
        return NewKey(name=person.name, key=key)

    @router.delete("/api/people/{person}", summary="Revoke a person's key; their memory stays")
    def delete_person(person: _PersonName) -> PersonView:
        return PersonView.model_validate(service.unrestricted_weave.people.revoke(person))

    @router.get("/api/shares", summary="List shares")
    def get_shares() -> Shares:
        return Shares.model_validate({"shares": service.weave.people.shares()})

    @router.put("/api/shares", summary="Share one window or all windows")
    def put_share(body: ShareChange) -> ShareView:
        shared = service.weave.people.share(body.window, body.person, writes=body.can_write)
        return ShareView.model_validate(shared)

    @router.delete("/api/shares", summary="Stop sharing", status_code=204)
    def delete_share(
        person: Annotated[str, Query(min_length=1, max_length=NAME_LENGTH, pattern=NON_BLANK_PATTERN)],
        window: Annotated[str, Query(pattern=f"{WINDOW_ID}|^$")] = "",
    ) -> None:
        """Chunks of it that were resurrected in the other person's windows are removed there."""
        service.weave.people.unshare(window, person)

    return router
