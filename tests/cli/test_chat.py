"""The terminal chat, driven as a user or a script would."""

import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from datetime import UTC, timedelta
from itertools import count

import numpy as np
import pytest
from rich.console import Console

from halo_weave.app import ENGINES, Options, build_weave
from halo_weave.cli.chat import Chat, first_window
from halo_weave.cli.terminal import brightness_range, coloured_chunk, json_line, printable
from halo_weave.core.tokens import Tokens
from halo_weave.errors import ModelNotFound
from halo_weave.state_file import remembered_model


@pytest.fixture
def weave(tmp_path):
    weave = build_weave(Options(data=tmp_path, engine="scripted"))
    yield weave
    weave.close()


@pytest.fixture
def talk(weave):
    """Hears lines and gives what is shown for them."""
    out = io.StringIO()
    chat = Chat(weave, first_window(weave, None), Console(file=out, width=200))

    def hear(*lines):
        start = out.tell()
        chat.run(iter(lines))
        out.seek(start)
        return out.read()

    hear.chat = chat
    return hear


def test_what_is_said_is_answered_and_kept(talk, weave):
    said = talk("My cat is called Mochi.")
    assert "You said: " in said
    assert "Mochi" in said
    assert "tokens" in said.splitlines()[-1]
    turns = weave.windows.context(talk.chat.window.id).turns
    assert turns[0].chunks[0].chunk.text == "My cat is called Mochi."


def test_a_terminal_shows_that_the_model_reads_and_erases_it_before_the_reply(weave):
    out = io.StringIO()
    Chat(weave, first_window(weave, None), Console(file=out, width=200, force_terminal=True)).run(
        iter(["My cat is called Mochi."])
    )
    shown = out.getvalue()
    at, reply = shown.index("reading "), shown.index("You said:")
    assert re.search(r"reading \d+ tokens…", shown)
    erased = shown.rindex("\x1b[2K", 0, reply)  # the line is cleared after it was shown
    assert at < erased < reply
    assert "reading" not in shown[erased:]


def test_what_is_no_terminal_is_not_told_that_the_model_reads(talk):
    assert "reading" not in talk("My cat is called Mochi.")


def test_brackets_in_names_words_and_errors_are_shown_as_they_are(talk, weave):
    window = weave.windows.create("notes [/todo]", user_name="Ann [/b]", ai_name="[red]Iris").id
    told = talk("/windows", f"/windows {window}", "What is [/x] or [bold]this[/bold]?", "/stats")
    assert told.count("notes [/todo]") >= 2
    told = talk("/context", "/search this", "/why 1.0.user", "/pin [/x]")
    assert "Ann [/b], " in told
    assert "[red]Iris, " in told
    assert told.count("What is [/x] or [bold]this[/bold]?") >= 3
    assert "'[/x]' is not a chunk key." in told


def test_a_chunk_is_pinned_put_to_sleep_found_and_woken(talk, weave):
    talk("Remember the lighthouse.")
    window = talk.chat.window.id
    assert "1.0.user is pinned" in talk("/pin 1.0.user")
    assert weave.windows.context(window).turns[0].chunks[0].pinned
    talk("/unpin 1.0.user", "/sleep 1.0.user")
    assert "lighthouse" in talk("/graveyard")
    assert "1 chunk asleep" in talk("/graveyard lighthouse")
    assert "0 chunks asleep" in talk("/graveyard zeppelin")
    assert "asleep" in talk("/context")
    assert "1.0.user is awake and pinned" in talk("/wake 1.0.user")
    why = talk("/why 1.0.user")
    assert "Remember the lighthouse." in why
    assert "pruned" in why
    assert "resurrected" in why
    assert "pinned" in why


def test_times_are_those_of_the_computer(talk, weave, monkeypatch):
    talk("What time is it?")
    said = weave.windows.context(talk.chat.window.id).turns[0].said
    monkeypatch.setenv("TZ", "EAST-9:30")
    time.tzset()
    try:
        shown = talk("/context")
    finally:
        monkeypatch.undo()
        time.tzset()
    assert f"User, {said.astimezone(UTC) + timedelta(hours=9, minutes=30):%Y-%m-%d %H:%M}" in shown


def test_windows_are_made_shown_and_entered(talk):
    first = talk.chat.window.name
    assert "Now in Garden" in talk("/new Garden")
    talk("Tulips.")
    listed = talk("/windows")
    assert "Garden ←" in listed
    assert first in listed
    assert f"Now in {first}" in talk(f"/windows {first}")
    assert "Tulips" not in talk("/context")
    assert "no window" in talk("/windows Nowhere")


def test_search_and_stats_show_what_is_there(talk):
    talk("The heirloom is a zither.")
    assert "zither" in talk("/search heirloom")
    stats = talk("/stats")
    assert "2 chunks" in stats
    assert "scripted" in stats


@pytest.mark.parametrize(
    ("line", "sentence"),
    [
        ("/dance", "no command /dance"),
        ("/pin", "Which chunk?"),
        ("/pin x", "not a chunk key"),
        ("/wake 99.0.user", "99.0.user"),
        ("/pin 99999999999999999999999.0.user", "There is no chunk 99999999999999999999999.0.user"),
        ("/why 1.99999999999999999999999.user", "There is no chunk 1.99999999999999999999999.user"),
        ("/why 99.0.user", "99.0.user"),
        ("/new", "name"),
        ("/search", "Search for what"),
    ],
)
def test_a_mistake_costs_a_sentence(talk, line, sentence):
    assert sentence in talk(line)
    assert "You said" in talk("Still there?")


def test_help_names_every_command(talk):
    shown = talk("/help")
    for name in talk.chat.commands:
        assert f"/{name}" in shown


def test_quit_ends_and_what_comes_after_is_not_heard(talk):
    assert talk("/quit", "Anybody there?") == ""


def test_text_cannot_steer_the_terminal(talk):
    said = talk("\x1b[31mred\x07 and \x9b2J")
    assert "\x1b" not in said
    assert "\x9b" not in said
    assert "\x07" not in said
    assert printable("a\tb\nc") == "a\tb\nc"


STEERING = "\x9b2J \x85 \x7f \u202e \u2066 \u200f \u061c \u2028"


def test_marks_that_turn_or_steer_text_never_reach_the_terminal():
    kept = "שלום 👩\u200d🚀 é\n\t"  # letters, joined signs and line breaks are shown as they are
    assert printable(kept + STEERING) == kept + "�2J � � � � � � �"


def test_json_escapes_what_could_steer_the_terminal_and_means_the_same():
    value = {"text": f"żółw {STEERING} \x1b"}
    line = json_line(value)
    assert "żółw" in line
    assert not set(line) & set(STEERING.replace(" ", "").replace("2J", "") + "\x1b")
    assert json.loads(line) == value


def test_brighter_chunks_and_tokens_look_brighter():
    tokens = Tokens.of([1, 2], [b"dim", b"bright"])
    rows = [np.array([0, 100], np.float32), np.array([0, 10], np.float32)]
    low, high = brightness_range(rows)
    bright, dim = (coloured_chunk(tokens, row, low, high) for row in rows)
    assert sum(bright.style.color.triplet) > sum(dim.style.color.triplet)
    assert bright.spans
    assert not dim.spans
    assert bright.plain == "dimbright"


def test_ctrl_c_stops_the_reply_and_not_the_program(talk, weave):
    tokens = count()

    def press_in_the_middle():
        number = next(tokens)
        if number == 10:
            os.kill(os.getpid(), signal.SIGINT)
        if number >= 10:  # the rest would take a minute
            time.sleep(0.2)

    weave.engine.pause = press_in_the_middle
    said = talk("word " * 300)
    assert "stopped, 1" in said
    weave.engine.pause = lambda: None
    assert "You said" in talk("Go on.")


@pytest.mark.slow
def test_a_pipe_is_enough(tmp_path):
    answer = subprocess.run(
        [sys.executable, "-m", "tests.fakes", "chat", "--data", str(tmp_path)],
        input="Hello there.\n/graveyard\n/quit\nnot heard\n",
        capture_output=True,
        text=True,
        timeout=120,
        env={**os.environ, "HALO_WEAVE_ENGINE": "scripted", "HALO_WEAVE_CONFIG": os.devnull},
    )
    assert answer.returncode == 0, answer.stderr
    assert "Hello there." in answer.stdout
    assert "0 chunks asleep" in answer.stdout
    assert "not heard" not in answer.stdout
    assert "\x1b" not in answer.stdout


def test_the_model_is_listed_and_changed(talk, weave, monkeypatch, tmp_path):
    monkeypatch.setenv("HALO_WEAVE_MODELS", str(tmp_path))
    listed = talk("/model")
    assert "Qwen2.5 Coder 1.5B Instruct" in listed
    assert "all-MiniLM" not in listed, "an embedder does not talk"
    talk("My cat is called Mochi.")
    before = weave.engine
    assert "Now with scripted." in talk("/model another")
    assert before.closed
    assert "You said: " in talk("What is she called?")
    assert "Mochi" in talk("/context")
    assert remembered_model(weave.memory.folder) == "another"


def test_a_model_that_cannot_be_had_is_a_sentence_and_the_talk_goes_on(talk, weave, monkeypatch):
    def gone(*_, **__):
        raise ModelNotFound("It is gone. Choose another.")

    monkeypatch.setitem(ENGINES, "scripted", gone)
    before = weave.engine
    assert "It is gone. Choose another." in talk("/model another")
    assert weave.engine is before
    assert "You said: " in talk("Still there?")
    assert remembered_model(weave.memory.folder) is None


def test_a_file_goes_with_the_next_message(talk, weave, tmp_path):
    file = tmp_path / "log.txt"
    file.write_text("The keeper noted thunder.")
    shown = talk(f"/attach {file}", "When was that?", "/attach")
    tokens = len(weave.engine.tokenize("The keeper noted thunder."))
    assert f"log.txt, {tokens} tokens, goes with your next message" in shown
    assert "Nothing is attached." in shown
    (window,) = weave.windows.list()
    first = weave.windows.context(window.window.id).turns[0]
    assert (first.speaker, first.document) == ("log.txt", True)
    assert "cannot be read" in talk(f"/attach {tmp_path / 'missing.txt'}")


def test_a_preset_is_listed_and_applied(talk, weave):
    weave.presets.save("calm", {"temperature": 0.2}, {"ai_name": "Ada"})
    shown = talk("/preset", "/preset calm", "/preset loud")
    assert "temperature, ai_name" in shown
    assert "There is no preset 'loud'" in shown
    (window,) = weave.windows.list()
    assert (window.effective.temperature, window.window.ai_name) == (0.2, "Ada")
