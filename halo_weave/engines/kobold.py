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
    """Converts the attention that the server sends to rows over the chunk tokens. A malformed row is reported and skipped."""

    def __init__(
        self,
        info: ModelInfo,
        capture: Capture | None,
        kinds: Kinds,
        first: int | None,
        note_malformed: Callable[[], None],
    ) -> None:
        self.info, self.capture, self.kinds, self.first, self.note_malformed = (
            info,
            capture,
            kinds,
            first,
            note_malformed,
        )
        self.reply = capture is not None and capture.reply
        captures_rows = capture is not None and (capture.reply or capture.reading)
        self.pairs = (
            capture.chosen_raw(info.layers, info.heads) if capture and captures_rows and capture.raw else []
        )
        # If the combined row is over exactly these pairs, it is computed here; otherwise the server is asked for it.
        chosen = capture.chosen(info.layers, info.heads) if capture and captures_rows else []
        self.per_layer = bool(self.pairs) or 0 < len(chosen) < info.layers * info.heads
        self.chosen = chosen

    @property
    def request_fields(self) -> dict[str, Any]:
        """The fields of a request to another Halo Weave that ask for attention."""
        capture = self.capture or Capture(reply=False)
        pairs = self.pairs or (self.chosen if self.per_layer else [])
        return {
            "heads": [list(pair) for pair in pairs] or None,
            "mean": bool(pairs) and set(pairs) != set(self.chosen),
            "reply": capture.reply,
            "reading": capture.reading and self.first is not None,
            "surprisal": capture.reading_surprisal and self.first is not None,
        }

    def prefill_result(self, event: Mapping[str, Any], seconds: float) -> PrefillResult:
        rows = event.get("attention") or ()
        observed = range(self.first or 0, len(self.kinds))
        chunk_tokens = [i for i in observed if self.kinds[i] == CHUNK]
        decoded: list[AttentionRow] = []
        if isinstance(rows, list) and len(rows) == len(observed):
            candidates = (
                self.row(rows[i - observed.start], i + 1 - len(self.kinds), required=True)
                for i in chunk_tokens
            )
            decoded = [row for row in candidates if row is not None]
        elif rows:
            self.note_malformed()
        surprisal = _decode_array(event.get("surprisal"), np.float32, len(observed))
        if surprisal is not None and self.first is not None:
            surprisal = surprisal[np.array(chunk_tokens, np.int64) - observed.start]
        reused, restored, computed = (
            non_negative_int(event.get(n)) or 0 for n in ("reused", "restored", "computed")
        )
        rebuilt = str(event.get("rebuilt") or "")[:200]
        return PrefillResult(
            reused,
            restored,
            computed,
            bool(event.get("shifted")),
            rebuilt,
            seconds,
            tuple(decoded),
            surprisal,
        )

    def row(self, response: Any, generated: int, *, required: bool = False) -> AttentionRow | None:
        """The row of the token `generated` tokens after the prompt. `required`: even if rows of the reply are not captured."""
        if not (required or self.reply):
            return None
        count = len(self.kinds) + generated
        kinds = self.kinds[:count] if generated <= 0 else np.append(self.kinds, np.zeros(generated, np.uint8))
        mean, raw = self._decoded(response, count) if isinstance(response, dict) else (None, None)
        if mean is None or not np.isfinite(mean).all() or mean.min() < 0:
            self.note_malformed()
            return None
        row = attention_row(mean, np.arange(count, dtype=np.int32), kinds, raw)
        if row is None:
            self.note_malformed()
        return row

    def _decoded(self, response: Mapping[str, Any], count: int) -> tuple[Floats | None, Floats | None]:
        """The combined row, (count,), and the raw rows, (pairs, count), if raw rows are captured."""
        match response.get("format"):
            case "heads":
                raw = self._decode_heads(response, count)
                mean = _decode_array(response.get("mean"), np.float16, count) if "mean" in response else None
                mean = self._combined(raw) if mean is None and raw is not None else mean
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
                    self._combined(values[picked[:, 0], picked[:, 1]]) if len(picked) else values.mean((0, 1))
                )
                return mean, values[raw[:, 0], raw[:, 1]] if len(raw) else None
            case _:
                return _decode_array(response.get("data"), np.float32, count), None

    def _decode_heads(self, response: Mapping[str, Any], count: int) -> Floats | None:
        """(pairs, count): the server sends only the largest values of a row. The rest of the sum is spread evenly."""
        pairs = len(self.pairs or self.chosen)
        shape = response.get("shape")
        if not (isinstance(shape, list) and len(shape) == 2 and shape[0] == pairs and 0 < shape[1] <= count):
            return None
        indices = _decode_array(response.get("indices"), np.int32, pairs * shape[1])
        shares = _decode_array(response.get("data"), np.float16, pairs * shape[1])
        if indices is None or shares is None or indices.min() < 0 or indices.max() >= count:
            return None
        at, shares = indices.astype(np.int64).reshape(shape), shares.reshape(shape)
        left = np.maximum(0, 1 - shares.sum(axis=1)) / max(1, count - shape[1])
        raw = np.repeat(left[:, None], count, axis=1).astype(np.float32)
        np.put_along_axis(raw, at, shares, axis=1)
        return raw

    def _combined(self, raw: Floats) -> Floats:
        folded = raw.max(axis=0) if self.capture and self.capture.combine == "max" else raw.mean(axis=0)
        return np.asarray(folded, np.float32)


def non_negative_int(value: Any) -> int | None:
    """The value if it is a non-negative integer, else None."""
    fits = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 2**53
    return value if fits else None


def _decode_array(coded: Any, kind: Any, count: int) -> Floats | None:
    """`count` numbers from base64; None if they are missing or malformed."""
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


# The form of control tokens, used if the server does not list them.
CONTROL_TOKEN = re.compile(r"<[|｜]?[\w▁ /.-]+[|｜]?>|\[/?[A-Z_]+\]")
TOKENS_PER_REQUEST = 256


class TokenTexts:
    """Requests the text of tokens from the server, once each, and stores it in `known`."""

    def __init__(
        self, request: Callable[[str, str, Any], dict[str, Any]], known: dict[int, bytes], url: str
    ) -> None:
        self._request, self._known, self._url = request, known, url

    def tokens(self, text: str) -> Tokens:
        response = self._request("POST", "/api/v1/tokenize", {"text": text, "add_special_tokens": False})
        try:
            ids = [int(token["token_id"]) for token in response["tokens"]]
            pieces = [str(token["text"]).encode() for token in response["tokens"]]
        except (KeyError, TypeError, ValueError):
            raise ServerFailed(f"{self._url} sends tokens in an unknown format.") from None
        if b"".join(pieces) != text.encode():
            raise ServerFailed(f"The tokens that {self._url} sends do not join to the text.")
        for id, piece in zip(ids, pieces, strict=True):
            # Only the text of control tokens is reliable here: the server may add a space to others.
            if CONTROL_TOKEN.fullmatch(piece.decode(errors="replace")):
                self._known.setdefault(id, piece)
        return Tokens.of(ids, pieces)

    def learn(self, ids: Sequence[int]) -> None:
        """Request the text of these tokens."""
        if len(ids) > 1 and self._separator:
            ids = [id for id in ids if id not in self._known]
        for first in range(0, len(ids), TOKENS_PER_REQUEST):
            self._known.update(self._texts_of(ids[first : first + TOKENS_PER_REQUEST]))

    def _texts_of(self, ids: Sequence[int]) -> dict[int, bytes]:
        """The text of several tokens, in one request with a separator token between them. Ambiguous results are split up."""
        if len(ids) == 1 or self._separator is None:
            return {id: self._text([id]).encode() for id in ids}
        separator, text = self._separator
        parts = self._text([separator, *(token for id in ids for token in (id, separator))]).split(text)
        if len(parts) == len(ids) + 2 and not parts[0] and not parts[-1]:
            return {id: part.encode() for id, part in zip(ids, parts[1:-1], strict=True)}
        half = len(ids) // 2
        return self._texts_of(ids[:half]) | self._texts_of(ids[half:])

    @cached_property
    def _separator(self) -> tuple[int, str] | None:
        """A token that is rarely part of others, and its text; None if there is no such token."""
        for text in ("¶", "§", "\n"):
            try:
                ids = self.tokens(text).ids.tolist()
            except ServerFailed:  # the server may not have this endpoint
                continue
            if len(ids) == 1 and self._text(ids * 3) == text * 3:
                self._known[ids[0]] = text.encode()
                return ids[0], text
        return None

    def _text(self, ids: Sequence[int]) -> str:
        return str(self._request("POST", "/api/v1/detokenize", {"token_ids": list(ids)}).get("text") or "")


MAX_CONTEXT = 1 << 20
CHATML_END = "<|im_end|>"
OTHER_MODEL = "{} runs {} now. Send the message again to use it."
REQUEST_TIMEOUT = 30.0  # seconds for a request that does not run the model


class KoboldEngine(Engine):
    """Engine for a server of the KoboldAI API. Attention that the server does not send is missing; malformed rows are counted."""

    def __init__(
        self, url: str, key: str = "", *, client: str = "", context: int | None = None, plain: bool = False
    ) -> None:
        """`client`: identifies this program to the server. `plain`: do not use the extensions of another Halo Weave."""
        self.server = RemoteServer(url.rstrip("/ ").removesuffix("/api/v1").removesuffix("/api"), key)
        self.malformed = 0  # attention rows that could not be used
        self._client = hashlib.sha256(client.encode()).hexdigest()[:16] if client else secrets.token_hex(8)
        self._model_may_have_changed = False  # then the model's name is checked before the next request
        self._known: dict[int, bytes] = {}
        self._token_texts = TokenTexts(self._request, self._known, self.server.url)
        self._controls: set[int] = set()
        self.renderer = TemplateRenderer()
        try:
            response = self._request("GET", "/api/v1/model")
            self._remote_kv: Mapping[str, Any] = {} if plain else self._remote_kv_model()
            self._info = self._describe(response, context)
            self._template = self._load_template()
        except BaseException:
            self.close()
            raise
        self._info = replace(self._info, template=self._template.origin, template_note=self._template.reason)
        self.calibration = self._load_heads()
        self._tokens = lru_cache(8192)(self._tokenize)

    def close(self) -> None:
        self.renderer.close()
        self.server.close()

    # Metadata of the server's model

    def _request(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        response = self.server.request(method, path, body, timeout=REQUEST_TIMEOUT)
        if not isinstance(response, dict):
            raise ServerFailed(f"{self.server.url}{path} answers in an unknown format.")
        return response

    def _remote_kv_model(self) -> Mapping[str, Any]:
        try:
            return self._request("GET", "/api/remote-kv")
        except RequestRejected as error:
            if error.status in (404, 405, 501):
                return {}
            raise

    def _describe(self, response: Mapping[str, Any], context: int | None) -> ModelInfo:
        room = non_negative_int(response.get("max_context_length"))
        if not room:
            with suppress(EngineError):
                room = non_negative_int(
                    self._request("GET", "/api/extra/true_max_context_length").get("value")
                )
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
        abilities = self._remote_kv.get("abilities")
        abilities = abilities if isinstance(abilities, dict) else {}
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
                attention=bool(abilities.get("attention", True)),
                cuts=bool(abilities.get("cuts", False)),
                surprisal=bool(abilities.get("surprisal", False)),
                reading=bool(abilities.get("reading", False)),
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

    def _load_template(self) -> ModelTemplate:
        source, words = self._info.chat_template, dict(self._info.template_words)
        if not self._remote_kv:
            with suppress(EngineError):  # newer servers have this endpoint
                response = self._request("GET", "/props")
                source = str(response.get("chat_template") or "")
                words = {name: str(response.get(name) or "") for name in ("bos_token", "eos_token")}
        return ModelTemplate(
            source or None,
            self.renderer,
            specials={"bos_token": "", "eos_token": "", **words},
            adds_bos=self._info.adds_bos,
            now=datetime.now(),
        )

    def _load_heads(self) -> Calibration | None:
        """The retrieval heads that the server found; None: it has not been calibrated yet."""
        if not self._remote_kv:
            return None
        with suppress(TypeError, ValueError, KeyError):
            heads = [
                RetrievalHead(
                    int(entry["layer"]),
                    int(entry["head"]),
                    *(float(entry[n]) for n in ("copying", "needles", "weight")),
                )
                for entry in self._remote_kv.get("heads") or ()
            ]
            fits = all(0 <= h.layer < self._info.layers and 0 <= h.head < self._info.heads for h in heads)
            if fits and all(math.isfinite(h.weight) for h in heads):
                return Calibration(tuple(heads), str(self._remote_kv.get("attention_source") or ""))
        return Calibration(sentence="The server lists attention heads that its model does not have.")

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

    def _tokenize(self, text: str, special: bool) -> Tokens:
        if self._remote_kv:
            return self._with_bytes({"text": text, "special": special})
        tokens = self._token_texts.tokens(text)
        if special or not self.controls(tokens.ids).any():
            return tokens
        # The server always recognises control tokens. In messages they are split, so that they are plain text.
        parts = [self._token_texts.tokens(part) for part in re.split(r"(?<=[<\[|])", text) if part]
        tokens = parts[0]
        for part in parts[1:]:
            tokens = tokens + part
        return tokens

    def _with_bytes(self, body: Mapping[str, Any]) -> Tokens:
        """Tokens with their exact bytes, from another Halo Weave. `body`: a text or token ids."""
        response = self._request("POST", "/api/remote-kv/tokens", body)
        try:
            ids, ends = np.array(response["ids"], np.int32), np.array(response["ends"], np.int32)
            tokens = Tokens(ids, base64.b64decode(response["raw"]), ends)
            self._controls.update(ids[np.array(response["controls"], np.int64)].tolist())
        except (KeyError, TypeError, ValueError, IndexError, OverflowError):
            raise ServerFailed(f"{self.server.url} sends tokens in an unknown format.") from None
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
        special = {
            token for name, token in self._info.special.items() if name != "nl"
        }  # a line break is text
        return id in special or CONTROL_TOKEN.fullmatch(piece) is not None

    def _learn(self, ids: Ids) -> None:
        """Request the bytes of these tokens."""
        new = sorted({id for id in ids.tolist() if id not in self._known})
        if new and not 0 <= new[0] <= new[-1] < self._info.vocabulary:
            raise BadInput("There are token ids that the model does not have.")
        if new and self._remote_kv:
            self._with_bytes({"ids": new})
        elif new:
            self._token_texts.learn(new)

    # Generation

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
        decoder = AttentionDecoder(self._info, capture, flat.kinds, first, self._note_malformed)
        if self._remote_kv:
            body["remote_kv"] = {
                "window": f"{self._client} {window}",
                "tokenizer": self._info.tokenizer,
                "labels": flat.labels.tolist(),
                "next_label": prompt.next_label,
                "read_from": first,
                "splice": mode == "splice",
                "grammar": sampling.grammar,
                **({"temporary": True} if prompt.temporary else {}),
                **decoder.request_fields,
            }
        else:
            format = "per_layer" if decoder.per_layer else "aggregated"
            body |= {
                "output_attentions": decoder.reply,
                "attention_format": format,
                "grammar": sampling.grammar,
            }
            yield PrefillPlanned(0, 0, len(flat))
            if capture and capture.reading and not capture.reply:
                yield from self._capture_prompt_one_by_one(body, flat, first, decoder, began)
                return
        events = self.server.stream("/api/extra/generate/stream", body, stopped)
        finished = False
        try:
            for event in self._generation_events(
                events, flat, prompt.next_label, sampling, decoder, stopped, began
            ):
                finished = isinstance(event, GenerationEnd) and event.reason != "abort"
                yield event
        except EngineError as error:
            self._model_may_have_changed = True  # it may have been restarted with another model
            if isinstance(error, RequestRejected) and error.status == 409:  # a Halo Weave reports it itself
                raise AnotherModel(OTHER_MODEL.format(self.server.url, "another model")) from None
            raise
        finally:
            events.close()
            if not finished:
                with suppress(EngineError):
                    self.server.request(
                        "POST", "/api/extra/abort", {"request_id": name, "genkey": name}, timeout=5.0
                    )

    def _note_malformed(self) -> None:
        self.malformed += 1

    def _check_model(self) -> None:
        """Check that the server still runs the same model, since token ids of another one stand for other text.

        Another Halo Weave checks this itself, except after an error.
        """
        if self._model_may_have_changed or not self._remote_kv:
            response = self._request("GET", "/api/v1/model")
            name = str(response.get("model_name") or response.get("result") or "")
            if name[:200] != self._info.name:
                raise AnotherModel(OTHER_MODEL.format(self.server.url, name))
            self._model_may_have_changed = False

    def _generation_events(
        self,
        events: Iterator[dict[str, Any]],
        flat: FlatPrompt,
        label: int,
        sampling: Sampling,
        decoder: AttentionDecoder,
        stopped: Callable[[], bool],
        began: float,
    ) -> Iterator[GenerationEvent]:
        # If ChatML is the substitute template, its end of a turn may be no token of the model: then it is written as text.
        ends = (CHATML_END,) if self._info.template == "chatml" else ()
        stops = StopStrings((*sampling.stop, *ends))
        generated = released = 0
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
                yield decoder.prefill_result(event, time.perf_counter() - began)
            elif kind == "token":
                if not read:
                    read = True
                    yield PrefillResult(0, 0, len(flat), False, "", time.perf_counter() - began)
                step = self._step(event, label, decoder.row(event.get("attention"), generated))
                generated, label = generated + 1, label + 1
                out, found_stop = stops.feed(step)
                released += len(out)
                yield from out
                full = len(flat) + generated >= self._info.context
                reason = "stop" if found_stop else "length" if generated >= sampling.max_new_tokens else None
                reason = reason or ("context" if full else None)
                if reason:
                    break
            elif kind == "done":
                response = event.get("finish_reason")
                reason = cast(StopReason, response) if response in get_args(StopReason) else "eos"
                last = decoder.row(event["attention"], generated) if event.get("attention") else None
                break
            elif kind == "error":
                raise ServerFailed(
                    f"{self.server.url} reports: {self.server.clean_message(event.get('message'))}"
                )
        if reason is None:
            if not stopped():
                raise ServerFailed(
                    f"The connection to {self.server.url} was lost during the reply. The reply so far is kept; try again."
                )
            reason = "abort"
        rest = stops.rest()
        yield from rest
        yield GenerationEnd(reason, released + len(rest), time.perf_counter() - began, last)

    def _step(self, event: Mapping[str, Any], label: int, row: AttentionRow | None) -> Step:
        try:
            id, text = int(event["token"]["token_id"]), str(event["token"].get("text") or "")
            piece = base64.b64decode(event["raw"]) if self._remote_kv else text.encode()
            if not 0 <= id < self._info.vocabulary:
                raise ValueError
        except (KeyError, TypeError, ValueError, AttributeError):
            raise ServerFailed(f"{self.server.url} sends a token in an unknown format.") from None
        self._known.setdefault(id, piece)
        surprisal = event.get("surprisal")
        known = isinstance(surprisal, int | float) and math.isfinite(surprisal)
        return Step(id, label, piece, float(surprisal) if known else math.nan, row)  # type: ignore[arg-type]

    def _capture_prompt_one_by_one(
        self,
        body: dict[str, Any],
        flat: FlatPrompt,
        first: int | None,
        decoder: AttentionDecoder,
        began: float,
    ) -> Iterator[GenerationEvent]:
        """Attention rows of the prompt's tokens, from a server that sends rows of generated tokens only.

        One request for each token. Used for calibration.
        """
        rows = []
        for i in range(len(flat) if first is None else first, len(flat)):
            if flat.kinds[i] != CHUNK:
                continue
            single = {
                **body,
                "input_ids": flat.ids[: i + 1].tolist(),
                "max_length": 1,
                "output_attentions": True,
            }
            single |= {"attention_format": "per_layer", "request_id": secrets.token_hex(8)}
            single["genkey"] = single["request_id"]
            with closing(self.server.stream("/api/extra/generate/stream", single, lambda: False)) as events:
                response = next((event for event in events if event.get("type") == "token"), {})
            row = decoder.row(response.get("attention"), i + 1 - len(flat), required=True)
            if row is None:  # later ids would stand for other text
                raise ServerFailed(f"{self.server.url} sends attention that cannot be used.")
            rows.append(row)
        yield PrefillResult(0, 0, len(flat), False, "", time.perf_counter() - began, tuple(rows))
        yield GenerationEnd("length", 0, time.perf_counter() - began)

    def forget(self, window: str) -> None:
        if self._remote_kv:
            with suppress(EngineError):
                self._request("POST", "/api/remote-kv/forget", {"window": f"{self._client} {window}"})

    def erase(self, spans: Sequence[tuple[int, int]], windows: Collection[str] = ()) -> None:
        if self._remote_kv and spans:
            names = [f"{self._client} {window}" for window in windows]
            body = {"spans": [list(span) for span in spans], "windows": names}
            with suppress(EngineError):
                self._request("POST", "/api/remote-kv/forget", body)
