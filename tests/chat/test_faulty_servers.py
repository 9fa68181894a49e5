"""Servers that go wrong in the middle of a reply: a sentence, nothing lost, and the next turn works."""

import logging
from contextlib import closing

import httpx
import numpy as np
import pytest

from benchmarks.peer_server import halo_server
from halo_weave.chat.events import MessageStored, ReplyStored, TokenGenerated, TurnEnded
from halo_weave.engines import calibration, remote_server
from halo_weave.engines.kobold import KoboldEngine
from halo_weave.engines.no_model import NoModelEngine
from halo_weave.engines.openai import OpenAiEngine
from halo_weave.errors import AnotherModel, BadInput, EngineError, ServerFailed
from halo_weave.store.records import ExportFilter
from tests.engines.faulty import KEY, WORDS, faulty_server

pytestmark = pytest.mark.slow

REPLY = "".join(WORDS)
LONG = {"max_new_tokens": 3000, "max_context_tokens": 0, "timestamps": False}


@pytest.fixture
def server():
    with faulty_server() as server:
        yield server


@pytest.fixture(params=["kobold", "openai"])
def engine(request, server, monkeypatch):
    monkeypatch.setattr(remote_server, "RETRY_DELAYS", (0.01, 0.02))
    kind = KoboldEngine if request.param == "kobold" else OpenAiEngine
    with closing(kind(server.url, KEY)) as engine:
        yield engine


def said(weave, window):
    return [
        "".join(p for c in turn.chunks for p in c.text_pieces) for turn in weave.windows.said(window).turns
    ]


def speak(weave, window, text="What does the cat do?"):
    return list(weave.turns.steps(window, text))


@pytest.mark.parametrize(
    ("fault", "kept", "sentence"),
    [
        ("dies", "The cat", "was lost during"),
        ("half an event", "The cat", "was lost during"),
        ("wrong length", "The cat", "was lost during"),
        ("no JSON", "The cat", "not JSON"),
        ("hangs", "", "in time"),
        ("html", "", "page"),
    ],
)
def test_what_was_said_is_kept_and_the_next_turn_works(assembled, engine, server, fault, kept, sentence):
    weave = assembled(engine)
    window = weave.windows.create("w").id
    server.fault, patience = fault, engine.server.read_timeout
    engine.server.read_timeout = 0.2 if fault == "hangs" else patience
    with pytest.raises(EngineError, match=sentence):
        speak(weave, window)
    engine.server.read_timeout = patience
    assert said(weave, window) == ["What does the cat do?", *([kept] if kept else [])]
    server.fault = ""
    server.free.set()
    speak(weave, window, "And then?")
    assert said(weave, window)[-2:] == ["And then?", REPLY]


def test_what_tokens_spell_is_asked_for_once_and_for_many_at_a_time(server):
    text = "".join(f"word{number} " for number in range(300)) + "¶ and ¶ again\n"
    with closing(KoboldEngine(server.url, KEY)) as engine:
        tokens = engine.tokenize(text)
        assert engine.pieces(tokens.ids) == tokens
        assert server.detokenized < 10
        asked = server.detokenized
        engine.pieces(tokens.ids)
        assert server.detokenized == asked


def test_tokens_that_cannot_be_told_apart_are_asked_for_one_by_one(server):
    server.spelled |= {500: "one ¶ in it", 501: "", 502: "¶¶", 503: "\n", 504: " last"}
    with closing(KoboldEngine(server.url, KEY)) as engine:
        ids = np.array([*range(500, 505), 500, 7], np.int32)
        assert engine.pieces(ids).pieces() == [server.spelled[id].encode() for id in ids.tolist()]


def test_a_token_that_comes_twice_does_no_harm(assembled, engine, server):
    weave = assembled(engine)
    window = weave.windows.create("w").id
    server.fault = "repeats"
    speak(weave, window)
    assert said(weave, window)[-1].startswith("The cat cat")
    server.fault = ""
    speak(weave, window, "And then?")
    assert said(weave, window)[-1] == REPLY


def test_a_server_that_has_too_much_to_do_is_asked_again(assembled, engine, server):
    weave = assembled(engine)
    window = weave.windows.create("w").id
    server.turned_away = 2
    speak(weave, window)
    assert said(weave, window)[-1] == REPLY
    server.turned_away = 9
    with pytest.raises(EngineError, match="is overloaded"):
        speak(weave, window, "And then?")


@pytest.mark.parametrize("kind", [KoboldEngine, OpenAiEngine])
def test_a_key_that_is_refused_is_told_and_never_shown(server, kind, caplog):
    caplog.set_level(logging.DEBUG)
    with pytest.raises(EngineError, match="rejects the key") as told:
        kind(server.url, "s3cret-and-long")
    assert "s3cret" not in str(told.value)
    assert "s3cret" not in caplog.text


def test_a_server_that_is_not_there_is_told(server):
    with pytest.raises(EngineError, match="cannot be reached"):
        KoboldEngine("http://127.0.0.1:9")


def test_a_window_can_be_looked_at_while_its_server_is_gone(assembled, engine, server, tmp_path):
    weave = assembled(engine)
    weave.runtime.use_local_tokenizer(NoModelEngine(tmp_path))
    window = weave.windows.create("w").id
    speak(weave, window)
    weave.windows.change(window, system_prompt="Words that the server has never counted.")
    server.fault = "gone"
    read = [
        "".join(p for c in turn.chunks for p in c.text_pieces) for turn in weave.windows.context(window).turns
    ]
    assert read == ["What does the cat do?", REPLY]
    with pytest.raises(ServerFailed):
        speak(weave, window, "Are you there?")
    server.fault = ""
    speak(weave, window, "And now?")
    assert said(weave, window)[-2:] == ["And now?", REPLY]


def test_a_server_that_runs_another_model_now_is_told_and_opened_again(assembled, server):
    with closing(KoboldEngine(server.url, KEY)) as engine:
        weave = assembled(engine)
        again = []
        weave.runtime.reload_model = lambda: again.append("opened")
        window = weave.windows.create("w").id
        speak(weave, window)
        asked, server.model = len(server.asked), "other"
        with pytest.raises(AnotherModel, match="runs other now"):
            speak(weave, window, "And then?")
        assert len(server.asked) == asked  # our tokens would be other words there
        assert again == ["opened"]


def test_words_and_the_key_do_not_follow_where_a_server_sends_on(server):
    server.fault = "sends on"
    for kind in (KoboldEngine, OpenAiEngine):
        with pytest.raises(ServerFailed, match=r"redirects to https://evil\.example") as told:
            kind(server.url, KEY)
        assert KEY not in str(told.value)


@pytest.mark.parametrize("written", ["{}/", "{}/v1", "{}/v1/", "{}/v1/chat/completions", " {} "])
def test_an_address_may_be_written_in_several_ways(server, written):
    with closing(OpenAiEngine(written.format(server.url), KEY)) as engine:
        assert engine.server.url == f"{server.url}/v1"
    with closing(KoboldEngine(f"{server.url}/api/", KEY)) as engine:
        assert engine.server.url == server.url


@pytest.mark.parametrize("wrong", ["http://[::1", "http://x:99999", "http://x:y", "http://", "x", ""])
def test_what_is_no_address_is_told(wrong):
    with pytest.raises(BadInput, match="not the address"):
        KoboldEngine(wrong)


def test_a_certificate_that_is_not_trusted_is_told():
    error = httpx.ConnectError("[SSL: CERTIFICATE_VERIFY_FAILED] certificate verify failed")
    assert "certificate" in remote_server._error_message("https://x", error)


def test_a_reply_of_a_hanging_server_can_be_stopped(assembled, engine, server):
    weave = assembled(engine)
    engine.server.read_timeout = 60
    window = weave.windows.create("w").id
    server.fault = "hangs"
    begun = weave.turns.send_message(window, "Hello?")
    begun.result(10)
    while not server.asked:
        pass
    weave.turns.abort(window)
    ended = [
        event
        for event in weave.turns.follow(window, begun.result().last_event)
        if isinstance(event, TurnEnded)
    ]
    assert ended[0].reason == "abort"


@pytest.mark.parametrize("fault", ["no attention", "short attention", "NaN", "no base64"])
@pytest.mark.parametrize("strategy", ["use_and_surprise", "magnitude_voting"])
def test_attention_that_cannot_be_used_is_counted_and_light_stays(assembled, server, fault, strategy):
    with closing(KoboldEngine(server.url, KEY)) as engine:
        weave = assembled(engine)
        window = weave.windows.create("w", settings={"strategy": strategy}).id
        speak(weave, window, "A first sentence.")
        before = {c.key: c.brightness.tolist() for t in weave.windows.context(window).turns for c in t.chunks}
        server.fault = fault
        events = speak(weave, window)
        assert said(weave, window)[-1] == REPLY
        assert next(e for e in events if isinstance(e, TurnEnded)).stats["faults"] == len(WORDS)
        assert weave.engines.where(window).malformed >= len(WORDS)
        after = {c.key: c.brightness.tolist() for t in weave.windows.context(window).turns for c in t.chunks}
        if strategy == "magnitude_voting":
            assert {key: after[key] for key in before} == before


def test_both_of_the_prototypes_formats_light_what_was_said(assembled, server):
    with closing(KoboldEngine(server.url, KEY)) as engine:
        weave = assembled(engine)
        window = weave.windows.create("w").id
        events = speak(weave, window)
        assert server.asked[-1]["attention_format"] == "aggregated"
        assert next(e for e in events if isinstance(e, TurnEnded)).stats["faults"] == 0
        assert engine.malformed == 0


@pytest.mark.parametrize("kind", ["kobold", "openai"])
def test_a_server_that_is_killed_in_a_reply_and_started_again_is_spoken_with_again(assembled, tmp_path, kind):
    """A whole server of ours in a process of its own, on the same port as before."""
    words = " ".join(f"word{number}" for number in range(700))
    with halo_server(tmp_path, "--engine", "scripted") as server:
        far = (
            KoboldEngine(server.url)
            if kind == "kobold"
            else OpenAiEngine(server.url, model="scripted:incognito")
        )
        weave = assembled(far)
        window = weave.windows.create("w", settings=LONG).id
        events = weave.turns.steps(window, words)
        next(event for event in events if isinstance(event, TokenGenerated))
        server.kill()
        with pytest.raises(EngineError, match="was lost during"):
            list(events)
        first = said(weave, window)
        assert first[0] == words
        assert first[1]
        assert "You said".startswith(first[1][:8])
        assert "word699" not in first[1]
        with pytest.raises(EngineError, match="cannot be reached"):
            speak(weave, window, "Are you there?")
        server.start()
        speak(weave, window, "And now?")
        assert said(weave, window)[:2] == first
        assert said(weave, window)[-1].endswith("And now?")


def test_what_the_server_had_read_before_is_reported(assembled, server):
    with closing(OpenAiEngine(server.url, KEY)) as engine:
        weave = assembled(engine)
        events = speak(weave, weave.windows.create("w").id)
        stats = next(e for e in events if isinstance(e, TurnEnded)).stats
        assert (stats["cached"], stats["prompted"]) == (30, 40)
        assert any(isinstance(event, ReplyStored) for event in events)


def test_a_field_that_the_server_does_not_know_is_left_out_and_the_reply_comes(assembled, server):
    with closing(OpenAiEngine(server.url, KEY)) as engine:
        weave = assembled(engine)
        window = weave.windows.create("w").id
        server.fault = "knows few fields"
        speak(weave, window)
        assert said(weave, window)[-1] == REPLY
        assert server.asked[-1]["max_completion_tokens"] == 1024
        count = len(server.asked)
        speak(weave, window, "And then?")
        assert len(server.asked) == count + 1  # it is not asked for twice


def test_no_key_is_in_an_export(assembled, engine, server, tmp_path):
    weave = assembled(engine)
    window = weave.windows.create("w").id
    speak(weave, window)
    pieces = []
    weave.memory.export(pieces.append, subset=ExportFilter(), vectors=False)
    assert "What does the cat do?" in "".join(pieces)
    assert KEY not in "".join(pieces)


def test_what_the_server_had_read_is_reported_for_a_reply_of_full_length_too(assembled, server):
    with closing(OpenAiEngine(server.url, KEY)) as engine:
        most = sum(len(engine.tokenize(word)) for word in WORDS)
        weave = assembled(engine)
        events = speak(weave, weave.windows.create("w", settings={"max_new_tokens": most}).id)
        ended = next(e for e in events if isinstance(e, TurnEnded))
        assert (ended.reason, ended.stats["cached"], ended.stats["prompted"]) == ("length", 30, 40)


def test_a_server_on_this_machine_is_reached_without_a_proxy(server, monkeypatch):
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name in ("NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    with closing(KoboldEngine(server.url, KEY)) as engine:
        assert engine.info.name == "tiny"


def test_heads_of_a_server_that_only_shows_layers_are_calibrated_and_light_the_chunk_that_they_look_at(
    assembled, server, monkeypatch, tmp_path
):
    """The prototype's own API, without ours: rows of all layers and heads, one prompt for each row that is read."""
    monkeypatch.setattr(calibration, "WORD_LISTS", 1)
    monkeypatch.setattr(calibration, "FACT_STORIES", 0)
    server.heads = True
    with closing(KoboldEngine(server.url, KEY)) as engine:
        found = calibration.load_or_calibrate(engine, tmp_path, lambda *_: None)
        assert found.pairs[0] == (1, 0)
        assert found.heads[0].weight > 0.9
        assert server.asked[-1]["attention_format"] == "per_layer"
        assert "remote_kv" not in server.asked[-1]
        count = len(server.asked)
        assert calibration.load_or_calibrate(engine, tmp_path, lambda *_: None) == found
        assert len(server.asked) == count  # once for each model
        weave = assembled(engine, calibration=found)
        window = weave.windows.create("w", settings={"timestamps": False}).id
        fact, other = (
            next(e for e in speak(weave, window, text) if isinstance(e, MessageStored)).chunks[0].key
            for text in ("The cat sleeps in the piano.", "Well, and what is with that long story of yours?")
        )
        spoken = next(e for e in speak(weave, window, "And so?") if isinstance(e, ReplyStored))
        assert server.asked[-1]["attention_format"] == "per_layer"
        shares = {one.key: one.share for one in spoken.use.chunks}
        assert shares[fact] > 0.1
        assert shares.get(other, 0) < 0.01
        assert engine.malformed == 0


def test_heads_are_not_sought_in_attention_that_cannot_be_used(server, monkeypatch, tmp_path):
    monkeypatch.setattr(calibration, "WORD_LISTS", 1)
    monkeypatch.setattr(calibration, "FACT_STORIES", 0)
    server.heads, server.fault = True, "short attention"
    with closing(KoboldEngine(server.url, KEY)) as engine:
        found = calibration.load_or_calibrate(engine, tmp_path, lambda *_: None)
        assert (found.heads, len(server.asked)) == ((), 1)
        assert "attention that cannot be used" in found.sentence
        server.fault = ""
        assert calibration.load_or_calibrate(engine, tmp_path, lambda *_: None).pairs[0] == (1, 0)
