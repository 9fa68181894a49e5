"""Zips, pictures and hostile files: read without unpacking, or refused in a sentence with nothing changed."""

from __future__ import annotations

import base64
import io
import json
import struct
import zipfile
import zlib
from contextlib import suppress

import pytest

from halo_weave.core import chunking
from halo_weave.errors import ImportRefused
from halo_weave.store.third_party import reader
from tests.store.imports.conftest import NOW, heard, sample


def zipped(compression: int = zipfile.ZIP_DEFLATED, **files: bytes) -> bytes:
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, content in files.items():
            archive.writestr(name.replace("__", "/").replace("_dot_", "."), content)
    return out.getvalue()


def png(*chunks: tuple[bytes, bytes]) -> bytes:
    def chunk(kind: bytes, content: bytes) -> bytes:
        return (
            struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))
        )

    header = struct.pack(">IIBBBBB", 1, 1, 8, 0, 0, 0, 0)
    body = [(b"IHDR", header), *chunks, (b"IDAT", zlib.compress(b"\0\0")), (b"IEND", b"")]
    return reader.PNG + b"".join(chunk(*one) for one in body)


def card_chunk(name: bytes, card: dict) -> tuple[bytes, bytes]:
    return b"tEXt", name + b"\0" + base64.b64encode(json.dumps(card).encode())


def mapping(*texts: str, id: str = "c") -> dict:
    """A conversation of ChatGPT, one message after the other."""
    nodes = {}
    for place, text in enumerate(texts):
        role = "assistant" if place % 2 else "user"
        message = {
            "author": {"role": role},
            "create_time": 1714550400 + place,
            "content": {"content_type": "text", "parts": [text]},
        }
        nodes[f"{id}{place}"] = {
            "message": message,
            "parent": f"{id}{place - 1}" if place else None,
            "children": [],
        }
    return {"title": id, "conversation_id": id, "mapping": nodes, "current_node": f"{id}{len(texts) - 1}"}


def test_a_zip_is_read_with_all_its_conversations(store, load):
    result = load(
        zipped(
            conversations_dot_json=sample("chatgpt.json"),
            chat_dot_html=b"<html>[1]</html>",
            user_dot_json=b'{"id": "user-1", "email": "x"}',
            pictures__a_dot_png=png(),
            message_feedback_dot_json=b'[{"message_id": "1", "conversation_id": "2", "rating": "good"}]',
        )
    )
    assert (result.program, result.turns, result.windows) == ("ChatGPT", 7, 2)
    assert result.left["files of other kinds"] == 2
    assert result.left["files without conversations"] == 2


def test_newer_zips_have_several_lists(store, load):
    lists = json.loads(sample("chatgpt.json"))
    parts = {f"conversations-{n:03}_dot_json": json.dumps([one]).encode() for n, one in enumerate(lists)}
    assert load(zipped(**parts)).windows == 2


def test_a_zip_of_a_thread_of_jan_has_its_name(store, load):
    load(
        zipped(
            threads__x__messages_dot_jsonl=sample("jan.jsonl"),
            threads__x__thread_dot_json=sample("jan-thread.json"),
        )
    )
    [window] = store.windows()
    assert (window.name, window.ai_name) == ("Socks", "Jan")
    assert len(heard(store)) == 2


def test_conversations_stand_in_the_order_of_time(store, load):
    files = {"a.json": json.loads(sample("openwebui.json")), "b.json": json.loads(sample("claude.json"))}
    load(
        zipped(
            **{name.replace(".", "_dot_"): json.dumps(content).encode() for name, content in files.items()}
        )
    )
    times = [turn.said for turn in heard(store)]
    assert times == sorted(times, key=lambda when: when.replace(second=0, microsecond=0))


@pytest.mark.parametrize("names", [(b"chara",), (b"ccv3",), (b"chara", b"ccv3")])
def test_a_picture_with_a_card(store, load, names):
    cards = {b"chara": {"name": "Old"}, b"ccv3": {"name": "New"}}
    whole = {
        name: {"spec": "chara_card_v3", "data": {**cards[name], "description": "x", "first_mes": "Hi."}}
        for name in names
    }
    load(png(*(card_chunk(name, card) for name, card in whole.items())))
    assert store.windows()[0].name == ("New" if b"ccv3" in names else "Old")


BOMB = zipped(bomb_dot_json=b"[" + b" " * (8 << 20) + b"]")
DAMAGED = bytearray(zipped(zipfile.ZIP_STORED, conversations_dot_json=sample("chatgpt.json")))
DAMAGED[200:240] = b"\0" * 40


@pytest.mark.parametrize(("content", "why"), [
    (b"", "no conversation"), (b"[]", "no conversation"), (b"{}", "no conversation"), (b"7", "no conversation"),
    (b'[{"a": 1}]', "no conversation"), (b"PK\x03\x04 not a zip", "zip is damaged"), (b"hello", "JSON"),
    (b"\xff\xfe\x00", "UTF-8"), (sample("chatgpt.json")[:-200], "breaks off"), (sample("sillytavern.jsonl")[:-40], "breaks off"),
    (zipped(conversations_dot_json=sample("chatgpt.json"))[:-60], "zip is damaged"), (bytes(DAMAGED), "zip is damaged"),
    (zipped(a_dot_json=sample("chatgpt.json")[:-200]), "breaks off"),
    (zipped(a_dot_txt=b"words"), "no conversation"), (zipped(inner_dot_zip=zipped(a_dot_json=sample("chatgpt.json"))), "no conversation"),
    (BOMB, "200 times"), (png(), "no character card"), (png((b"tEXt", b"chara\0!!!")), "JSON|base64|no conversation"),
    (b'[{"mapping": ' + b"[" * 100_000, "nested|JSON"), (b'[{"mapping": {"a": ' + b'{"a":' * 100_000, "nested|JSON"),
    (b'{"mapping": {"a": {"message": NaN}}}', "NaN"),
])  # fmt: skip
def test_a_bad_file_is_refused_in_a_sentence_and_nothing_changes(store, load, content, why, monkeypatch):
    monkeypatch.setattr(reader, "SMALL", 1 << 20)
    with pytest.raises(ImportRefused, match=why) as refused:
        load(content)
    assert str(refused.value).endswith(".")
    assert store.stats().turns == 0
    assert store.windows() == []


def test_an_encrypted_zip_is_refused(store, load):
    content = bytearray(zipped(a_dot_json=sample("chatgpt.json")))
    content[6] |= 1
    content[content.rindex(b"PK\x01\x02") + 8] |= 1
    with pytest.raises(ImportRefused, match="encrypted"):
        load(bytes(content))


def test_names_in_a_zip_are_only_names(store, load, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        archive.writestr("../../evil.json", sample("claude.json"))
        archive.writestr("/etc/evil.json", sample("openwebui.json"))
    assert load(out.getvalue()).windows == 3
    assert list(tmp_path.iterdir()) == []


ODD = [None, True, 7, -1.5, "text", [], {}, [[]], {"a": None}, "x" * 3000, "\ud800", "\0"]


@pytest.mark.slow
@pytest.mark.parametrize("name", [
    "chatgpt.json", "claude.json", "openwebui.json", "lmstudio.json", "textgen.json", "card.json", "koboldlite.json",
    "sillytavern.jsonl", "jan.jsonl",
])  # fmt: skip
@pytest.mark.parametrize("odd", ODD, ids=lambda odd: ascii(odd)[:12])
def test_a_value_of_another_type_anywhere_is_left_out_or_refused(store, load, name, odd):
    """Every member that a format has, wherever it stands, once with another value."""
    text = sample(name).decode()
    values = [json.loads(line) for line in text.splitlines()] if name.endswith("l") else json.loads(text)
    for key in sorted(set(_keys(values))):
        changed = _with(values, key, odd)
        lines = [json.dumps(one) for one in changed] if name.endswith("l") else [json.dumps(changed)]
        with suppress(ImportRefused):
            store.import_open_file(io.BytesIO("\n".join(lines).encode()), now=NOW)
    assert store.verify() == []


def _keys(value):
    if isinstance(value, dict):
        yield from value
        for one in value.values():
            yield from _keys(one)
    elif isinstance(value, list):
        for one in value:
            yield from _keys(one)


def _with(value, key, odd):
    if isinstance(value, dict):
        return {name: odd if name == key else _with(one, key, odd) for name, one in value.items()}
    return [_with(one, key, odd) for one in value] if isinstance(value, list) else value


def test_a_tree_that_goes_in_circles_ends(store, load):
    chat = mapping("one", "two", "three")
    chat["mapping"]["c0"]["parent"] = "c2"
    load([chat, mapping("sound", id="d")])
    assert [turn.text for turn in heard(store)] == ["sound"]


def test_a_message_of_more_than_a_million_characters_is_left_out_and_told(store, load):
    result = load([mapping("short", "x" * (reader.MAX_MESSAGE_CHARACTERS + 1), "after")])
    assert result.left == {"messages longer than a million characters": 1}
    assert [turn.text for turn in heard(store)] == ["short", "after"]


def test_a_long_message_is_cut_into_chunks_that_can_wake_up(store, load):
    words = " ".join(f"word{n}." for n in range(5000))
    load([mapping(words, "ok")])
    chunks = store.turn(1)
    assert "".join(one.chunk.text for one in chunks) == words
    assert max(len(one.chunk) for one in chunks) <= chunking.MAX_TOKENS
    assert all(one.chunk.text.endswith(".") for one in chunks)


@pytest.mark.slow
def test_of_a_long_conversation_the_end_is_live(store, load):
    load([mapping(*(f"This is message number {n} of many." for n in range(2000)))])
    [window] = store.windows()
    live = store.live(window.id)
    assert 500 < sum(len(one.chunk) for one in live) <= reader.LIVE_TOKENS + 50
    assert live[-1].chunk.text == "This is message number 1999 of many."
    assert store.window_stats(window.id).pruned_chunks == 2000 - len(live)


def test_characters_that_cannot_be_kept_are_taken_out(store, load):
    load([mapping("a\0b\ud800c", "ok")])
    assert heard(store)[0].text == "ab\ufffdc"
