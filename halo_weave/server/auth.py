"""Authentication and request checks: host, origin, key, session, body size and timeouts."""

from __future__ import annotations

import contextlib
import hmac
import ipaddress
import math
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field
from http.cookies import CookieError, SimpleCookie
from threading import Lock
from typing import Generic, TypeVar

import anyio
from anyio import to_thread
from starlette.datastructures import Headers, MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from halo_weave.chat.people import People
from halo_weave.errors import BadSetting, HaloWeaveError
from halo_weave.server.errors import ApiError, error_response, status_and_code
from halo_weave.store.records import OWNER

T = TypeVar("T")

UNKNOWN_USER = "?"  # the key was not checked because the memory is not open yet
# The id of the person who sent the request; None: the program itself, or only one person uses the server.
CURRENT_USER: ContextVar[str | None] = ContextVar("current_user", default=None)


class PerUser(Generic[T]):
    """One object per person, created when it is first used."""

    def __init__(self, make: Callable[[str], T]) -> None:
        self._make, self._lock = make, Lock()
        self._made: dict[str, T] = {}

    def __call__(self) -> T:
        person = CURRENT_USER.get() or ""
        with self._lock:
            if person not in self._made:
                self._made[person] = self._make(person)
            return self._made[person]


JSON_LIMIT = 1_000_000
_CHAT_LIMIT = 32_000_000
_DOCUMENT_LIMIT = 210_000_000  # larger than the largest value of the setting
_IMPORT_LIMIT = 64_000_000_000
_MIN_KEY_LENGTH = 16
_FREE_ATTEMPTS = 10  # wrong keys that one client address may try in a row
_ATTEMPT_DELAY = 6.0  # seconds between further attempts
_MAX_REMEMBERED = 1024  # limit of remembered addresses and of sessions
_RECHECK_SECONDS = 0.5  # seconds between two checks whether a person still has access to a running response
_PIECE_SECONDS = 30.0  # timeout for the next piece of a body, in seconds
_BODY_SECONDS = 60.0  # timeout for a whole body, except files to import
_HOST = re.compile(r"(\[[0-9a-fA-F:.]+\]|[^\[\]:/\s]+)(?::(\d{1,5}))?")

_CONTENT_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; connect-src 'self'; "
    "font-src 'self'; manifest-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_HEADERS = {
    "content-security-policy": _CONTENT_POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Sessions:
    """Browser sessions, which replace the key. They end with the server at the latest."""

    def __init__(self) -> None:
        self._lock = Lock()
        self._known: OrderedDict[str, tuple[str, str]] = OrderedDict()  # person and key mark of each session

    def begin(self, person: str = OWNER, mark: str = "") -> str:
        value = secrets.token_urlsafe(32)
        with self._lock:
            self._known[value] = person, mark
            while len(self._known) > _MAX_REMEMBERED:
                self._known.popitem(last=False)
        return value

    def end(self, value: str) -> None:
        with self._lock:
            self._known.pop(value, None)

    def person(self, value: str) -> tuple[str, str] | None:
        """The person of this session, and the mark of the key that began it; None: unknown session."""
        with self._lock:
            return self._known.get(value)


class _KeyAttempts:
    """Counts wrong keys by address: after a few, each further attempt has to wait."""

    def __init__(self, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._until: OrderedDict[str, float] = OrderedDict()  # when the attempts of an address are forgotten

    def wait(self, address: str) -> float:
        """Seconds until this address may try a key again."""
        return max(0.0, self._until.get(address, 0.0) - self._now() - (_FREE_ATTEMPTS - 1) * _ATTEMPT_DELAY)

    def note(self, address: str) -> None:
        self._until[address] = max(self._now(), self._until.pop(address, 0.0)) + _ATTEMPT_DELAY
        while len(self._until) > _MAX_REMEMBERED:
            self._until.popitem(last=False)


@dataclass(frozen=True, slots=True)
class Policy:
    """What the server accepts: names, port, key, and the origins of other pages that may use it."""

    port: int
    key: str = ""
    names: frozenset[str] = frozenset()  # besides this machine's loopback names; `name` or `name:port`
    any_address: bool = False  # also every numeric address: DNS rebinding needs a name
    origins: frozenset[str] = frozenset()
    sessions: Sessions = field(default_factory=Sessions, compare=False)
    _attempts: _KeyAttempts = field(default_factory=_KeyAttempts, compare=False)

    def __post_init__(self) -> None:
        if self.key and (
            len(self.key) < _MIN_KEY_LENGTH or not self.key.isascii() or not self.key.isprintable()
        ):
            raise BadSetting(
                f"The key needs at least {_MIN_KEY_LENGTH} plain characters, so that it cannot be guessed."
            )
        for name in self.names:
            if not _HOST.fullmatch(name):
                raise BadSetting(f"{name!r} is not a host name. Write it like box.lan or box.lan:8080.")
        for origin in self.origins:
            if not re.fullmatch(r"https?://[^/\s*]+", origin):
                raise BadSetting(
                    f"{origin!r} is not an origin. Write it like https://example.org, without a path."
                )

    def origin_error(self, method: str, path: str, headers: Headers) -> ApiError | None:
        """The error for a request to another host name, or from a page of another origin; None: accepted."""
        host = headers.getlist("host")
        if len(host) != 1 or not self.is_own_host(host[0]):
            return ApiError(
                403,
                "foreign_host",
                "This is not a name of this server. Allow it with --allow-host.",
            )
        origin = headers.get("origin")
        if origin is not None and origin != f"http://{host[0]}" and origin not in self.origins:
            return ApiError(
                403,
                "foreign_origin",
                "Pages of other sites may not use this server. Allow an origin with --origin.",
            )
        # Images, scripts and forms of other pages send no Origin, but browsers send Sec-Fetch-Site.
        cross_site = headers.get("sec-fetch-site", "none") not in {"none", "same-origin"}
        if cross_site and origin not in self.origins and (method not in {"GET", "HEAD"} or _needs_key(path)):
            return ApiError(403, "foreign_origin", "Pages of other sites may not use this server.")
        return None

    def admit(
        self, path: str, headers: Headers, address: str = "", people: People | None = None
    ) -> str | ApiError | None:
        """The person who sent a request, None if only one person uses the server, or the error if access is denied.

        People's keys are known once the memory is open. As soon as one person was added, everybody needs a key.
        """
        needs_key = _needs_key(path)  # other paths do not need the memory either
        several = needs_key and people is not None and people.several()
        if not needs_key or not (self.key or several):
            return None if people or self.key else UNKNOWN_USER
        session = self.sessions.person(self.session_of(headers))
        if session is not None and (people is None or people.key_mark(session[0]) == session[1]):
            return session[0]
        scheme, _, sent_key = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and sent_key.strip():
            if wait := self._attempts.wait(address):
                return ApiError(
                    429,
                    "too_many_guesses",
                    f"Too many wrong keys came from your address. Try again in {wait:.0f} seconds.",
                    {"retry-after": f"{wait + 0.5:.0f}"},
                )
            if self.key and _equal_secrets(sent_key.strip(), self.key):
                return OWNER
            if several and people and (owner_of_key := people.by_key(sent_key.strip())):
                return owner_of_key
            self._attempts.note(address)
        return ApiError(
            401,
            "key_needed",
            "This server needs a key: send it as Authorization: Bearer KEY.",
            {"www-authenticate": "Bearer"},
        )

    def is_own_host(self, host: str) -> bool:
        match = _HOST.fullmatch(host.lower())
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

    def session_of(self, headers: Headers) -> str:
        """The session in a browser's cookie, valid or not; empty: none."""
        try:
            cookie = SimpleCookie(headers.get("cookie", "")).get(self.cookie)
        except CookieError:
            return ""
        return cookie.value if cookie else ""

    @property
    def cookie(self) -> str:
        """The name of the session cookie. It contains the port, because cookies are shared between ports."""
        return f"halo_weave_{self.port}"


def _equal_secrets(value: str, expected: str) -> bool:
    return hmac.compare_digest(value.encode("utf-8", "replace"), expected.encode())


def _needs_key(path: str) -> bool:
    """Whether a path needs the key: all but the page, which asks for the key, and the health checks. These contain no user
    data."""
    return not (path in {"/", "/favicon.ico", "/healthz", "/readyz"} or path.startswith("/static/"))


class AuthMiddleware:
    """Refuses what the policy forbids, limits bodies, and adds security headers.

    The framework's middleware answers the browsers' CORS preflight requests, and lets pages of configured origins read
    responses, also refusals for a missing key.
    """

    def __init__(
        self, app: ASGIApp, policy: Policy, people: Callable[[], People | None] = lambda: None
    ) -> None:
        """`people`: the people with keys, once they are known."""
        self.app = app
        self.policy = policy
        self._people = people
        self._cors = CORSMiddleware(
            self._enter,
            allow_origins=policy.origins,
            allow_methods=("GET", "POST", "PUT", "PATCH", "DELETE"),
            allow_headers=("authorization", "last-event-id"),
            allow_private_network=True,
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
            return
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        headers, path = Headers(scope=scope), scope["path"]
        shared = headers.get("origin") in self.policy.origins
        answer = _with_security_headers(send, path, shared=shared)
        refusal = self.policy.origin_error(scope["method"], path, headers)
        if refusal:
            await error_response(refusal, path)(scope, receive, answer)
        else:
            await self._cors(scope, receive, answer)

    async def _enter(self, scope: Scope, receive: Receive, send: Send) -> None:
        """After the checks of host and origin: check key and size."""
        headers, path = Headers(scope=scope), scope["path"]
        limit = _limit_of(path)
        address = (scope.get("client") or ("",))[0]
        people = self._people()
        try:
            person = await to_thread.run_sync(self.policy.admit, path, headers, address, people)
        except HaloWeaveError as error:  # the memory cannot be read
            person = error if isinstance(error, ApiError) else ApiError(*status_and_code(error), str(error))
        refusal = person if isinstance(person, ApiError) else _oversize(headers, limit)
        if refusal or isinstance(person, ApiError):
            await error_response(refusal or person, path)(scope, receive, send)  # type: ignore[arg-type]
            return
        if scope["method"] == "HEAD":
            scope, send = {**scope, "method": "GET"}, _headers_only(send)
        token = CURRENT_USER.set(person)
        try:
            if person is None or people is None:
                await self.app(scope, _limit_body(receive, limit), send)
            else:
                await self._run_until_revoked(person, people, scope, _limit_body(receive, limit), send)
        finally:
            CURRENT_USER.reset(token)

    async def _run_until_revoked(
        self, person: str, people: People, scope: Scope, receive: Receive, send: Send
    ) -> None:
        """Run the request. End its response, also an event stream, if the key is revoked or a window is no longer shared."""
        before = await to_thread.run_sync(people.reads, person)

        def still_allowed() -> bool:
            return people.key_mark(person) is not None and before <= people.reads(person)

        async with anyio.create_task_group() as group:

            async def watch() -> None:
                while True:
                    await anyio.sleep(_RECHECK_SECONDS)
                    with contextlib.suppress(HaloWeaveError):  # the memory cannot be read: check again later
                        if not await to_thread.run_sync(still_allowed):
                            group.cancel_scope.cancel()
                            return

            group.start_soon(watch)
            await self.app(scope, receive, send)
            group.cancel_scope.cancel()


def _with_security_headers(send: Send, path: str, *, shared: bool) -> Send:
    """Add security headers. `shared`: a page of a configured origin may read the response."""

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in _HEADERS.items():
                headers.setdefault(name, value)
            headers.setdefault("cross-origin-resource-policy", "cross-origin" if shared else "same-origin")
            headers.setdefault("cache-control", "no-store" if path.startswith("/api/") else "no-cache")
        await send(message)

    return answer


def _headers_only(send: Send) -> Send:
    """The response to GET without its body; a stream ends after its headers, too."""

    async def answer(message: Message) -> None:
        if message["type"] == "http.response.start":
            await send(message)
            await send({"type": "http.response.body", "body": b""})

    return answer


def _limit_of(path: str) -> int:
    """The largest allowed body in bytes. Messages may contain documents, and clients of /v1 send their whole history."""
    if path.startswith("/v1/") or re.fullmatch(r"/api/windows/[^/]+/messages", path):
        return _CHAT_LIMIT
    return {"/api/import": _IMPORT_LIMIT, "/api/documents": _DOCUMENT_LIMIT}.get(path, JSON_LIMIT)


def _oversize(headers: Headers, limit: int) -> ApiError | None:
    declared = headers.get("content-length", "0")
    if not declared.isascii() or not declared.isdigit():
        return ApiError(400, "bad_input", "The Content-Length is not a number.")
    if len(declared) > 15 or int(declared) > limit:
        return ApiError(
            413, "too_large", f"The request is larger than the {limit:,} bytes that this address allows."
        )
    return None


def _limit_body(receive: Receive, limit: int) -> Receive:
    """Receive the body; refuse it if it is longer than the limit or arrives too slowly."""
    taken, more = 0, True
    end = anyio.current_time() + _BODY_SECONDS if limit != _IMPORT_LIMIT else math.inf

    async def counted() -> Message:
        nonlocal taken, more
        if not more:
            return await receive()  # whether the client is still connected
        try:
            with anyio.fail_after(min(_PIECE_SECONDS, max(0.0, end - anyio.current_time()))):
                message = await receive()
        except TimeoutError:
            raise HTTPException(408, headers={"connection": "close"}) from None
        if message["type"] == "http.request":
            taken += len(message.get("body", b""))
            more = message.get("more_body", False)
            if taken > limit:
                raise HTTPException(413)  # the framework lets this one through
        return message

    return counted
