"""A small model hub on loopback: the API and its files on one address, the bytes of large files on another."""

from __future__ import annotations

import hashlib
import json
import re
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import unquote, urlsplit

COMMIT = "a" * 40
Fault = Callable[["Handler"], bool]  # answers in place of the hub; whether it did


def sha256(content: bytes) -> str:
    return hashlib.sha256(content).hexdigest()


@dataclass
class FakeHub:
    files: dict[str, bytes]
    repository: str = "owner/tiny-GGUF"
    gated: bool = False
    token: str = ""
    page: int = 1000  # files in one answer of the list
    linked: bool = True  # whether redirects tell the hash
    listed: dict[str, str] = field(default_factory=dict)  # another hash than the true one, by path
    api_faults: deque[Fault] = field(default_factory=deque)
    cdn_faults: deque[Fault] = field(default_factory=deque)
    asked: list[tuple[str, str, dict[str, str]]] = field(default_factory=list)  # server, path, headers
    api: str = ""
    cdn: str = ""

    def asked_of(self, server: str) -> list[tuple[str, dict[str, str]]]:
        return [(path, headers) for name, path, headers in self.asked if name == server]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    hub: FakeHub
    which: str

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        hub = self.hub
        hub.asked.append((self.which, self.path, {k.lower(): v for k, v in self.headers.items()}))
        faults = hub.api_faults if self.which == "api" else hub.cdn_faults
        try:
            if faults and faults.popleft()(self):
                return
            self.cdn() if self.which == "cdn" else self.api()
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        for name, value in ({"Content-Length": str(len(body))} | named).items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body)

    def tell(self, value: object, **headers: str) -> None:
        self.answer(200, json.dumps(value).encode(), Content_Type="application/json", **headers)

    def api(self) -> None:
        hub, path = self.hub, unquote(urlsplit(self.path).path)
        if hub.gated and self.headers.get("Authorization") != f"Bearer {hub.token}":
            self.answer(401, b"{}", X_Error_Code="GatedRepo")
        elif f"/{hub.repository}/" not in path:
            self.answer(401, b'{"error": "Invalid username or password."}', X_Error_Code="RepoNotFound")
        elif path == f"/api/models/{hub.repository}/refs":
            self.tell({"branches": [{"name": "main", "ref": "refs/heads/main", "targetCommit": COMMIT}]})
        elif path == f"/api/models/{hub.repository}/tree/{COMMIT}":
            found = re.search(r"cursor=(\d+)", self.path)
            first = int(found[1]) if found else 0
            rows = [self.row(*one) for one in hub.files.items()]
            more = first + hub.page < len(rows)
            following = f'<{hub.api}{path}?recursive=true&cursor={first + hub.page}>; rel="next"'
            self.tell(rows[first : first + hub.page], **({"Link": following} if more else {}))
        elif found := re.fullmatch(rf"/{re.escape(hub.repository)}/resolve/(?:{COMMIT}|main)/(.+)", path):
            content = hub.files.get(found[1])
            if content is None:
                self.answer(404, b"Entry not found", X_Error_Code="EntryNotFound")
            else:
                linked = {"X_Linked_Etag": f'"{sha256(content)}"', "X_Linked_Size": str(len(content))}
                self.answer(
                    302, Location=f"{hub.cdn}/{found[1]}?signature=1", **(linked if hub.linked else {})
                )
        else:
            self.answer(404)

    def row(self, path: str, content: bytes) -> dict[str, object]:
        oid = self.hub.listed.get(path, sha256(content))
        return {
            "type": "file",
            "oid": "0" * 40,
            "size": len(content),
            "path": path,
            "lfs": {"oid": oid, "size": len(content), "pointerSize": 130},
        }

    def cdn(self) -> None:
        content = self.hub.files[unquote(urlsplit(self.path).path)[1:]]
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers.get("Range", ""))
        if not asked:
            self.answer(200, content, ETag='"x"', Content_Type="application/octet-stream")
        elif int(asked[1]) >= len(content):
            self.answer(416)
        else:
            first = int(asked[1])
            span = f"bytes {first}-{len(content) - 1}/{len(content)}"
            self.answer(206, content[first:], Content_Range=span)


class _Server(ThreadingHTTPServer):
    daemon_threads = True

    def handle_error(self, *_: object) -> None:
        """A client that went away is no news."""


@contextmanager
def serving(hub: FakeHub) -> Iterator[FakeHub]:
    servers = []
    for which in ("api", "cdn"):
        handler = type("Bound", (Handler,), {"hub": hub, "which": which})
        server = _Server(("127.0.0.1", 0), handler)
        servers.append(server)
        setattr(hub, which, f"http://127.0.0.1:{server.server_address[1]}")
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
    try:
        yield hub
    finally:
        for server in servers:
            server.shutdown()
            server.server_close()
