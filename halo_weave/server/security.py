"""Who may drive the server: checked before anything of a request is looked at.

A web page open in the user's browser can send requests to 127.0.0.1, and by DNS rebinding even read the answers.
So the Host must be a name of ours, and a request that a browser makes for another site is refused.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie

from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from halo_weave.errors import BadSetting
from halo_weave.server.refusals import Refusal, refused

JSON_LIMIT = 1_000_000
IMPORT_LIMIT = 64_000_000_000
SHORTEST_KEY = 16
HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:/\s]+)(?::(\d{1,5}))?")

CONTENT_POLICY = "; ".join(
    [
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "img-src 'self' data:",
        "connect-src 'self'",
        "font-src 'self'",
        "manifest-src 'self'",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
    ]
)
HEADERS = {
    "content-security-policy": CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}
CORS_METHODS = "GET, POST, PUT, PATCH, DELETE"
CORS_HEADERS = "authorization, content-type, last-event-id"


@dataclass(frozen=True, slots=True)
class Policy:
    """What the server answers to: names, port, key, and the origins of other pages that may use it."""

    port: int
    key: str = ""
    names: frozenset[str] = frozenset()  # besides those of this machine's loopback; `name` or `name:port`
    any_address: bool = False  # also to every address in digits: rebinding always goes by a name
    origins: frozenset[str] = frozenset()

    def __post_init__(self) -> None:
        if self.key and (
            len(self.key) < SHORTEST_KEY or not self.key.isascii() or not self.key.isprintable()
        ):
            raise BadSetting(
                f"The key needs at least {SHORTEST_KEY} plain characters, so that it cannot be guessed."
            )
        for name in self.names:
            if not HOST.fullmatch(name):
                raise BadSetting(f"{name!r} is not a host's name. One looks like box.lan or box.lan:8080.")
        for origin in self.origins:
            if not re.fullmatch(r"https?://[^/\s*]+", origin):
                raise BadSetting(
                    f"{origin!r} is not an origin. One looks like https://example.org, without a path."
                )

    def refusal(self, method: str, path: str, headers: Headers) -> Refusal | None:
        """Why a request is not answered, if so."""
        host = headers.getlist("host")
        if len(host) != 1 or not self.is_ours(host[0]):
            return Refusal(
                403,
                "foreign_host",
                "This server does not go by that name. Name it with --allow-host if it should.",
            )
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host[0]}" and origin not in self.origins:
            return Refusal(
                403,
                "foreign_origin",
                "Another site's page may not use this server. Name it with --origin if it should.",
            )
        # Images, scripts and forms of other pages name no origin; what browsers say instead is enough.
        foreign = headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}
        if foreign and origin not in self.origins and (method not in {"GET", "HEAD"} or is_guarded(path)):
            return Refusal(403, "foreign_origin", "Another site's page may not use this server.")
        if self.key and is_guarded(path) and not self.knows_key(headers):
            return Refusal(
                401,
                "key_needed",
                "This server needs its key: send it as Authorization: Bearer KEY.",
                {"www-authenticate": "Bearer"},
            )
        return None

    def is_ours(self, host: str) -> bool:
        match = HOST.fullmatch(host.lower())
        if not match:
            return False
        name, port = match[1], int(match[2] or 80)
        if host.lower() in self.names:
            return True
        if port != self.port:
            return False
        if name == "localhost" or name in self.names:
            return True
        try:
            address = ipaddress.ip_address(name.strip("[]"))
        except ValueError:
            return False
        return self.any_address or address.is_loopback

    def knows_key(self, headers: Headers) -> bool:
        scheme, _, given = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and same(given.strip(), self.key):
            return True
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return False
        return cookie is not None and same(cookie.value, self.session)

    @property
    def cookie(self) -> str:
        """Cookies know no ports, so the name does."""
        return f"halo_weave_{self.port}"

    @property
    def session(self) -> str:
        """What the browser keeps instead of the key; another key makes it worthless."""
        return hmac.new(self.key.encode(), b"halo-weave session", hashlib.sha256).hexdigest()


def same(given: str, expected: str) -> bool:
    return hmac.compare_digest(given.encode("utf-8", "replace"), expected.encode())


def is_guarded(path: str) -> bool:
    """All but the page itself, which has to ask for the key and holds nothing of the user's."""
    return not (path in {"/", "/favicon.ico"} or path.startswith("/static/"))


class Guard:
    """Refuses what the policy refuses, bounds what is sent, and adds the headers that bind the browser."""

    def __init__(self, app: ASGIApp, policy: Policy) -> None:
        self.app = app
        self.policy = policy

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        path = scope["path"]
        answer = sealed(send, path, self.allowed(headers))
        if scope["method"] == "OPTIONS" and self.asks_first(headers):
            await preflight(headers)(scope, receive, answer)
            return
        limit = IMPORT_LIMIT if path == "/api/import" else JSON_LIMIT
        refusal = self.policy.refusal(scope["method"], path, headers) or oversize(headers, limit)
        if refusal:
            await refused(refusal)(scope, receive, answer)
            return
        if scope["method"] == "HEAD":
            scope, answer = {**scope, "method": "GET"}, headers_only(answer)
        await self.app(scope, bounded(receive, limit), answer)

    def allowed(self, headers: Headers) -> str | None:
        """The other page's origin, if it may read the answer."""
        origin = headers.get("origin")
        return origin if origin in self.policy.origins else None

    def asks_first(self, headers: Headers) -> bool:
        """A browser asks whether a page of a configured origin may send what it wants to send."""
        return (
            self.allowed(headers) is not None
            and "access-control-request-method" in headers
            and self.policy.is_ours(headers.get("host", ""))
        )


def preflight(headers: Headers) -> Response:
    granted = {
        "access-control-allow-methods": CORS_METHODS,
        "access-control-allow-headers": CORS_HEADERS,
        "access-control-max-age": "600",
    }
    if headers.get("access-control-request-private-network") == "true":
        granted["access-control-allow-private-network"] = "true"
    return Response(status_code=204, headers=granted)


def sealed(send: Send, path: str, origin: str | None) -> Send:
    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cross-origin-resource-policy", "cross-origin" if origin else "same-origin")
            headers.setdefault("cache-control", "no-store" if path.startswith("/api/") else "no-cache")
            if origin:
                headers["access-control-allow-origin"] = origin
                headers.add_vary_header("Origin")
        await send(message)

    return answer


def headers_only(send: Send) -> Send:
    """What GET would answer, ended after its headers: a stream that is asked for them ends there too."""

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b""})

    return answer


def oversize(headers: Headers, limit: int) -> Refusal | None:
    declared = headers.get("content-length", "0")
    if not declared.isascii() or not declared.isdigit():
        return Refusal(400, "bad_input", "The Content-Length is not a number.")
    return too_large(limit) if len(declared) > 15 or int(declared) > limit else None


def too_large(limit: int) -> Refusal:
    return Refusal(413, "too_large", f"The request is larger than the {limit:,} bytes this address takes.")


def bounded(receive: Receive, limit: int) -> Receive:
    """A body without a declared length is counted while it comes."""
    taken = 0

    async def counted() -> Message:
        nonlocal taken
        message = await receive()
        if message["type"] == "http.request":
            taken += len(message.get("body", b""))
            if taken > limit:
                raise HTTPException(413)  # the framework lets this one through
        return message

    return counted
