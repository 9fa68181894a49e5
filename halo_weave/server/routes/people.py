"""People: who has a key here, who is asking, and what is shared with whom."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import APIRouter, Query
from fastapi import Path as InPath
from pydantic import Field

from halo_weave.errors import BadInput
from halo_weave.records import NAME_LENGTH, OWNER, OWNER_NAME, WINDOW_ID
from halo_weave.server.asking import WHO
from halo_weave.server.schema import SAID, Input, Output
from halo_weave.server.security import Policy
from halo_weave.server.service import Service

_PersonName = Annotated[str, InPath(min_length=1, max_length=NAME_LENGTH, pattern=SAID)]
_Named = Annotated[str, Field(min_length=1, max_length=NAME_LENGTH, pattern=SAID)]
_Whose = Annotated[
    str, Field(pattern=f"{WINDOW_ID}|^$", description="A window; empty: all of yours, also those to come.")
]


class NewPerson(Input):
    name: _Named


class PersonTold(Output):
    name: str
    created: datetime
    revoked: datetime | None = Field(description="Since then they have no key.")


class PeopleTold(Output):
    people: list[PersonTold] = Field(description="Without the owner.")


class KeyTold(Output):
    name: str
    key: str = Field(description="Told once: only its hash is kept.")


class AskingTold(Output):
    name: str
    runs_it: bool = Field(
        description="Whether the server is theirs: then they choose its models and its people."
    )
    several: bool = Field(description="Whether others have a memory here, too.")
    may_add: bool = Field(
        description="Whether they can add people: the server is theirs, and they have a key."
    )


class ShareChange(Input):
    window: _Whose = ""
    person: _Named = Field(description=f"Who may read it; {OWNER_NAME!r} is whoever runs the server.")
    writes: bool = Field(default=False, description="They may also write there.")


class ShareTold(Output):
    owner: str
    window: str
    window_name: str
    person: str
    writes: bool
    made: datetime


class SharesTold(Output):
    shares: list[ShareTold] = Field(description="What you share, and what is shared with you.")


def routes(service: Service, policy: Policy) -> APIRouter:
    router = APIRouter(tags=["People"])

    @router.get("/api/me", summary="Who is asking")
    def get_me() -> AskingTold:
        people, who = service.weave.people, WHO.get()
        return AskingTold(
            name=people.name_of(who or OWNER),
            runs_it=service.runs_it,
            several=people.several(),
            may_add=service.runs_it and bool(policy.key),
        )

    @router.get("/api/people", summary="Who has a memory here")
    def get_people() -> PeopleTold:
        return PeopleTold.model_validate({"people": service.whole.people.list()})

    @router.post(
        "/api/people", summary="Add someone: they get a key and a memory of their own", status_code=201
    )
    def post_person(asked: NewPerson) -> KeyTold:
        """For someone whose key was revoked, a new one. From the first person on, everyone needs a key."""
        people = service.whole.people
        if not policy.key:
            raise BadInput("Start the server with --key first: from the first person on you need one, too.")
        person, key = people.add(asked.name)
        return KeyTold(name=person.name, key=key)

    @router.delete("/api/people/{person}", summary="Revoke someone's key; their memory stays")
    def delete_person(person: _PersonName) -> PersonTold:
        return PersonTold.model_validate(service.whole.people.revoke(person))

    @router.get("/api/shares", summary="What is shared with whom")
    def get_shares() -> SharesTold:
        return SharesTold.model_validate({"shares": service.weave.people.shares()})

    @router.put("/api/shares", summary="Share a window, or all of them")
    def put_share(asked: ShareChange) -> ShareTold:
        shared = service.weave.people.share(asked.window, asked.person, writes=asked.writes)
        return ShareTold.model_validate(shared)

    @router.delete("/api/shares", summary="Do not share it any more", status_code=204)
    def delete_share(
        person: Annotated[str, Query(min_length=1, max_length=NAME_LENGTH, pattern=SAID)],
        window: Annotated[str, Query(pattern=f"{WINDOW_ID}|^$")] = "",
    ) -> None:
        """What of it woke up in their windows leaves them."""
        service.weave.people.unshare(window, person)

    return router
