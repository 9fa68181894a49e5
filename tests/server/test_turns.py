"""A turn over HTTP: said once, told to everyone, stopped by nobody who merely leaves."""

import threading
import time

import httpx
import numpy as np
import pytest

from halo_weave.chat.events import TurnEnded
from tests.server.talking import following, get_context, say, shown, spoken, until_done


def test_turns_that_were_said_elsewhere_are_added_without_a_reply(client, window):
    turns = [{"role": "user", "text": "My cat is called Mochi."}, {"role": "assistant", "text": "Thank you."}]
    added = client.post(f"/api/windows/{window}/turns", json={"turns": turns})
    assert added.status_code == 201
    told = client.get(f"/api/windows/{window}/turns").json()["turns"]
    assert [one["turn_id"] for one in told] == added.json()["turns"]
    assert ["".join(one["chunks"][0]["text_pieces"]) for one in told] == [one["text"] for one in turns]
    wrong = {"turns": [{"role": "system", "text": "Obey."}]}
    assert client.post(f"/api/windows/{window}/turns", json=wrong).status_code == 422
    assert client.post(f"/api/windows/{window}/turns", json={"turns": []}).status_code == 422


def test_a_turn_is_told_in_order_and_is_what_the_context_shows(client, window):
    told = say(client, window, "My cat is called Mochi.")
    names = [event.name for event in told]
    assert names[0] == "searching"
    assert (
        names.index("message_stored")
        < names.index("prefill_planned")
        < names.index("prefill")
        < names.index("token")
        < names.index("reply_stored")
    )
    assert names[-1] == "done"
    assert told[-1].data["reason"] in {"eos", "stop", "length"}
    context = get_context(client, window)
    assert shown(context) == ["My cat is called Mochi.", spoken(told)]
    assert context["generating"] is None
    assert context["version"] == int(told[-1].id.rpartition("-")[2])


def test_the_words_are_stored_when_the_answer_to_say_comes(client, window):
    answer = client.post(f"/api/windows/{window}/messages", json={"text": "Remember the lighthouse."}).json()
    hits = client.get("/api/search", params={"q": "lighthouse"}).json()["hits"]
    assert f"{answer['turn_id']}.0.user" in [hit["key"] for hit in hits]


def test_tokens_stand_at_consecutive_positions_after_the_words(client, window):
    told = say(client, window, "One two three.")
    heard = next(event for event in told if event.name == "message_stored")
    after = int(heard.data["chunks"][-1]["start"]) + heard.data["chunks"][-1]["tokens"]
    positions = [int(event.data["position"]) for event in told if event.name == "token"]
    assert positions == list(range(after, after + len(positions)))


def test_a_report_of_brightness_covers_every_live_token(client, window):
    say(client, window, "First words.")
    before = get_context(client, window)
    live = sum(chunk["tokens"] for turn in before["turns"] for chunk in turn["chunks"])
    told = say(client, window, "Second words.")
    reports = 0
    for event in told:
        if event.name == "message_stored":
            live += sum(chunk["tokens"] for chunk in event.data["chunks"])
        if event.name == "token":
            live += 1
        if event.name == "brightness":
            reports += 1
            assert len(event.brightness) == live
            assert np.all(np.isfinite(event.brightness))
    assert reports


def test_a_second_client_sees_the_same_events(client, window, address):
    answer = client.post(f"/api/windows/{window}/messages", json={"text": "Hello both of you."}).json()
    results = []

    def listen():
        with (
            httpx.Client(base_url=address, timeout=30) as other,
            following(other, window, answer["last_event"]) as events,
        ):
            results.append(
                [(event.id, event.name) for event in until_done(events) if event.name != "brightness"]
            )

    threads = [threading.Thread(target=listen) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results[0] == results[1] == results[2]
    assert results[0][-1][1] == "done"


def test_a_lost_connection_is_resumed_without_loss_or_doubling(client, window):
    answer = client.post(f"/api/windows/{window}/messages", json={"text": "A long story, please."}).json()
    told, last = [], answer["last_event"]
    while not told or told[-1].name != "done":
        with following(client, window, last) as events:
            for event in events:
                told.append(event)
                last = event.id
                if len(told) % 7 == 0 or event.name == "done":
                    break
    numbers = [int(event.id.rpartition("-")[2]) for event in told]
    assert numbers == sorted(set(numbers))
    assert shown(get_context(client, window))[1] == spoken(told)


def test_turns_that_are_over_can_be_followed_again(client, window):
    answers, told = [], []
    for text in ("First words.", "Second words."):
        answers.append(client.post(f"/api/windows/{window}/messages", json={"text": text}).json())
        with following(client, window, answers[-1]["last_event"]) as events:
            told.append([event for event in until_done(events) if event.name != "brightness"])
    for answer, once in zip(answers, told, strict=True):
        with following(client, window, answer["last_event"]) as events:
            assert [event for event in until_done(events) if event.name != "brightness"] == once


def test_a_turn_goes_on_when_nobody_listens(client, window, service):
    answer = client.post(f"/api/windows/{window}/messages", json={"text": "Go on without me."}).json()
    with following(client, window, answer["last_event"]) as events:
        next(events)
    while (
        get_context(client, window)["generating"] or window in client.get("/api/status").json()["generating"]
    ):
        time.sleep(0.02)
    while service.weave.turns.watchers:
        time.sleep(0.02)
    with following(client, window, answer["last_event"]) as events:
        told = until_done(events)
    assert told[-1].data["reason"] != "abort"
    assert shown(get_context(client, window)) == ["Go on without me.", spoken(told)]


def test_a_client_that_leaves_frees_its_place(client, window, service, address):
    others = [httpx.Client(base_url=address, timeout=30) for _ in range(5)]
    streams = [
        other.send(other.build_request("GET", f"/api/windows/{window}/events"), stream=True)
        for other in others
    ]
    while service.weave.turns.watchers < 5:
        time.sleep(0.01)
    for stream, other in zip(streams, others, strict=True):
        stream.close()
        other.close()
    while service.weave.turns.watchers:
        time.sleep(0.01)


def test_stopping_keeps_what_was_said_so_far(client, window, middle):
    answer = client.post(
        f"/api/windows/{window}/messages", json={"text": "Talk until I stop you, on and on."}
    ).json()
    middle.reach()
    assert client.post(f"/api/windows/{window}/stop").json() == {"stopped": True}
    middle.go_on()
    with following(client, window, answer["last_event"]) as events:
        told = until_done(events)
    assert told[-1].data["reason"] == "abort"
    assert len([event for event in told if event.name == "token"]) == 10
    assert shown(get_context(client, window)) == ["Talk until I stop you, on and on.", spoken(told)]
    assert client.post(f"/api/windows/{window}/stop").json() == {"stopped": False}


def test_a_window_takes_one_turn_at_a_time(client, window, middle):
    first = client.post(f"/api/windows/{window}/messages", json={"text": "First, and not too short."})
    middle.reach()
    second = client.post(f"/api/windows/{window}/messages", json={"text": "Second."})
    middle.go_on()
    assert first.status_code == 202
    assert second.status_code == 409
    assert second.json()["error"]["code"] == "window_busy"
    with following(client, window, first.json()["last_event"]) as events:
        told = until_done(events)
    assert told[-1].name == "done", "the refused turn disturbed the first"
    assert shown(get_context(client, window)) == ["First, and not too short.", spoken(told)]


def test_the_context_shows_the_reply_in_progress(client, window, middle):
    answer = client.post(
        f"/api/windows/{window}/messages", json={"text": "Slowly now, a little longer."}
    ).json()
    middle.reach()
    now = get_context(client, window)
    assert now["generating"]["turn_id"] == answer["reply_turn_id"]
    assert len(now["generating"]["text_pieces"]) == 10
    assert len(now["generating"]["brightness"]) == len(now["generating"]["tool"]) == 10
    assert client.get("/api/status").json()["generating"] == [window]
    assert client.get(f"/api/windows/{window}").json()["generating"]
    middle.go_on()
    with following(client, window, answer["last_event"]) as events:
        assert until_done(events)[-1].name == "done"
    assert shown(get_context(client, window))[1].startswith("".join(now["generating"]["text_pieces"]))


def test_a_context_and_the_events_after_it_join_without_a_gap(client, window, middle):
    """As a second tab does it: load the context in the middle of a reply, then follow from where it stands."""
    client.post(
        f"/api/windows/{window}/messages", json={"text": "Somebody joins late, in the middle of the reply."}
    )
    middle.reach()
    now = get_context(client, window)
    with following(client, window, now["last_event"]) as events:
        middle.go_on()
        told = until_done(events)
    pieces = list(now["generating"]["text_pieces"])
    assert pieces
    for event in told:
        place = (
            int(event.data["position"]) - int(now["generating"]["position"]) if event.name == "token" else -1
        )
        if place >= len(pieces):
            assert place == len(pieces)
            pieces.append(event.data["text"])
    assert "".join(pieces) == shown(get_context(client, window))[1]


def test_what_wakes_up_is_told_with_its_reasons_and_stands_at_its_place(client, window):
    say(client, window, "The ferry to Ushuaia leaves at noon.")
    say(client, window, "Something else entirely.")
    first = get_context(client, window)["turns"][0]["chunks"][0]
    client.post(f"/api/windows/{window}/chunks/{first['key']}/prune")
    told = say(client, window, "When does the ferry to Ushuaia leave?")
    woken = next(event.data for event in told if event.name == "resurrected")
    back = next(chunk for chunk in woken["chunks"] if chunk["key"] == first["key"])
    assert back["text_pieces"] == first["text_pieces"]
    assert len(back["brightness"]) == back["tokens"]
    assert {"ferry", "ushuaia"} <= {word.lower() for word in back["words"]}
    assert (back["part"], back["window"], back["start"]) == ("hit", window, first["start"])
    assert woken["cost"] <= woken["room"]
    now = get_context(client, window)["turns"][0]["chunks"][0]
    assert now["key"] == first["key"]
    assert now["resurrected"]["similarity"] == pytest.approx(back["similarity"])
    assert get_context(client, window)["stats"]["resurrected_last_turn"] == len(woken["chunks"])


def test_a_fact_of_one_window_wakes_up_in_another_with_its_origin(client):
    old = client.post("/api/windows", json={"name": "Harbour"}).json()["id"]
    new = client.post("/api/windows", json={"name": "Elsewhere"}).json()["id"]
    say(client, old, "The lighthouse keeper is called Ingeborg Quistgaard.")
    told = say(client, new, "What is the lighthouse keeper called, Ingeborg who?")
    woken = next(event.data for event in told if event.name == "resurrected")
    fact = next(chunk for chunk in woken["chunks"] if "Quistgaard" in "".join(chunk["text_pieces"]))
    assert (fact["window"], fact["window_name"]) == (old, "Harbour")
    turns = get_context(client, new)["turns"]
    assert {"Harbour", "Elsewhere"} <= {turn["window_name"] for turn in turns}


def test_who_hears_that_a_turn_is_over_may_speak_at_once(client, window, service, monkeypatch):
    hub, free = service.weave.turns.hub(window), []
    publish = hub.publish

    def told(event):
        if isinstance(event, TurnEnded):
            free.append(not service.weave.runtime._locks[window].locked())
        return publish(event)

    monkeypatch.setattr(hub, "publish", told)
    say(client, window, "Go on.")
    assert free == [True]


def test_a_full_window_puts_its_dimmest_to_sleep(client, window):
    client.patch(
        f"/api/windows/{window}", json={"settings": {"max_context_tokens": 1200, "max_new_tokens": 40}}
    )
    asleep = []
    for i in range(10):
        told = say(client, window, f"Message {i} about " + "nothing in particular " * 12)
        asleep += [chunk["key"] for event in told if event.name == "pruned" for chunk in event.data["chunks"]]
    context = get_context(client, window)
    assert asleep
    assert context["size"] <= 1200
    assert context["stats"]["pruned_chunks"] == client.get(f"/api/windows/{window}/graveyard").json()["total"]
    live = {chunk["key"] for turn in context["turns"] for chunk in turn["chunks"]}
    assert not live & set(asleep[-1:])


def test_an_id_of_another_run_is_told_to_reload(client, window):
    with following(client, window, "0badc0de-3") as events:
        assert next(events).name == "reset"


def test_other_actions_tell_those_who_watch(client, window):
    told = say(client, window, "Pin me.")
    key = get_context(client, window)["turns"][0]["chunks"][0]["key"]
    assert client.post(f"/api/windows/{window}/chunks/{key}/pin").status_code == 200
    with following(client, window, told[-1].id) as events:
        assert next(events).name == "changed"


def test_a_deleted_window_tells_those_who_watch(client, window):
    last = get_context(client, window)["last_event"]
    with following(client, window, last) as events:
        assert client.delete(f"/api/windows/{window}").status_code == 204
        assert [event.name for event in events] == ["deleted"]
    assert client.get(f"/api/windows/{window}").status_code == 404


@pytest.mark.parametrize(
    "body",
    [
        b'{"text": ""}',
        b'{"text": "  \\n "}',
        b'{"text": "a\\u0000b"}',
        b'{"text": "half \\ud800"}',
        b'{"text": 3}',
        b'{"text": null}',
        b'{"text": "x", "colour": "red"}',
        b'{"\\ud800": "x"}',
        b"{}",
        b"[]",
        b"null",
        b"{",
        b"",
        b"\xff\xfe",
        b'{"text": NaN}',
        b"[" * 100_000,
        b'{"text": ' + b"9" * 5000 + b"}",
    ],
    ids=lambda body: repr(body[:20]),
)
def test_what_cannot_be_said_is_refused_in_a_sentence(client, window, body):
    answer = client.post(
        f"/api/windows/{window}/messages", content=body, headers={"content-type": "application/json"}
    )
    assert answer.status_code in {400, 422}
    assert answer.json()["error"]["code"] == "bad_input"
    assert answer.json()["error"]["message"].endswith(".")
    assert get_context(client, window)["turns"] == []


def test_a_message_that_is_too_long_is_refused(client, window):
    answer = client.post(f"/api/windows/{window}/messages", json={"text": "word " * 60_000})
    assert answer.status_code == 422
    answer = client.post(f"/api/windows/{window}/edit", json={"turn_id": "1", "text": "word " * 300_000})
    assert answer.status_code == 413


@pytest.mark.parametrize(
    "text", ["🐈‍⬛ naïve Ünïcödé 日本語", "<script>alert(1)</script>", "a\r\nb\tc", "\x1b[31m", "\u202e"]
)
def test_text_comes_back_as_it_was_said(client, window, text):
    say(client, window, text)
    assert shown(get_context(client, window))[0] == text
