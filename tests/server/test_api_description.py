"""The description of the API is true of the events that are told, and of the key."""

import json
import re

import httpx
import jsonschema_rs
import pytest

from halo_weave.errors import EngineError
from halo_weave.server.events import EVENTS
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from halo_weave.settings import FIELDS
from tests.server.talking import say

WRITE = """<tool>jq '.topics.cat = "Mooncake"' notes.json > output</tool>"""
QUICK = {"memory_scope": "window", "timestamps": False, "tools": "tags"}

KEY = "correct-horse-battery"


class Events:
    """The events that one address may send, as the description has them."""

    def __init__(self, description, method, path):
        answer = description["paths"][path][method]["responses"]["200"]
        schema = answer["content"]["text/event-stream"]["schema"]
        self.kinds = schema["oneOf"]
        self.whole = self.validator(description, schema)
        self.data = {
            kind["properties"]["event"]["const"]: self.validator(
                description, kind["properties"]["data"]["contentSchema"]
            )
            for kind in self.kinds
        }

    def validator(self, description, schema):
        return jsonschema_rs.validator_for({**schema, "components": description["components"]})

    def check(self, lines):
        """Every event of a stream; gives their names and what they carry."""
        seen, fields = [], {}
        for line in lines:
            if line and not line.startswith((":", "retry")):
                name, _, value = line.partition(": ")
                fields[name] = value
            elif fields:
                self.whole.validate(fields)
                self.data[fields["event"]].validate(json.loads(fields["data"]))
                seen.append((fields["event"], json.loads(fields["data"])))
                fields = {}
                if seen[-1][0] in {"done", "failed", "deleted"}:
                    break
        return seen


@pytest.fixture
def description(client):
    return client.get("/api/openapi.json").json()


@pytest.fixture
def told(client, description):
    return Events(description, "get", "/api/windows/{window_id}/events")


def turn(client, told, window, text):
    """A turn's events, each held to its description."""
    answer = client.post(f"/api/windows/{window}/messages", json={"text": text})
    with client.stream("GET", answer.json()["stream"]) as response:
        return told.check(response.iter_lines())


def new_window(client, **settings):
    return client.post("/api/windows", json={"name": "Described", "settings": QUICK | settings}).json()["id"]


def test_every_event_is_described(told):
    assert told.data.keys() == EVENTS.keys()
    assert all({"id", "event", "data"} == set(kind["required"]) for kind in told.kinds)


def test_a_schema_that_is_named_is_there(description):
    def names(part):
        if isinstance(part, dict):
            yield from [part["$ref"]] if isinstance(part.get("$ref"), str) else []
            part = part.values()
        for one in part if not isinstance(part, str | int | float | None) else ():
            yield from names(one)

    known = {f"#/components/schemas/{name}" for name in description["components"]["schemas"]}
    assert set(names(description)) <= known


def test_a_turn_that_wakes_uses_a_tool_and_puts_to_sleep_is_as_described(client, service, told, monkeypatch):
    window = new_window(client, min_chunk_tokens=16, max_context_tokens=60)
    say(client, window, "The key of the lighthouse hangs behind the barometer.")
    for i in range(4):
        say(client, window, f"Story {i}: " + "the goose walked to the well. " * 3)
    fact = client.get(f"/api/windows/{window}/context").json()["turns"][0]["chunks"][0]["key"]
    client.post(f"/api/windows/{window}/chunks/{fact}/prune").raise_for_status()
    monkeypatch.setattr(service.engine(), "replies", [f"I note that. {WRITE}", " Done."])
    seen = turn(client, told, window, "Where does the key of the lighthouse hang?")
    names = [name for name, _ in seen]
    usual = {
        "searching",
        "resurrected",
        "pruned",
        "message_stored",
        "prefill_planned",
        "prefill",
        "token",
        "brightness",
        "reply_stored",
        "done",
    }
    assert usual | {"tool_called", "tool_answered"} == set(names)
    assert all(
        data["chunks"]
        for name, data in seen
        if name in {"resurrected", "pruned", "message_stored", "reply_stored"}
    )
    for data in (data for name, data in seen if name == "reply_stored"):
        use = data["attribution"]
        assert sum(one["share"] for one in use["chunks"]) + use["nothing"] == pytest.approx(1.0)
        assert len(use["tokens"]) == sum(one["tokens"] for one in data["chunks"])
    assert any(data["tool"] for name, data in seen if name == "token")


def test_a_turn_that_is_stopped_is_as_described(client, told, middle):
    window = new_window(client)
    answer = client.post(f"/api/windows/{window}/messages", json={"text": "word " * 100}).json()
    middle.reach()
    client.post(f"/api/windows/{window}/stop")
    middle.go_on()
    with client.stream("GET", answer["stream"]) as response:
        assert told.check(response.iter_lines())[-1][1]["reason"] == "abort"


def test_a_turn_that_fails_is_as_described(client, service, told, monkeypatch):
    def broken():
        raise RuntimeError("no more")

    monkeypatch.setattr(service.engine(), "pause", broken)
    seen = turn(client, told, new_window(client), "Try it.")
    assert seen[-1][0] == "failed"


def test_what_is_told_besides_turns_is_as_described(client, told):
    window = new_window(client)
    with client.stream("GET", f"/api/windows/{window}/events?after=other-1") as response:
        lines = response.iter_lines()
        next(lines)  # it is heard
        client.patch(f"/api/windows/{window}", json={"name": "Other"})
        client.delete(f"/api/windows/{window}")
        assert {name for name, _ in told.check(lines)} == {"reset", "changed", "deleted"}


@pytest.mark.parametrize("form", [None, "aggregated", "per_layer"])
def test_the_messages_of_the_prototype_are_as_described(client, description, form):
    told = Events(description, "post", "/api/extra/generate/stream")
    asked = {"prompt": "Say it again.", "max_length": 3}
    if form:
        asked |= {"output_attentions": True, "attention_format": form}
    with client.stream("POST", "/api/extra/generate/stream", json=asked) as response:
        seen = told.check(response.iter_lines())
    assert [data["type"] for _, data in seen] == ["token"] * 3 + ["done"]
    assert all(("attention" in data) == bool(form) for _, data in seen[:-1])


def test_a_failure_of_the_prototype_is_as_described(client, description, service, monkeypatch):
    def broken():
        raise EngineError("It broke.")

    monkeypatch.setattr(service.engine(), "pause", broken)
    told = Events(description, "post", "/api/extra/generate/stream")
    with client.stream("POST", "/api/extra/generate/stream", json={"prompt": "x"}) as response:
        assert [data["type"] for _, data in told.check(response.iter_lines())] == ["error"]


@pytest.mark.slow
@pytest.mark.parametrize("name", FIELDS)
def test_a_setting_may_be_null_where_the_description_says_so(client, description, name):
    schema = {"$ref": "#/components/schemas/SettingsChange", "components": description["components"]}
    fits = jsonschema_rs.validator_for(schema).is_valid({name: None})
    before = client.get("/api/settings").json()["values"][name]
    answer = client.patch("/api/settings", json={name: None})
    assert (answer.status_code == 200) == fits
    if fits:
        assert answer.json()["values"][name] is None
        client.patch("/api/settings", json={name: before})
    else:
        assert answer.json()["error"]["message"] == f"{name}: this cannot be empty."


def test_to_leave_a_setting_out_is_not_described_as_null(description):
    for name in ("SettingsChange", "OwnSettings"):
        fields = description["components"]["schemas"][name]["properties"]
        assert not [field for field in FIELDS if "default" in fields[field]]


@pytest.mark.slow
def test_the_key_is_described_and_needed_by_every_address():
    empty = Service(lambda progress: pytest.fail("nobody asked for it"))
    with serve_in_thread(empty, key=KEY) as address, httpx.Client(base_url=address, timeout=30) as client:
        bearer = {"authorization": f"Bearer {KEY}"}
        told = client.get("/api/openapi.json", headers=bearer).json()
        assert told["security"] == [{"key": []}, {"cookie": []}]
        schemes = told["components"]["securitySchemes"]
        assert (schemes["key"]["type"], schemes["key"]["scheme"]) == ("http", "bearer")
        for path, operations in told["paths"].items():
            for method, operation in operations.items():
                assert "security" not in operation
                assert client.request(method, path).status_code == 401, path
        client.post("/api/session", headers=bearer)
        assert (schemes["cookie"]["in"], [schemes["cookie"]["name"]]) == ("cookie", list(client.cookies))
        assert client.get("/api/status").status_code == 200
        cookie = dict(client.cookies)
        assert client.delete("/api/session").status_code == 204
        assert not client.cookies
        client.cookies.update(cookie)
        assert client.get("/api/status").status_code == 401  # also for whoever copied it


def test_without_a_key_none_is_needed(description):
    assert description["security"] == [{}, {"key": []}, {"cookie": []}]


def test_an_event_that_is_not_as_described_is_noticed(told):
    with pytest.raises(jsonschema_rs.ValidationError):
        told.check(["id: 1", "event: token", 'data: {"id":1,"position":"1","text":"a"}', ""])
    with pytest.raises(jsonschema_rs.ValidationError):
        told.check(["id: 1", "event: noise", "data: {}", ""])


# Words for which docs/decisions/0018-public-names.md has another.
FORMER = set(
    """answering asking asleep brightened elsewhere fading heard lending life lit passed remembered saying
    say sentence siblings sibling sleep slept spoken told undelete unstored wake wakes wish woke woken""".split()
)
VERBS = set(
    """Add Apply Branch Change Check Compare Continue Convert Count Create Delete Describe Drop Edit Embed End Explain
    Export Extract Follow Generate Import List Mark Pin Preview Prune Query Regenerate Remove Rename Replace Replay
    Restore Resurrect Retry Revoke Rewind Save Search Send Share Show Start Stop""".split()
)


def names_in(part):
    """The names of all properties of a schema, and of those within it."""
    for name, schema in part.get("properties", {}).items() if isinstance(part, dict) else ():
        yield name
        yield from names_in(schema)


def test_public_names_keep_to_one_vocabulary_and_summaries_begin_with_a_verb(description):
    schemas = description["components"]["schemas"]
    names = {*EVENTS, *FIELDS, *schemas, *(name for schema in schemas.values() for name in names_in(schema))}
    ours = [
        (path, operation)
        for path, operations in description["paths"].items()
        for operation in operations.values()
        if not {"Prototype", "KoboldAI"} & {*operation["tags"]}
    ]
    names |= {path for path, _ in ours}
    names |= {one["name"] for _, operation in ours for one in operation.get("parameters", ())}
    former = {one for one in names if FORMER & {word.lower() for word in re.findall("[A-Z]?[a-z]+", one)}}
    assert not former
    summaries = [operation["summary"] for _, operation in ours]
    assert [one for one in summaries if re.match(r"\w+", one)[0] not in VERBS] == []
