"""Who may drive the server, tried from every side a browser or a program could come from."""

import asyncio

import httpx
import pytest
from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route

from halo_weave.errors import BadSetting
from halo_weave.server import auth
from halo_weave.server.auth import JSON_LIMIT, AuthMiddleware, Policy, _KeyAttempts
from halo_weave.store.records import OWNER
from tests.server.talking import refused

KEY = "correct-horse-battery"
PORT = 4256


async def echo(request: Request) -> PlainTextResponse:
    return PlainTextResponse(str(len(await request.body())))


INNER = Starlette(
    routes=[
        Route(path, echo, methods=["GET", "POST"]) for path in ("/", "/api/x", "/api/import", "/static/a.js")
    ]
)


def ask(method="GET", path="/api/x", *, policy=None, host=f"127.0.0.1:{PORT}", content=None, **headers):
    guard = AuthMiddleware(INNER, policy or Policy(PORT))
    named = {name.replace("_", "-"): value for name, value in headers.items()}

    async def run():
        transport = httpx.ASGITransport(guard)
        async with httpx.AsyncClient(transport=transport, base_url=f"http://127.0.0.1:{PORT}") as client:
            return await client.request(method, path, headers={"host": host, **named}, content=content)

    return asyncio.run(run())


@pytest.mark.parametrize(
    "host", ["127.0.0.1:4256", "localhost:4256", "LocalHost:4256", "[::1]:4256", "127.0.0.2:4256"]
)
def test_loopback_names_are_answered(host):
    assert ask(host=host).status_code == 200


@pytest.mark.parametrize(
    "host",
    [
        "evil.example:4256",
        "evil.example",
        "127.0.0.1",
        "127.0.0.1:80",
        "127.0.0.1.evil.example:4256",
        "localhost:4256@evil.example",
        "192.168.1.7:4256",
        "localhost.:4256",
        "",
        "[::1",
        "127.0.0.1:4256:4256",
    ],
)
def test_a_rebound_name_or_another_port_is_refused(host):
    answer = ask(host=host)
    assert answer.status_code == 403
    assert answer.json()["error"]["code"] == "foreign_host"


def test_a_listed_name_is_answered_with_its_port_or_ours():
    policy = Policy(PORT, names=frozenset({"box.lan", "weave.example:443"}))
    assert ask(host="box.lan:4256", policy=policy).status_code == 200
    assert ask(host="weave.example:443", policy=policy).status_code == 200
    assert ask(host="box.lan:443", policy=policy).status_code == 403


def test_addresses_in_digits_are_answered_when_listening_to_a_network():
    policy = Policy(PORT, KEY, any_address=True)
    bearer = f"Bearer {KEY}"
    assert ask(host="192.168.1.7:4256", policy=policy, authorization=bearer).status_code == 200
    assert ask(host="evil.example:4256", policy=policy, authorization=bearer).status_code == 403


@pytest.mark.parametrize(
    "origin",
    [
        "https://evil.example",
        "http://localhost:3000",
        "null",
        "http://127.0.0.1",
        "https://127.0.0.1:4256",
        "",
    ],
)
def test_pages_of_other_sites_are_refused(origin):
    for method in ("GET", "POST"):
        answer = ask(method, origin=origin)
        assert answer.status_code == 403
        assert answer.json()["error"]["code"] == "foreign_origin"
        assert "access-control-allow-origin" not in answer.headers


def test_our_own_page_is_answered():
    assert ask("POST", origin="http://127.0.0.1:4256", sec_fetch_site="same-origin").status_code == 200


@pytest.mark.parametrize("site", ["cross-site", "same-site"])
def test_an_image_or_script_tag_elsewhere_cannot_reach_the_api(site):
    assert ask(sec_fetch_site=site, sec_fetch_mode="no-cors").status_code == 403
    assert ask("POST", "/", sec_fetch_site=site).status_code == 403


def test_a_link_elsewhere_may_open_the_page():
    assert ask(path="/", sec_fetch_site="cross-site", sec_fetch_mode="navigate").status_code == 200


def test_a_configured_origin_may_ask_send_and_read():
    policy = Policy(PORT, origins=frozenset({"https://app.example"}))
    first = ask(
        "OPTIONS",
        policy=policy,
        origin="https://app.example",
        access_control_request_method="POST",
        access_control_request_headers="content-type",
    )
    assert first.status_code == 200
    assert "POST" in first.headers["access-control-allow-methods"]
    assert "content-type" in first.headers["access-control-allow-headers"].lower()
    then = ask("POST", policy=policy, origin="https://app.example", sec_fetch_site="cross-site")
    assert then.status_code == 200
    assert then.headers["access-control-allow-origin"] == "https://app.example"
    assert "Origin" in then.headers["vary"]


def test_a_configured_origin_can_read_that_the_key_is_missing():
    policy = Policy(PORT, KEY, origins=frozenset({"https://app.example"}))
    asked = {"origin": "https://app.example", "sec_fetch_site": "cross-site"}
    first = ask("OPTIONS", policy=policy, **asked, access_control_request_method="POST")
    assert first.status_code == 200
    then = ask("POST", policy=policy, **asked)
    assert then.status_code == 401
    assert then.headers["access-control-allow-origin"] == "https://app.example"
    assert then.headers["cross-origin-resource-policy"] == "cross-origin"


def test_an_origin_that_is_not_configured_gets_no_leave_to_ask():
    policy = Policy(PORT, origins=frozenset({"https://app.example"}))
    answer = ask(
        "OPTIONS", policy=policy, origin="https://evil.example", access_control_request_method="POST"
    )
    assert answer.status_code == 403
    assert "access-control-allow-methods" not in answer.headers


def test_a_configured_origin_cannot_come_by_a_rebound_name():
    policy = Policy(PORT, origins=frozenset({"https://app.example"}))
    answer = ask(
        "OPTIONS",
        policy=policy,
        host="evil.example:4256",
        origin="https://app.example",
        access_control_request_method="POST",
    )
    assert answer.status_code == 403


@pytest.mark.parametrize(
    "given", ["", "Bearer", "Bearer wrong", f"Basic {KEY}", f"Bearer {KEY}x", KEY, "Bearer \xff"]
)
def test_without_the_right_key_nothing_but_the_page_is_answered(given):
    policy = Policy(PORT, KEY)
    answer = ask(policy=policy, authorization=given.encode("latin-1"))
    assert answer.status_code == 401
    assert answer.headers["www-authenticate"] == "Bearer"
    assert answer.json()["error"]["code"] == "key_needed"
    assert ask(path="/", policy=policy).status_code == 200
    assert ask(path="/static/a.js", policy=policy).status_code == 200


def test_the_key_or_a_session_opens():
    policy = Policy(PORT, KEY)
    first, second = policy.sessions.begin(), policy.sessions.begin()
    assert first != second
    assert KEY not in first
    assert ask(policy=policy, authorization=f"Bearer {KEY}").status_code == 200
    assert ask(policy=policy, cookie=f"{policy.cookie}={first}").status_code == 200
    assert ask(policy=policy, cookie=f"{policy.cookie}={KEY}").status_code == 401
    assert ask(policy=policy, cookie=f"{policy.cookie}=").status_code == 401
    assert ask(policy=Policy(PORT, KEY), cookie=f"{policy.cookie}={first}").status_code == 401
    policy.sessions.end(first)
    assert ask(policy=policy, cookie=f"{policy.cookie}={first}").status_code == 401
    assert ask(policy=policy, cookie=f"{policy.cookie}={second}").status_code == 200


def test_sessions_are_bounded():
    policy = Policy(PORT, KEY)
    first = policy.sessions.begin()
    for _ in range(5000):
        last = policy.sessions.begin()
    assert policy.sessions.person(first) is None
    assert policy.sessions.person(last) == (OWNER, "")


def test_attempts_are_slowed_down_for_the_address_they_come_from(monkeypatch):
    now = [1000.0]
    policy = Policy(PORT, KEY, _attempts=_KeyAttempts(lambda: now[0]))
    session = policy.sessions.begin()
    right = {"authorization": f"Bearer {KEY}"}
    tried = [ask(policy=policy, authorization=f"Bearer guess {i}").status_code for i in range(12)]
    assert tried == [401] * 10 + [429] * 2
    answer = ask(policy=policy, **right)  # else the answer would tell that this guess was right
    assert refused(answer, 429, "too_many_guesses")
    assert int(answer.headers["retry-after"]) >= 1
    assert ask(policy=policy, cookie=f"{policy.cookie}={session}").status_code == 200
    assert policy.admit("/api/x", Headers(right), "another address") == OWNER
    now[0] += 7
    assert ask(policy=policy, **right).status_code == 200


def test_a_request_without_a_key_is_no_guess():
    policy = Policy(PORT, KEY)
    assert {ask(policy=policy).status_code for _ in range(30)} == {401}
    assert ask(policy=policy, authorization=f"Bearer {KEY}").status_code == 200


@pytest.mark.parametrize("key", ["short", "x" * 15, "ключ" * 10, "a" * 20 + "\n"])
def test_a_key_that_can_be_guessed_or_not_sent_is_refused(key):
    with pytest.raises(BadSetting, match="key"):
        Policy(PORT, key)


@pytest.mark.parametrize(
    "origin", ["*", "example.org", "https://example.org/", "null", "https://*.example.org"]
)
def test_an_origin_must_be_one(origin):
    with pytest.raises(BadSetting, match="origin"):
        Policy(PORT, origins=frozenset({origin}))


def test_a_body_over_the_limit_is_refused_by_its_declared_length():
    answer = ask("POST", content=b"x" * (JSON_LIMIT + 1))
    assert answer.status_code == 413
    assert answer.json()["error"]["code"] == "too_large"
    assert ask("POST", content=b"x" * JSON_LIMIT).text == str(JSON_LIMIT)


def test_a_body_without_a_length_is_counted_while_it_comes():
    async def endless():
        for _ in range(100):
            yield b"x" * 100_000

    assert ask("POST", content=endless()).status_code == 413


def test_an_import_may_be_larger():
    assert ask("POST", "/api/import", content=b"x" * (JSON_LIMIT + 1)).text == str(JSON_LIMIT + 1)


@pytest.mark.parametrize("path", ["/", "/static/a.js", "/api/x", "/nothing"])
def test_every_answer_binds_the_browser(path):
    for answer in (ask(path=path), ask(path=path, host="evil.example")):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["cache-control"] == ("no-store" if path.startswith("/api") else "no-cache")


@pytest.mark.parametrize("limit", ["_PIECE_SECONDS", "_BODY_SECONDS"])
def test_a_body_that_comes_too_slowly_is_refused(monkeypatch, limit):
    monkeypatch.setattr(auth, limit, 0.05)

    async def slow():
        for _ in range(100):
            yield b"x"
            await asyncio.sleep(0.02 if limit == "_BODY_SECONDS" else 10)

    assert ask("POST", content=slow()).status_code == 408


def test_a_file_to_import_may_take_long(monkeypatch):
    monkeypatch.setattr(auth, "_BODY_SECONDS", 0.05)

    async def slow():
        for _ in range(10):
            yield b"x"
            await asyncio.sleep(0.02)

    assert ask("POST", "/api/import", content=slow()).text == "10"


def test_websockets_are_closed():
    sent = []

    async def run():
        async def send(message):
            sent.append(message)

        async def receive():
            return {"type": "websocket.connect"}

        await AuthMiddleware(INNER, Policy(PORT))(
            {"type": "websocket", "path": "/", "headers": []}, receive, send
        )

    asyncio.run(run())
    assert sent == [{"type": "websocket.close", "code": 1008}]


def test_who_asks_for_a_websocket_is_refused_without_a_word_in_the_log(client, caplog):
    upgrade = {
        "connection": "Upgrade",
        "upgrade": "websocket",
        "sec-websocket-key": "dGhlIHNhbXBsZSBub25jZQ==",
        "sec-websocket-version": "13",
    }
    for path in ("/", "/api/status", "/api/windows/x/events"):
        answer = client.get(path, headers=upgrade)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"].startswith("This server has no WebSockets.")
    assert not caplog.records
    assert client.get("/api/status").status_code == 200
