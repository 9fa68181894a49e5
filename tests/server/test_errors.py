"""Requests that cannot be answered are refused in a sentence, in one shape; and what HEAD gives."""

import socket
import time

import pytest

from tests.server.talking import refused


def test_an_unknown_address_and_method_have_the_same_shape(client):
    refused(client.get("/api/nothing"), 404, "not_found")
    refused(client.put("/api/windows"), 405, "method_not_allowed")


@pytest.mark.parametrize(
    ("path", "body", "sentence"),
    [
        ("/api/v1/tokenize", {}, "text: this is needed."),
        ("/api/v1/tokenize", {"text": 5}, "text: use text."),
        ("/api/windows", {"name": "a", "colour": 1}, "colour: there is no such field."),
        ("/api/v1/tokenize", [], "Send a JSON object, with content type application/json."),
        ("/api/windows", [], "Send a JSON object, with content type application/json."),
        ("/api/windows", {"name": "a\0b"}, "name: leave out the character NUL: it cannot be stored."),
        ("/api/windows", {"name": " \n"}, "name: write something; blanks alone are not enough."),
        ("/api/windows", {"name": "x", "settings": 1}, "settings: use a JSON object."),
        (
            "/api/windows",
            {"name": "x", "settings": {"temperature": 9, "seed": -1, "max_context_tokens": 10**7}},
            "settings.temperature: use at most 5; settings.seed: use at least 0; "
            "settings.max_context_tokens: use at most 1,000,000.",
        ),
        ("/api/windows", {"name": "x", "settings": {"top_p": 0}}, "settings.top_p: use at least 0.01."),
        ("/api/windows", {"name": "x", "settings": {"sink": "x"}}, "settings.sink: use 'max' or 'first'."),
        (
            "/api/windows/x/messages",
            {"text": "a\0b"},
            "text: leave out the character NUL: it cannot be stored.",
        ),
        ("/api/extra/generate/stream", {"prompt": "a", "top_p": 0}, "top_p: use more than 0."),
        (
            "/api/extra/generate/stream",
            {"stop_sequence": ["a"] * 257},
            "stop_sequence: send at most 256 of them.",
        ),
        ("/api/v1/detokenize", {"token_ids": [2**31]}, "token_ids.0: use less than 2,147,483,648."),
        ("/api/v1/detokenize", {"token_ids": 1}, "token_ids: use a list."),
    ],
    ids=lambda part: repr(part)[:40],
)
def test_what_is_wrong_is_said_in_a_plain_sentence(client, path, body, sentence):
    assert refused(client.post(path, json=body), 422, "bad_input") == sentence


def test_the_icon_is_found_where_browsers_look_for_it(client):
    icon = client.get("/favicon.ico")
    assert icon.headers["content-type"] == "image/svg+xml"
    assert icon.content == client.get("/static/icon.svg").content


@pytest.mark.parametrize(
    ("method", "path", "sent", "sentence"),
    [
        ("GET", "/api/memory/entry", {}, "path: this is needed."),
        (
            "POST",
            "/api/windows",
            {"json": {"name": "  "}},
            "name: write something; blanks alone are not enough.",
        ),
        ("POST", "/api/windows", {"json": {"name": "x" * 201}}, "name: use at most 200 characters."),
        ("POST", "/api/windows", {"json": {"name": "x", "colour": 1}}, "colour: there is no such field."),
        ("POST", "/api/windows", {"content": "{bad"}, "The body is not valid JSON"),
        ("POST", "/api/windows", {}, "Send a JSON object as the body."),
        ("GET", "/api/search?q=x&limit=many", {}, "limit: use a whole number."),
        ("GET", "/api/search?q=x&limt=1", {}, "This address takes no parameter 'limt'. It takes q, "),
        ("PUT", "/api/memory/entry", {"json": {"path": "", "content": 1}}, "path: this cannot be empty."),
    ],
)
def test_a_request_that_does_not_fit_is_told_so_in_words(client, method, path, sent, sentence):
    headers = {"content-type": "application/json"} if "content" in sent else {}
    assert refused(client.request(method, path, headers=headers, **sent), 422, "bad_input").startswith(
        sentence
    )


def test_a_client_that_leaves_an_import_costs_no_traceback(address, client, caplog):
    host = address.removeprefix("http://")
    name, _, port = host.partition(":")
    before = client.get("/api/stats").json()["chunks"]
    with socket.create_connection((name, int(port))) as line:
        head = f"POST /api/import HTTP/1.1\r\nHost: {host}\r\nContent-Length: 1000000\r\n\r\n"
        line.sendall(head.encode() + b'{"format": "halo-weave"' + b" " * 1000)
        time.sleep(0.2)
    time.sleep(0.2)
    assert client.get("/api/stats").json()["chunks"] == before
    assert caplog.text == ""
