"""Engine for servers with the KoboldCpp attention API: a patched KoboldCpp, or another Halo Weave, which also shares its KV cache."""

from __future__ import annotations

import base64
import hashlib
import math
import re
import secrets
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from datetime import datetime
from functools import cached_property, lru_cache
from typing import Any, Literal, cast, get_args

import numpy as np
import numpy.typing as npt

from halo_weave.core.brightness import AttentionRow, Floats
from halo_weave.core.retrieval_heads import Calibration, RetrievalHead
from halo_weave.core.tokens import Ids, Tokens
from halo_weave.engines.base import (
    Capabilities,
    Capture,
    Engine,
    GenerationEnd,
    GenerationEvent,
    ModelInfo,
    PrefillPlanned,
    PrefillResult,
    Prompt,
    Sampling,
    Step,
    StopReason,
)
from halo_weave.engines.flat_prompt import CHUNK, FlatPrompt, Kinds, attention_row
from halo_weave.engines.remote_server import RemoteServer, RequestRejected
from halo_weave.engines.stop_strings import StopStrings
from halo_weave.engines.templates.messages import ChatMessage, ChatPrompt
from halo_weave.engines.templates.model_template import ModelTemplate, TemplateFacts
from halo_weave.engines.templates.renderer import TemplateRenderer
from halo_weave.errors import AnotherModel, BadInput, EngineError, ServerFailed


class AttentionDecoder:
    """Converts the attention that the server sends to rows over the tokens of the chunks; None if it cannot be used."""

    def __init__(
        self,
        info: ModelInfo,
        capture: Capture | None,
        kinds: Kinds,
        first: int | None,
        faulty: Callable[[], None],
    ) -> None:
        self.info, self.capture, self.kinds, self.first, self.faulty = info, capture, kinds, first, faulty
        self.reply = capture is not None and capture.reply
        looks = capture is not None and (capture.reply or capture.reading)
        self.pairs = capture.chosen_raw(info.layers, info.heads) if capture and looks and capture.raw else []
        # The mean over exactly these pairs is computed here; other means are requested.
        chosen = capture.chosen(info.layers, info.heads) if capture and looks else []
        self.per_layer = bool(self.pairs) or 0 < len(chosen) < info.layers * info.heads
        self.chosen = chosen

    @property
    def wanted(self) -> dict[str, Any]:
        """The request for attention to another Halo Weave."""
        capture = self.capture or Capture(reply=False)
        pairs = self.pairs or (self.chosen if self.per_layer else [])
        return {
            "heads": [list(pair) for pair in pairs] or None,
            "mean": bool(pairs) and set(pairs) != set(self.chosen),
            "reply": capture.reply,
            "reading": capture.reading and self.first is not None,
            "surprisal": capture.reading_surprisal and self.first is not None,
        }

    def read(self, event: Mapping[str, Any], seconds: float) -> PrefillResult:
        rows = event.get("attention") or ()
        said = [i for i in range(self.first or 0, len(self.kinds)) if self.kinds[i] == CHUNK]
        every = range(self.first or 0, len(self.kinds))
        seen: list[AttentionRow] = []
        if isinstance(rows, list) and len(rows) == len(every):
            found = (self.row(rows[i - every.start], i + 1 - len(self.kinds), wanted=True) for i in said)
            seen = [row for row in found if row is not None]
        elif rows:
            self.faulty()
        surprisal = _decode_array(event.get("surprisal"), np.float32, len(every))
        if surprisal is not None and self.first is not None:
            surprisal = surprisal[np.array(said, np.int64) - every.start]
        reused, restored, computed = (
            non_negative_int(event.get(n)) or 0 for n in ("reused", "restored", "computed")
        )
        rebuilt = str(event.get("rebuilt") or "")[:200]
        return PrefillResult(
            reused, restored, computed, bool(event.get("shifted")), rebuilt, seconds, tuple(seen), surprisal
        )

    def row(self, response: Any, made: int, *, wanted: bool = False) -> AttentionRow | None:
        """The row of the token that comes `made` tokens after the prompt."""
        if not (wanted or self.reply):
            return None
        count = len(self.kinds) + made
        kinds = self.kinds[:count] if made <= 0 else np.append(self.kinds, np.zeros(made, np.uint8))
        mean, raw = self._decoded(response, count) if isinstance(response, dict) else (None, None)
        if mean is None or not np.isfinite(mean).all() or mean.min() < 0:
            self.faulty()
            return None
        row = attention_row(mean, np.arange(count, dtype=np.int32), kinds, raw)
        if row is None:
            self.faulty()
        return row

    def _decoded(self, response: Mapping[str, Any], count: int) -> tuple[Floats | None, Floats | None]:
        """(count,) over the whole context, and (pairs, count) if rows of single heads are captured."""
        match response.get("format"):
            case "heads":
                raw = self._heads(response, count)
                mean = _decode_array(response.get("mean"), np.float16, count) if "mean" in response else None
                mean = self._folded(raw) if mean is None and raw is not None else mean
                return mean, raw if self.pairs else None
            case "per_layer":
                shape = self.info.layers, self.info.heads, count
                values = _decode_array(response.get("data"), np.float32, math.prod(shape))
                if values is None:
                    return None, None
                values = values.reshape(shape)
                picked = np.array(self.chosen)
                raw = np.array(self.pairs)
                mean = (
                    self._folded(values[picked[:, 0], picked[:, 1]]) if len(picked) else values.mean((0, 1))
                )
                return mean, values[raw[:, 0], raw[:, 1]] if len(raw) else None
            case _:
                return _decode_array(response.get("data"), np.float32, count), None

    def _heads(self, response: Mapping[str, Any], count: int) -> Floats | None:
        """Complete rows: the share of a head that was not sent is spread evenly."""
        pairs = len(self.pairs or self.chosen)
        shape = response.get("shape")
        if not (isinstance(shape, list) and len(shape) == 2 and shape[0] == pairs and 0 < shape[1] <= count):
            return None
        places = _decode_array(response.get("indices"), np.int32, pairs * shape[1])
        shares = _decode_array(response.get("data"), np.float16, pairs * shape[1])
        if places is None or shares is None or places.min() < 0 or places.max() >= count:
            return None
        at, shares = places.astype(np.int64).reshape(shape), shares.reshape(shape)
        left = np.maximum(0, 1 - shares.sum(axis=1)) / max(1, count - shape[1])
        raw = np.repeat(left[:, None], count, axis=1).astype(np.float32)
        np.put_along_axis(raw, at, shares, axis=1)
        return raw

    def _folded(self, raw: Floats) -> Floats:
        folded = raw.max(axis=0) if self.capture and self.capture.combine == "max" else raw.mean(axis=0)
        return np.asarray(folded, np.float32)


def non_negative_int(value: Any) -> int | None:
    """A non-negative whole number; None: it is none."""
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
    return value if fits else None


def _decode_array(coded: Any, kind: Any, count: int) -> Floats | None:
    """`count` numbers as float32; None: they are missing."""
    if not isinstance(coded, str):
        return None
    try:
        raw = base64.b64decode(coded, validate=True)
    except ValueError:
        return None
    size = np.dtype(kind).newbyteorder("<")
    if len(raw) != count * size.itemsize:
        return None
    values = np.frombuffer(raw, size)
    return np.asarray(values, np.int32 if size.kind == "i" else np.float32)


# What control tokens look like, if the server does not list them.
CONTROL_TOKEN = re.compile(r"<[|｜]?[\w▁ /.-]+[|｜]?>|\[/?[A-Z_]+\]")
TOKENS_PER_REQUEST = 256  # tokens per request for their text


class TokenTexts:
    """Learns the text of tokens from the server, once each, and keeps it in `known`."""

    def __init__(
        self, ask: Callable[[str, str, Any], dict[str, Any]], known: dict[int, bytes], url: str
    ) -> None:
        self._ask, self._known, self._url = ask, known, url

    def tokens(self, text: str) -> Tokens:
        response = self._ask("POST", "/api/v1/tokenize", {"text": text, "add_special_tokens": False})
        try:
            ids = [int(one["token_id"]) for one in response["tokens"]]
            pieces = [str(one["text"]).encode() for one in response["tokens"]]
        except (KeyError, TypeError, ValueError):
            raise ServerFailed(f"{self._url} tells tokens in a form that is not known here.") from None
        if b"".join(pieces) != text.encode():
            raise ServerFailed(f"The tokens that {self._url} tells do not join to the text again.")
        for id, piece in zip(ids, pieces, strict=True):
            # Only delimiters are learned: to other pieces the server may add a character.
            if CONTROL_TOKEN.fullmatch(piece.decode(errors="replace")):
                self._known.setdefault(id, piece)
        return Tokens.of(ids, pieces)

    def learn(self, ids: Sequence[int]) -> None:
        """Learn the text of these tokens."""
        if len(ids) > 1 and self._between:
            ids = [id for id in ids if id not in self._known]
        for first in range(0, len(ids), TOKENS_PER_REQUEST):
            self._known.update(self._apart(ids[first : first + TOKENS_PER_REQUEST]))

    def _apart(self, ids: Sequence[int]) -> dict[int, bytes]:
        """Learn many in one request, with a separator token between them, as far as they can be told apart."""
        if len(ids) == 1 or self._between is None:
            return {id: self._text([id]).encode() for id in ids}
        mark, text = self._between
        parts = self._text([mark, *(one for id in ids for one in (id, mark))]).split(text)
        if len(parts) == len(ids) + 2 and not parts[0] and not parts[-1]:
            return {id: part.encode() for id, part in zip(ids, parts[1:-1], strict=True)}
        half = len(ids) // 2
        return self._apart(ids[:half]) | self._apart(ids[half:])

    @cached_property
    def _between(self) -> tuple[int, str] | None:
        """A token that is rarely part of others, and its text; None if the server has none."""
        for text in ("¶", "§", "\n"):
            try:
                ids = self.tokens(text).ids.tolist()
            except ServerFailed:  # a server may not have this address
                continue
            if len(ids) == 1 and self._text(ids * 3) == text * 3:
                self._known[ids[0]] = text.encode()
                return ids[0], text
        return None

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._ask("POST", "/api/v1/detokenize", {"token_ids": list(ids)}).get("text") or "")


MAX_CONTEXT = 1 << 20
CHATML_END = "<|im_end|>"
OTHER_MODEL = "{} runs {} now. Send it again, and that one answers."
REQUEST_TIMEOUT = 30.0  # seconds for an answer that needs no model


class KoboldEngine(Engine):
    """Engine for a server of the KoboldAI API. What the server does not report is left out; wrong values are counted."""

    def __init__(
        self, url: str, key: str = "", *, client: str = "", context: int | None = None, plain: bool = False
    ) -> None:
        """`client`: identifies this program to the server. `plain`: do not use the extensions of another Halo Weave."""
        self.server = RemoteServer(url.rstrip("/ ").removesuffix("/api/v1").removesuffix("/api"), key)
        self.malformed = 0  # attention rows that could not be used
        self._client = hashlib.sha256(client.encode()).hexdigest()[:16] if client else secrets.token_hex(8)
        self._doubt = False  # whether the server may have loaded another model
        self._known: dict[int, bytes] = {}
        self._plain = TokenTexts(self._asked, self._known, self.server.url)
        self._controls: set[int] = set()
        self.renderer = TemplateRenderer()
        try:
            response = self._asked("GET", "/api/v1/model")
            self._remote_kv: Mapping[str, Any] = {} if plain else self._remote_kv_model()
            self._info = self._describe(response, context)
            self._template = self._learn_template()
        except BaseException:
            self.close()
            raise
        self._info = replace(self._info, template=self._template.origin, template_note=self._template.reason)
        self.calibration = self._heads()
        self._tokens = lru_cache(8192)(self._tokenized)

    def close(self) -> None:
        self.renderer.close()
        self.server.close()

    # What the server tells of its model

    def _asked(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        found = self.server.ask(method, path, body, patience=REQUEST_TIMEOUT)
        if not isinstance(found, dict):
            raise ServerFailed(f"{self.server.url}{path} answers with something that is not known here.")
        return found

    def _remote_kv_model(self) -> Mapping[str, Any]:
        try:
            return self._asked("GET", "/api/remote-kv")
        except RequestRejected as error:
            if error.status in (404, 405, 501):
                return {}
            raise

    def _describe(self, response: Mapping[str, Any], context: int | None) -> ModelInfo:
        room = non_negative_int(response.get("max_context_length"))
        if not room:
            with suppress(EngineError):
                room = non_negative_int(self._asked("GET", "/api/extra/true_max_context_length").get("value"))
        room = min(room or 2048, context or MAX_CONTEXT, MAX_CONTEXT)
        name = str(response.get("model_name") or response.get("result") or "a model")[:200]
        special = response.get("special_tokens")
        known = (
            {n: int(i) for n, i in special.items() if non_negative_int(i)}
            if isinstance(special, dict)
            else {}
        )
        for short in ("bos", "eos", "eot"):
            if (id := non_negative_int(response.get(f"{short}_token_id"))) is not None:
                known.setdefault(short, id)
        able = self._remote_kv.get("abilities")
        able = able if isinstance(able, dict) else {}
        layers, heads = (
            non_negative_int(response.get(n)) or 0 for n in ("num_layers", "num_attention_heads")
        )
        words = self._remote_kv.get("template_words")
        return ModelInfo(
            name=name,
            architecture=str(response.get("architecture") or ""),
            layers=layers,
            heads=heads,
            kv_heads=non_negative_int(response.get("num_key_value_heads")) or heads,
            vocabulary=non_negative_int(response.get("vocab_size")) or 2**31 - 1,
            trained_context=non_negative_int(response.get("max_trained_context")) or room,
            context=room,
            special=known,
            tokenizer=str(self._remote_kv.get("tokenizer") or f"{self.server.url} {name}"),
            template="chatml",
            abilities=Capabilities(
                attention=bool(able.get("attention", True)),
                cuts=bool(able.get("cuts", False)),
                surprisal=bool(able.get("surprisal", False)),
                reading=bool(able.get("reading", False)),
            ),
            parameters=non_negative_int(self._remote_kv.get("parameters")) or 0,
            chat_template=str(self._remote_kv.get("chat_template") or ""),
            template_words={str(k): str(v) for k, v in words.items()} if isinstance(words, dict) else {},
            adds_bos=bool(self._remote_kv.get("adds_bos")),
            wide_layers=tuple(
                i for i in map(non_negative_int, self._remote_kv.get("wide_layers") or ()) if i is not None
            ),
            url=self.server.url,
        )

    def _learn_template(self) -> ModelTemplate:
        source, words = self._info.chat_template, dict(self._info.template_words)
        if not self._remote_kv:
            with suppress(EngineError):  # newer servers have it at this address
                response = self._asked("GET", "/props")
                source = str(response.get("chat_template") or "")
                words = {name: str(response.get(name) or "") for name in ("bos_token", "eos_token")}
        return ModelTemplate(
            source or None,
            self.renderer,
            specials={"bos_token": "", "eos_token": "", **words},
            adds_bos=self._info.adds_bos,
            now=datetime.now(),
        )

    def _heads(self) -> Calibration | None:
        """The retrieval heads that the server found; None: it has not been calibrated yet."""
        if not self._remote_kv:
            return None
        with suppress(TypeError, ValueError, KeyError):
            response = [
                RetrievalHead(
                    int(one["layer"]),
                    int(one["head"]),
                    *(float(one[n]) for n in ("copying", "needles", "weight")),
                )
                for one in self._remote_kv.get("heads") or ()
            ]
            fits = all(0 <= h.layer < self._info.layers and 0 <= h.head < self._info.heads for h in response)
            if fits and all(math.isfinite(h.weight) for h in response):
                return Calibration(tuple(response), str(self._remote_kv.get("attention_source") or ""))
        return Calibration(sentence="The server tells heads that its model does not have.")

    @property
    def facts(self) -> TemplateFacts:
        return self._template.facts

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        effort: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> ChatPrompt:
        return self._template.write(messages, thinking=effort or "auto", tools=tools, now=datetime.now())

    # Tokens

    def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise BadInput("The text holds half of a surrogate pair, which is not a character.") from error
        return self._tokens(text, special) if text else Tokens.of([], [])

    def _tokenized(self, text: str, special: bool) -> Tokens:
        if self._remote_kv:
            return self._with_bytes({"text": text, "special": special})
        tokens = self._plain.tokens(text)
        if special or not self.controls(tokens.ids).any():
            return tokens
        # The server recognises control tokens in any text: in messages they are split so that they are read as text.
        parts = [self._plain.tokens(part) for part in re.split(r"(?<=[<\[|])", text) if part]
        tokens = parts[0]
        for part in parts[1:]:
            tokens = tokens + part
        return tokens

    def _with_bytes(self, asked: Mapping[str, Any]) -> Tokens:
        response = self._asked("POST", "/api/remote-kv/tokens", asked)
        try:
            ids, ends = np.array(response["ids"], np.int32), np.array(response["ends"], np.int32)
            tokens = Tokens(ids, base64.b64decode(response["raw"]), ends)
            self._controls.update(ids[np.array(response["controls"], np.int64)].tolist())
        except (KeyError, TypeError, ValueError, IndexError, OverflowError):
            raise ServerFailed(f"{self.server.url} tells tokens in a form that is not known here.") from None
        self._known.update(zip(ids.tolist(), tokens.pieces(), strict=True))
        return tokens

    def pieces(self, ids: Ids) -> Tokens:
        self._learn(ids)
        return Tokens.of(ids, [self._known[id] for id in ids.tolist()])

    def controls(self, ids: Ids) -> npt.NDArray[np.bool_]:
        if self._remote_kv:
            self._learn(ids[(ids >= 0) & (ids < self._info.vocabulary)])
        return np.array([self._is_control(id) for id in ids.tolist()], np.bool_)

    def _is_control(self, id: int) -> bool:
        if not 0 <= id < self._info.vocabulary or id in self._controls:
            return True
        if self._remote_kv:
            return False
        piece = self._known.get(id, b"").decode(errors="replace")
        special = {one for name, one in self._info.special.items() if name != "nl"}  # a line break is text
        return id in special or CONTROL_TOKEN.fullmatch(piece) is not None

    def _learn(self, ids: Ids) -> None:
        """Learn the bytes of these tokens."""
        new = sorted({id for id in ids.tolist() if id not in self._known})
        if new and not 0 <= new[0] <= new[-1] < self._info.vocabulary:
            raise BadInput("There are tokens that the model does not have.")
        if new and self._remote_kv:
            self._with_bytes({"ids": new})
        elif new:
            self._plain.learn(new)

    # Speaking

    def generate(
        self,
        window: str,
        prompt: Prompt,
        sampling: Sampling,
        capture: Capture | None,
        *,
        mode: Literal["splice", "exact"] = "splice",
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[GenerationEvent]:
        sampling.check()
        flat = FlatPrompt.of(prompt, vocabulary=self._info.vocabulary, context=self._info.context)
        if capture and not self._info.abilities.attention:
            capture = replace(capture, reply=False, reading=False)
        if capture and (capture.reply or capture.reading):
            capture.chosen(self._info.layers, self._info.heads)
        return self._generate(window, flat, prompt, sampling, capture, mode, stopped)

    def _generate(
        self,
        window: str,
        flat: FlatPrompt,
        prompt: Prompt,
        sampling: Sampling,
        capture: Capture | None,
        mode: str,
        stopped: Callable[[], bool],
    ) -> Iterator[GenerationEvent]:
        began = time.perf_counter()
        self._check_model()
        name = secrets.token_hex(8)
        first = None if prompt.read_from is None else flat.index_of(prompt.read_from)
        body: dict[str, Any] = {
            "input_ids": flat.ids.tolist(),
            "max_length": sampling.max_new_tokens,
            "temperature": sampling.temperature,
            "top_p": sampling.top_p,
            "top_k": sampling.top_k,
            "min_p": sampling.min_p,
            "rep_pen": sampling.repeat_penalty,
            "sampler_seed": -1 if sampling.seed is None else sampling.seed,
            "request_id": name,
            "genkey": name,
        }
        seeing = AttentionDecoder(self._info, capture, flat.kinds, first, self._note_malformed)
        if self._remote_kv:
            body["remote_kv"] = {
                "window": f"{self._client} {window}",
                "tokenizer": self._info.tokenizer,
                "labels": flat.labels.tolist(),
                "next_label": prompt.next_label,
                "read_from": first,
                "splice": mode == "splice",
                "grammar": sampling.grammar,
                **seeing.wanted,
            }
        else:
            form = "per_layer" if seeing.per_layer else "aggregated"
            body |= {"output_attentions": seeing.reply, "attention_format": form, "grammar": sampling.grammar}
            yield PrefillPlanned(0, 0, len(flat))
            if capture and capture.reading and not capture.reply:
                yield from self._read_one_by_one(body, flat, first, seeing, began)
                return
        events = self.server.stream("/api/extra/generate/stream", body, stopped)
        finished = False
        try:
            for event in self._followed(events, flat, prompt.next_label, sampling, seeing, stopped, began):
                finished = isinstance(event, GenerationEnd) and event.reason != "abort"
                yield event
        except EngineError as error:
            self._doubt = True  # it may have been restarted with another model
            if isinstance(error, RequestRejected) and error.status == 409:  # a Halo Weave reports it itself
                raise AnotherModel(OTHER_MODEL.format(self.server.url, "another model")) from None
            raise
        finally:
            events.close()
            if not finished:
                with suppress(EngineError):
                    self.server.ask(
                        "POST", "/api/extra/abort", {"request_id": name, "genkey": name}, patience=5.0
                    )

    def _note_malformed(self) -> None:
        self.malformed += 1

    def _check_model(self) -> None:
        """Check that the server still runs the same model: another one would read other text from the tokens. Another
        Halo Weave checks this itself."""
        if self._doubt or not self._remote_kv:
            response = self._asked("GET", "/api/v1/model")
            name = str(response.get("model_name") or response.get("result") or "")
            if name[:200] != self._info.name:
                raise AnotherModel(OTHER_MODEL.format(self.server.url, name))
            self._doubt = False

    def _followed(
        self,
        events: Iterator[dict[str, Any]],
        flat: FlatPrompt,
        label: int,
        sampling: Sampling,
        seeing: AttentionDecoder,
        stopped: Callable[[], bool],
        began: float,
    ) -> Iterator[GenerationEvent]:
        # If ChatML is the substitute template, its end of a turn may be no token of the model: then it is written as text.
        ends = (CHATML_END,) if self._info.template == "chatml" else ()
        stops = StopStrings((*sampling.stop, *ends))
        made = given = 0
        read = False
        reason: StopReason | None = None
        last: AttentionRow | None = None
        for event in events:
            kind = event.get("type")
            if kind == "planned" and self._remote_kv:
                yield PrefillPlanned(
                    *(non_negative_int(event.get(n)) or 0 for n in ("reused", "restored", "computed"))
                )
            elif kind == "read" and self._remote_kv:
                read = True
                yield seeing.read(event, time.perf_counter() - began)
            elif kind == "token":
                if not read:
                    read = True
                    yield PrefillResult(0, 0, len(flat), False, "", time.perf_counter() - began)
                step = self._step(event, label, seeing.row(event.get("attention"), made))
                made, label = made + 1, label + 1
                out, met = stops.feed(step)
                given += len(out)
                yield from out
                full = len(flat) + made >= self._info.context
                reason = "stop" if met else "length" if made >= sampling.max_new_tokens else None
                reason = reason or ("context" if full else None)
                if reason:
                    break
            elif kind == "done":
                response = event.get("finish_reason")
                reason = cast(StopReason, response) if response in get_args(StopReason) else "eos"
                last = seeing.row(event["attention"], made) if event.get("attention") else None
                break
            elif kind == "error":
                raise ServerFailed(f"{self.server.url} says: {self.server.told(event.get('message'))}")
        if reason is None:
            if not stopped():
                raise ServerFailed(
                    f"{self.server.url} broke off in the middle of its answer. What it said so far is kept; try again."
                )
            reason = "abort"
        rest = stops.rest()
        yield from rest
        yield GenerationEnd(reason, given + len(rest), time.perf_counter() - began, last)

    def _step(self, event: Mapping[str, Any], label: int, row: AttentionRow | None) -> Step:
        try:
            id, text = int(event["token"]["token_id"]), str(event["token"].get("text") or "")
            piece = base64.b64decode(event["raw"]) if self._remote_kv else text.encode()
            if not 0 <= id < self._info.vocabulary:
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ServerFailed(f"{self.server.url} sends a token in a form that is not known here.") from None
        self._known.setdefault(id, piece)
        surprisal = event.get("surprisal")
        known = isinstance(surprisal, int | float) and math.isfinite(surprisal)
        return Step(id, label, piece, float(surprisal) if known else math.nan, row)  # type: ignore[arg-type]

    def _read_one_by_one(
        self,
        body: dict[str, Any],
        flat: FlatPrompt,
        first: int | None,
        seeing: AttentionDecoder,
        began: float,
    ) -> Iterator[GenerationEvent]:
        """Rows of the prompt from a server that only has rows of generated tokens: one prompt for each. Used to
        calibrate."""
        rows = []
        for i in range(len(flat) if first is None else first, len(flat)):
            if flat.kinds[i] != CHUNK:
                continue
            asked = {
                **body,
                "input_ids": flat.ids[: i + 1].tolist(),
                "max_length": 1,
                "output_attentions": True,
            }
            asked |= {"attention_format": "per_layer", "request_id": secrets.token_hex(8)}
            asked["genkey"] = asked["request_id"]
            with closing(self.server.stream("/api/extra/generate/stream", asked, lambda: False)) as events:
                response = next((event for event in events if event.get("type") == "token"), {})
            row = seeing.row(response.get("attention"), i + 1 - len(flat), wanted=True)
            if row is None:  # later ids would stand for other text
                raise ServerFailed(f"{self.server.url} shows attention that cannot be used.")
            rows.append(row)
        yield PrefillResult(0, 0, len(flat), False, "", time.perf_counter() - began, tuple(rows))
        yield GenerationEnd("length", 0, time.perf_counter() - began)

    def forget(self, window: str) -> None:
        if self._remote_kv:
            with suppress(EngineError):
                self._asked("POST", "/api/remote-kv/forget", {"window": f"{self._client} {window}"})

    def erase(self, spans: Sequence[tuple[int, int]], windows: Collection[str] = ()) -> None:
        if self._remote_kv and spans:
            names = [f"{self._client} {window}" for window in windows]
            asked = {"spans": [list(span) for span in spans], "windows": names}
            with suppress(EngineError):
                self._asked("POST", "/api/remote-kv/forget", asked)
