"""Branches over HTTP: answered again, edited, gone on with, switched, branched off."""

from tests.server.talking import following, say, until_done


def window_of(client):
    made = client.post(
        "/api/windows",
        json={"name": "branches", "settings": {"max_new_tokens": 40, "memory_scope": "window"}},
    )
    return made.json()["id"]


def follow(client, window, saying):
    with following(client, window, saying["last_event"]) as events:
        return until_done(events)


def shown(client, window):
    turns = client.get(f"/api/windows/{window}/context").json()["turns"]
    return [(turn["role"], "".join("".join(one["text_pieces"]) for one in turn["chunks"])) for turn in turns]


def test_a_reply_is_made_again_edited_and_switched_back(client):
    window = window_of(client)
    base = f"/api/windows/{window}"
    say(client, window, "My cat is called Mochi.")
    first = shown(client, window)
    again = client.post(f"{base}/regenerate", json={})
    assert again.status_code == 202
    told = follow(client, window, again.json())
    names = [event.name for event in told]
    assert names[0] == "changed"
    assert "regenerating" in names
    assert "message_stored" not in names
    turns = client.get(f"{base}/context").json()["turns"]
    assert [(turn["versions"], turn["version"]) for turn in turns] == [(1, 1), (2, 2)]
    edited = client.post(f"{base}/edit", json={"turn_id": turns[0]["turn_id"], "text": "My dog is Rex."})
    assert edited.status_code == 202
    follow(client, window, edited.json()["accepted"])
    assert shown(client, window)[0] == ("user", "My dog is Rex.")
    assert not client.get("/api/search", params={"q": "Mochi", "window": window, "only_window": True}).json()[
        "hits"
    ]
    versions = client.get(f"{base}/turns/{turns[0]['turn_id']}/versions").json()["versions"]
    assert [(one["text"], one["current"]) for one in versions] == [
        ("My cat is called Mochi.", False),
        ("My dog is Rex.", True),
    ]
    back = client.post(f"{base}/checkout", json={"turn_id": turns[0]["turn_id"]})
    assert back.json() == {"turn_id": turns[1]["turn_id"]}
    assert shown(client, window) == first


def test_a_reply_is_replaced_gone_on_with_and_rewound(client):
    window = window_of(client)
    base = f"/api/windows/{window}"
    say(client, window, "Count.")
    turns = client.get(f"{base}/context").json()["turns"]
    edited = client.post(f"{base}/edit", json={"turn_id": turns[1]["turn_id"], "text": "One two"}).json()
    assert edited["accepted"] is None
    assert shown(client, window)[1] == ("assistant", "One two")
    follow(client, window, client.post(f"{base}/continue").json())
    assert shown(client, window)[1][1].startswith("One two")
    assert len(shown(client, window)[1][1]) > len("One two")
    assert client.post(f"{base}/rewind", json={"turn_id": turns[0]["turn_id"]}).status_code == 200
    assert shown(client, window) == [("user", "Count.")]
    said = client.post(f"{base}/messages", json={"text": "Begin.", "after": "0"})
    follow(client, window, said.json())
    assert shown(client, window)[0] == ("user", "Begin.")


def test_a_window_branches_off(client):
    window = window_of(client)
    say(client, window, "Hello.")
    turns = client.get(f"/api/windows/{window}/context").json()["turns"]
    made = client.post(f"/api/windows/{window}/branch", json={"turn_id": turns[1]["turn_id"], "name": "off"})
    assert made.status_code == 201
    assert made.json()["name"] == "off"
    assert shown(client, made.json()["id"]) == shown(client, window)


def test_a_turn_that_is_not_there_is_refused_in_a_sentence(client):
    window = window_of(client)
    for address, body in (
        ("checkout", {"turn_id": "999999"}),
        ("rewind", {"turn_id": "999999"}),
        ("edit", {"turn_id": "999999", "text": "x"}),
        ("branch", {"turn_id": "999999"}),
        ("regenerate", {"turn_id": "999999"}),
        ("continue", None),
    ):
        refused = client.post(f"/api/windows/{window}/{address}", json=body)
        assert refused.status_code == 422, address
        assert refused.json()["error"]["message"]
