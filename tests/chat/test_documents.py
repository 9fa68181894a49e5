"""Documents: files become turns of their own before the message, with their names, and wake up in parts."""

import pytest

from halo_weave.chat import events
from halo_weave.chat.documents import Document
from halo_weave.errors import BadInput, DocumentRefused
from tests.chat.conftest import SMALL, of
from tests.fakes.scripted_engine import ScriptedEngine

LOG = "\n\n".join(
    f"Day {day}: the keeper noted {word} and {word} again."
    for day, word in enumerate("thunder hail drizzle fog frost sleet gales calm mist squalls".split())
)


def said(weave, window, text, *documents):
    """A whole turn, and its events."""
    begun = weave.turns.send_message(window, text, documents=documents).result()
    return list(weave.turns.follow(window, begun.last_event))


def turns(weave, window):
    return [
        (turn.speaker, turn.document, "".join(one.chunk.text for one in turn.chunks))
        for turn in weave.windows.context(window).turns
    ]


@pytest.fixture
def weave(assembled):
    return assembled(ScriptedEngine(context=2_000))


@pytest.fixture
def window(weave):
    return weave.windows.create("Harbour", settings=SMALL | {"max_context_tokens": 1_000}).id


def test_a_file_becomes_a_turn_with_its_name_right_before_the_words(weave, window):
    said(weave, window, "What happened?", weave.documents.read("/home/ada/log.txt", LOG.encode()))
    first, second, _reply = turns(weave, window)
    assert first == ("log.txt", True, LOG)
    assert second == ("User", False, "What happened?")
    page = weave.windows.said(window)
    assert [turn.document for turn in page.turns] == [True, False, False]
    assert len(page.turns[0].chunks) > 3


def test_reading_tells_the_tokens_and_stores_nothing(weave, window):
    found = weave.documents.read("log.txt", LOG.encode())
    assert found == Document("log.txt", LOG, len(weave.engine.tokenize(LOG)))
    assert turns(weave, window) == []


def test_the_model_is_told_the_name_even_without_dates(weave, window, monkeypatch):
    seen = []
    chat = weave.engine.chat
    monkeypatch.setattr(
        weave.engine, "chat", lambda messages, **more: (seen.append(messages), chat(messages, **more))[1]
    )
    said(weave, window, "What happened?", Document("log.txt", LOG))
    assert [one.content for one in seen[-1]][-2:] == [f'The file "log.txt" says: "{LOG}"', "What happened?"]
    weave.windows.change(window, settings={"timestamps": True})
    said(weave, window, "And then?")
    contents = [one.content for one in seen[-1]]
    assert any(text.startswith('On 2026-05-04, the file "log.txt" says: "Day 0') for text in contents)


def test_what_the_model_has_no_room_for_sleeps_and_wakes_up_when_it_is_spoken_of(weave):
    window = weave.windows.create("Harbour", settings=SMALL | {"max_new_tokens": 20}).id
    weave.engine.replies = ["Noted.", "Sleet."]
    pages = [f"Page {page} tells of {'x' * page} things and of nothing else at all." for page in range(300)]
    pages[250] = "Page 250 tells that the sleet broke the lantern of the lighthouse."
    told = said(weave, window, "Keep this.", Document("book.txt", "\n\n".join(pages)))
    assert of(events.MessageStored, told)
    state = weave.windows.state(window)
    assert state.pruned_chunks > 20
    asleep = weave.windows.graveyard(window, limit=1).items[0]
    assert (asleep.record.speaker, asleep.reason["why"]) == ("book.txt", "no room")
    told = said(weave, window, "What broke the lantern?")
    woken = [one for event in of(events.ChunksResurrected, told) for one in event.chunks]
    assert any(
        "sleet broke" in one.chunk.text and one.document and one.speaker == "book.txt" for one in woken
    )


def test_a_document_that_fits_the_model_is_read_whole_and_then_forgotten_to_the_budget(weave):
    window = weave.windows.create("Harbour", settings=SMALL).id
    weave.engine.replies = ["Yes.", "Yes."]
    whole = "\n\n".join([LOG] * 5)
    told = said(weave, window, "Keep this.", Document("log.txt", whole))
    assert of(events.PrefillFinished, told)[0].computed > len(weave.engine.tokenize(whole)) > 300
    context = weave.windows.context(window)
    assert context.budget.used <= 300
    assert context.gaps.whole.chunks > 10
    assert "Keep this." in [text for _, _, text in turns(weave, window)]


def test_an_edited_message_keeps_its_document_and_takes_its_place(weave, window):
    weave.engine.replies = ["One.", "Two."]
    said(weave, window, "What happened?", Document("log.txt", LOG))
    asked = weave.windows.said(window).turns[1].turn_id
    begun = weave.turns.edit(window, asked, "What happened at night?").result()
    list(weave.turns.follow(window, begun.last_event))
    assert [text for _, _, text in turns(weave, window)] == [LOG, "What happened at night?", "Two."]


def test_a_document_wakes_up_in_another_window_with_its_name(weave, window):
    weave.engine.replies = ["Noted.", "Fog."]
    said(weave, window, "Keep this.", Document("log.txt", LOG))
    other = weave.windows.create("Elsewhere", settings=SMALL).id
    told = said(weave, other, "Was there drizzle?")
    woken = [one for event in of(events.ChunksResurrected, told) for one in event.chunks]
    assert {one.speaker for one in woken if "drizzle" in one.chunk.text} == {"log.txt"}
    first = weave.windows.context(other).turns[0]
    assert (first.document, first.speaker, first.window_name) == (True, "log.txt", "Harbour")


def test_limits_are_settings(weave, window):
    weave.windows.change(window, settings={"document_tokens": 100, "document_megabytes": 1})
    with pytest.raises(DocumentRefused, match="raise document_megabytes"):
        weave.documents.read("big.txt", b"x" * 1_000_001, window)
    with pytest.raises(DocumentRefused, match="document_tokens"):
        weave.documents.read("long.txt", b"word " * 150, window)
    with pytest.raises(DocumentRefused, match="document_tokens"):
        weave.turns.send_message(window, "Read.", documents=[Document("long.txt", "word " * 150)]).result()
    assert turns(weave, window) == []


def test_a_message_that_cannot_be_said_stores_no_document(weave, window):
    with pytest.raises(BadInput):
        weave.turns.send_message(window, "word " * 3_000, documents=[Document("log.txt", LOG)]).result()
    with pytest.raises(BadInput):
        weave.turns.send_message(window, "  ", documents=[Document("log.txt", LOG)]).result()
    assert turns(weave, window) == []


def test_a_document_survives_export_and_import(weave, window, tmp_path):
    from halo_weave.store.records import ExportFilter
    from halo_weave.store.sqlite import SqliteStore

    said(weave, window, "Keep this.", Document("log.txt", LOG))
    file = tmp_path / "all.json"
    with file.open("w") as out:
        weave.memory.export(out.write, subset=ExportFilter(), vectors=False)
    with SqliteStore(tmp_path / "other.sqlite") as other:
        other.import_file(file, now=weave.now())
        first = other.said_in(window).chunks[0]
    assert (first.speaker, first.tags) == ("log.txt", ("document",))


def test_stop_strings_are_a_setting(weave, window):
    weave.windows.change(window, settings={"stop": "\\nUser:\nthe end"})
    weave.engine.replies = ["It rained.\nUser: and then?", "It was the end of it."]
    said(weave, window, "Tell me.")
    said(weave, window, "And then?")
    replies = [text for speaker, _, text in turns(weave, window) if speaker == "AI"]
    assert replies == ["It rained.", "It was "]
