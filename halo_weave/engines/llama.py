"""The engine: any GGUF model on llama.cpp in process, its attention, and a KV cache that survives forgetting."""

from __future__ import annotations

import atexit
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Literal, Self

import numpy as np

from halo_weave.core.tokens import Ids, Role, Tokens
from halo_weave.engines import capture as seeing
from halo_weave.engines.cache import NEVER, Asked, Cache, Grave, Seen, Shape
from halo_weave.engines.cells import Plan, choose
from halo_weave.engines.prompts import Written, write
from halo_weave.engines.sampling import Sampler
from halo_weave.engines.stops import Stops
from halo_weave.engines.template import CHATML, Frames, TemplateUnusable, frames_of
from halo_weave.engines.turns import Turns
from halo_weave.errors import BadInput, EngineError, ModelUnusable
from halo_weave.llama import abi, library
from halo_weave.llama.footprint import KvType, cache_bytes
from halo_weave.llama.header import Header, read_header
from halo_weave.llama.model import Model, cores
from halo_weave.llama.names import human_name
from halo_weave.ports import Capture, Done, ModelInfo, Planned, Prompt, Read, Reason, Sampling, Step

Event = Planned | Read | Step | Done
Mode = Literal["splice", "exact"]

BATCH, BATCH_ON_GPU = 64, 512  # tokens per decode while a prompt is read
GROWTH = 2048  # a context grows by so many cells
SPARE = 256  # cells beyond prompt and reply, for what returns in the middle


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine may use."""

    context: int = 8192  # most tokens live in one window, if the model was trained for as many
    memory_bytes: int = 2 << 30  # for the KV caches of all windows; the least recently used is dropped first
    graveyard_bytes: int = 256 << 20  # for what sleeps in one window, in main memory
    threads: int | None = None  # None: one per processor
    gpu_layers: int = -1  # all, if there is a GPU
    kv_type: KvType = "f16"  # how keys are stored; values take 16 bits at least, since attention is read
    batch: int | None = None  # tokens per decode while a prompt is read


class LlamaEngine:
    """Implements `ports.Engine`. One thread does the work; the windows take turns."""

    def __init__(
        self, path: Path, *, limits: Limits | None = None, lib: str | None = None, in_c: bool | None = None
    ) -> None:
        """`in_c` chooses the attention callback; by default C if it was built."""
        limits = limits or Limits()
        header = read_header(path)
        if header.embeds:
            raise ModelUnusable(
                f"{path} is an embedding model. Use it with --embedder, and a chat model here."
            )
        self.model = Model(path, header, library.load(lib), gpu_layers=limits.gpu_layers)
        try:
            check_writes(self.model)
            self.limits = limits
            self.template: Literal["model", "chatml"]
            self.frames, self.template = frames_for(self.model, header)
            trained = self.model.trained_context or limits.context
            self.shape = Shape(
                threads=limits.threads or cores(),
                batch=limits.batch or (BATCH_ON_GPU if self.model.c.llama_supports_gpu_offload() else BATCH),
                limit=trained,
                cell_bytes=max(1, cache_bytes(header, limits.kv_type)),
                kv_type=limits.kv_type,
                graveyard_bytes=limits.graveyard_bytes,
                eye_in_c=seeing.is_native() if in_c is None else in_c,
            )
            self._info = self._describe(header, min(trained, limits.context))
        except BaseException:
            self.model.close()
            raise
        self.caches: OrderedDict[str, Cache] = OrderedDict()
        self.active: set[str] = set()
        self.doomed: set[str] = set()
        self.cuts = not has_state(self.model)
        self.blind = False  # this model's rows do not fit its cells
        self.misfits = 0  # how often the map of cells did not fit what the model looked at
        self.turns: Turns[Event] = Turns("halo-weave engine")
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        atexit.unregister(self.close)
        self.turns.close()
        for cache in self.caches.values():
            cache.close()
        self.caches.clear()
        self.model.close()

    @property
    def info(self) -> ModelInfo:
        return self._info

    def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        return self.model.tokenize(text, special=special)

    def pieces(self, ids: Ids) -> Tokens:
        return self.model.pieces(ids)

    def frame(self, role: Role, *, first: bool) -> tuple[Tokens, Tokens]:
        frame = self.frames.frame(role, first=first)
        return self.tokenize(frame.header, special=True), self.tokenize(frame.footer, special=True)

    def generate(
        self,
        window: str,
        prompt: Prompt,
        sampling: Sampling,
        capture: Capture | None,
        *,
        mode: Mode = "splice",
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[Event]:
        return self.turns.run(self._turn(window, prompt, sampling, capture, mode, stopped), window)

    def forget(self, window: str) -> None:
        """A window that is generating is dropped when it has finished."""

        def drop() -> Generator[Event | None]:
            if window in self.active:
                self.doomed.add(window)
            else:
                self._drop(window)
            return
            yield

        with contextlib.suppress(EngineError):  # a closed engine has forgotten everything
            self.turns.post(drop(), f"forget {window}")

    # Everything below runs on the engine's thread, but for _describe.

    def _turn(
        self,
        window: str,
        prompt: Prompt,
        sampling: Sampling,
        capture: Capture | None,
        mode: Mode,
        stopped: Callable[[], bool],
    ) -> Generator[Event | None]:
        capture = None if self.blind else capture
        written = write(prompt, self.model.size)
        if len(written) >= self.info.context:
            raise BadInput(
                f"The prompt has {len(written)} tokens, and this model takes fewer than {self.info.context}. "
                "Set a smaller budget for the window, or a larger context for the engine."
            )
        self.active.add(window)
        try:
            began = time.perf_counter()
            cache = self._cache(window, len(written) + sampling.max_new_tokens, sees=capture is not None)
            if cache.eye:
                cache.eye.choose(capture)
            with Sampler(self.model, sampling, written.ids) as sampler:
                reading = self._read(cache, written, prompt, sampling, capture, mode)
                read = None
                for read in reading:
                    if read is None and stopped():
                        reading.close()
                        yield Done("abort", 0, time.perf_counter() - began)
                        return
                    yield read
                yield from self._reply(cache, sampler, sampling, prompt.next_label, capture, stopped, began)
        finally:
            self.active.discard(window)
            if window in self.doomed:
                self.doomed.discard(window)
                self._drop(window)

    def _read(
        self,
        cache: Cache,
        written: Written,
        prompt: Prompt,
        sampling: Sampling,
        capture: Capture | None,
        mode: Mode,
    ) -> Generator[Planned | Read | None]:
        """Bring the prompt into the cache with the least work; read it anew if the result does not fit."""
        began = time.perf_counter()
        asked, anew_from = what_to_look_at(written, prompt, capture)
        mode = "exact" if self.info.kv == "exact" else mode
        rebuilt = cache.doubt or ("" if cache.settled else "it was stopped before a shift was done")
        while True:
            if rebuilt:
                cache.reset()
            graves = cache.usable(written) if mode == "splice" and not rebuilt else []
            plan = self._plan(cache, graves, written, sampling, anew_from, mode)
            if len(plan.removed) and not self.cuts:
                cache.reset()
                plan = self._plan(cache, graves, written, sampling, anew_from, mode)
            yield Planned(plan.reused, plan.restored, plan.computed)
            seen = Seen()
            keep = mode == "splice" and not rebuilt
            for _ in cache.carry_out(plan, graves, written, asked, seen, keep_asleep=keep):
                yield None
            misfit = seen.misfits or (asked.last and cache.last_rows is not None and cache.row() is None)
            if not misfit:
                break
            self.misfits += 1
            if rebuilt:  # it does not even fit a cache that was just made: this model cannot be watched
                self.blind = True
                break
            rebuilt = "the map of its cells did not fit"
        yield report(plan, seen, capture, rebuilt, time.perf_counter() - began)

    def _plan(
        self,
        cache: Cache,
        graves: list[Grave],
        written: Written,
        sampling: Sampling,
        anew_from: int,
        mode: Mode,
    ) -> Plan:
        return choose(
            cache.live,
            [grave.held for grave in graves],
            written.labels,
            written.ids,
            limit=self.shape.limit,
            reserve=min(sampling.max_new_tokens, SPARE),
            anew_from=anew_from,
            mode=mode,
            clean=cache.clean,
        )

    def _reply(
        self,
        cache: Cache,
        sampler: Sampler,
        sampling: Sampling,
        label: int,
        capture: Capture | None,
        stopped: Callable[[], bool],
        began: float,
    ) -> Generator[Event | None]:
        look = capture is not None and capture.reply
        stops = Stops(sampling.stop)
        made = given = 0
        reason: Reason | None = None
        while reason is None:
            if stopped():
                reason = "abort"
                break
            row = cache.row() if look else None
            if look and row is None and cache.last_rows is not None:
                self.misfits += 1
                cache.doubt = "the map of its cells did not fit"
            id = sampler.sample(cache.context)
            if self.model.ends_generation(id):
                reason = "eos"
                break
            step = Step(id, label, self.model.piece(id), cache.surprisal(-1, id), row)
            made += 1
            out, met = stops.feed(step)
            given += len(out)
            yield from out
            if met:
                reason = "stop"
            elif made == sampling.max_new_tokens:
                reason = "length"
            elif not self._has_room(cache):
                reason = "context"
            else:
                cache.append(label, id, look=look)
                label += 1
                if not out:
                    yield None
        rest = stops.rest()
        yield from rest
        yield Done(reason, given + len(rest), time.perf_counter() - began)

    def _has_room(self, cache: Cache) -> bool:
        """Room for one more live token, if need be by closing holes."""
        if cache.count + 1 > self.info.context or not cache.cells.free:
            return False
        if cache.next_place >= self.shape.limit:
            if self.info.kv == "exact" or cache.next_place == cache.count:
                return False
            cache.compact()
        return True

    def _cache(self, window: str, tokens: int, *, sees: bool) -> Cache:
        """The window's cache with room for so many tokens. Idle windows are dropped when memory is short."""
        sees = sees or self.shape.eye_in_c  # an eye in C costs nothing while it is shut
        wanted = min(-(-(tokens + SPARE) // GROWTH) * GROWTH, self.info.context + SPARE)
        cache = self.caches.get(window)
        if cache is None or len(cache.cells) < wanted or (sees and cache.eye is None):
            self._make_room(wanted * self.shape.cell_bytes, window, self.limits.memory_bytes)
            try:
                cache = self._grown(window, wanted, sees=sees)
            except EngineError:  # less memory than thought: only what is in use may stay
                self._drop(window)
                self._make_room(wanted * self.shape.cell_bytes, window, 0)
                cache = self._grown(window, wanted, sees=sees)
        self.caches.move_to_end(window)
        return cache

    def _grown(self, window: str, size: int, *, sees: bool) -> Cache:
        cache = self.caches.get(window)
        if cache is None:
            cache = self.caches[window] = Cache(self.model, self.shape, size, sees=sees)
        else:
            if cache.doubt or not cache.settled:
                cache.reset()
            cache.resize(max(size, len(cache.cells)), sees=sees or cache.eye is not None)
        return cache

    def _make_room(self, bytes: int, window: str, limit: int) -> None:
        for name in list(self.caches):
            if sum(cache.bytes for cache in self.caches.values()) + bytes <= limit:
                break
            if name != window and name not in self.active:
                self._drop(name)

    def _drop(self, window: str) -> None:
        cache = self.caches.pop(window, None)
        if cache:
            cache.close()

    def _describe(self, header: Header, context: int) -> ModelInfo:
        c, model = self.model.c, self.model
        return ModelInfo(
            name=human_name(model.path, header),
            architecture=header.architecture,
            layers=int(c.llama_model_n_layer(model.handle)),
            heads=int(c.llama_model_n_head(model.handle)),
            kv_heads=int(c.llama_model_n_head_kv(model.handle)),
            vocabulary=model.size,
            trained_context=model.trained_context,
            context=context,
            special=model.special(),
            tokenizer=header.tokenizer,
            template=self.template,
            kv="splice" if can_splice(model, self.shape) else "exact",
            file=str(model.path),
            size_bytes=header.size,
        )


def check_writes(model: Model) -> None:
    """Refuse what cannot go on with a text token by token."""
    c = model.c
    if c.llama_model_has_encoder(model.handle) or not c.llama_model_has_decoder(model.handle):
        raise ModelUnusable(f"{model.path} needs an encoder. Use a model that only decodes.")
    if c.llama_model_is_diffusion(model.handle):
        raise ModelUnusable(f"{model.path} writes by diffusion, not token by token. Use another model.")


def has_state(model: Model) -> bool:
    """A recurrent state knows all that went before; no part of it can be taken out."""
    return bool(model.c.llama_model_is_recurrent(model.handle) or model.c.llama_model_is_hybrid(model.handle))


def can_splice(model: Model, shape: Shape) -> bool:
    """Whether cells can leave, return and be shifted: not with sliding windows, M-RoPE or recurrent states."""
    c, handle = model.c, model.handle
    if has_state(model) or c.llama_model_n_swa(handle):
        return False
    if c.llama_model_rope_type(handle) not in (abi.ROPE_NORMAL, abi.ROPE_NEOX):
        return False
    with contextlib.closing(Cache(model, shape, 256, sees=False)) as cache:
        return bool(c.llama_memory_can_shift(cache.memory))


def frames_for(model: Model, header: Header) -> tuple[Frames, Literal["model", "chatml"]]:
    special = model.special()
    bos, eos = (
        model.piece(special[name]).decode("utf-8", errors="replace") if name in special else ""
        for name in ("bos", "eos")
    )
    now = datetime.now()
    template = header.values.get("tokenizer.chat_template")
    if template:
        with contextlib.suppress(TemplateUnusable):
            return frames_of(template, bos=bos, eos=eos, adds_bos=model.adds_bos, now=now), "model"
    return frames_of(CHATML, bos=bos, eos=eos, adds_bos=model.adds_bos, now=now), "chatml"


def what_to_look_at(written: Written, prompt: Prompt, capture: Capture | None) -> tuple[Asked, int]:
    """What to read off, and from which token on the prompt must be computed for that."""
    if capture is None:
        return Asked(), NEVER
    if prompt.read_from is None or not (capture.reading or capture.reading_surprisal):
        return Asked(last=capture.reply), NEVER
    found = np.flatnonzero(written.labels == prompt.read_from)
    if not len(found):
        raise BadInput(f"The prompt has no token {prompt.read_from} to read from.")
    start = int(found[0])
    asked = Asked(
        last=capture.reply,
        rows_from=start if capture.reading else NEVER,
        surprisal_from=start if capture.reading_surprisal else NEVER,
    )
    # A token's surprisal is known from the one before it.
    return asked, max(0, start - 1) if capture.reading_surprisal else start


def report(plan: Plan, seen: Seen, capture: Capture | None, rebuilt: str, seconds: float) -> Read:
    wants_surprisal = capture is not None and capture.reading_surprisal
    return Read(
        reused=plan.reused,
        restored=plan.restored,
        computed=plan.computed,
        shifted=plan.compacted,
        rebuilt=rebuilt,
        seconds=seconds,
        rows=tuple(seen.rows),
        surprisal=np.array(seen.surprisal, dtype=np.float32) if wants_surprisal else None,
    )
