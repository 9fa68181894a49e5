"""The engine: runs any GGUF model on llama.cpp in this process, reads its attention, and edits its KV cache."""

from __future__ import annotations

import atexit
import contextlib
import time
from collections import OrderedDict
from collections.abc import Callable, Collection, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt

from halo_weave.core.brightness import AttentionRow
from halo_weave.core.tokens import Ids, Tokens
from halo_weave.engines.apart import Apart
from halo_weave.engines.cache import Cache, CellsRefused, Erased, Shape
from halo_weave.engines.capture import is_native
from halo_weave.engines.cells import plan_reading
from halo_weave.engines.description import check_that_it_writes, describe, readable, template_of, written_ends
from halo_weave.engines.disk import CellFiles, Span, key_of
from halo_weave.engines.probing import has_state
from halo_weave.engines.prompts import NEVER, FlatPrompt, Observation
from halo_weave.engines.sampling import Sampler
from halo_weave.engines.scheduler import FairScheduler
from halo_weave.engines.shelving import begin_alike, fetch, keep_fresh, put_aside
from halo_weave.engines.stops import Stops
from halo_weave.errors import EngineError, ModelUnusable
from halo_weave.llama import library
from halo_weave.llama.footprint import KvType, cache_bytes
from halo_weave.llama.header import read_header
from halo_weave.llama.model import Model, cores
from halo_weave.ports import (
    Capture,
    Done,
    GenerationEvent,
    ModelInfo,
    Planned,
    Prompt,
    Read,
    Reason,
    Sampling,
    Step,
    named_by,
)
from halo_weave.templates.facts import TemplateFacts
from halo_weave.templates.messages import ChatMessage, ChatPrompt
from halo_weave.templates.renderer import TemplateRenderer

Mode = Literal["splice", "exact"]

BATCH, BATCH_ON_GPU = 64, 512  # tokens per decode while a prompt is read
PATIENT = 16  # and while it is read ahead
GROWTH = 2048  # a context grows by so many cells
SPARE = 256  # cells beyond prompt and reply, for what returns in the middle


@dataclass(frozen=True, slots=True)
class Limits:
    """What the engine may use."""

    context: int = 8192  # most tokens live in one window, if the model was trained for as many
    memory_bytes: int = 2 << 30  # for the KV caches of all windows; the least recently used is dropped first
    graveyard_bytes: int = 128 << 20  # for the cells of pruned text of all windows, in main memory
    threads: int | None = None  # None: one per processor
    gpu_layers: int = -1  # all, if there is a GPU
    kv_type: KvType = "f16"  # how keys are stored; values take 16 bits at least, since attention is read
    batch: int | None = None  # tokens per decode while a prompt is read
    cells: Path | None = None  # folder for cells on disk; None: they are in memory only
    cells_bytes: int = 4 << 30  # most that may lie there


class LlamaEngine:
    """Implements `ports.Engine`. One thread does the work for all windows, a slice of each in turn."""

    def __init__(
        self,
        path: Path,
        *,
        limits: Limits | None = None,
        lib: str | None = None,
        in_c: bool | None = None,
        name: str = "",
    ) -> None:
        """`in_c` chooses the attention callback; by default C if it was built. `name`: if the file does not tell it."""
        limits = limits or Limits()
        header = read_header(path)
        if header.embeds:
            raise ModelUnusable(
                f"{path} is an embedding model. Use it with --embedder, and a chat model here."
            )
        self.model = Model(path, header, library.load(lib), gpu_layers=limits.gpu_layers)
        self.renderer = TemplateRenderer()
        try:
            check_that_it_writes(self.model)
            self.limits = limits
            self.template = template_of(self.model, header, self.renderer)
            self.ends = written_ends(self.model, self.template)
            trained = self.model.trained_context or limits.context
            self.shape = Shape(
                threads=limits.threads or cores(),
                batch=limits.batch or (BATCH_ON_GPU if self.model.c.llama_supports_gpu_offload() else BATCH),
                limit=trained,
                cell_bytes=max(1, cache_bytes(header, limits.kv_type)),
                kv_type=limits.kv_type,
                graveyard_bytes=limits.graveyard_bytes,
                callback_in_c=is_native() if in_c is None else in_c,
                sliding=int(self.model.c.llama_model_n_swa(self.model.handle)),
            )
            described = describe(self.model, header, self.template, self.shape, min(trained, limits.context))
            self._info = replace(described, name=name or described.name)
        except BaseException:
            self.renderer.close()
            self.model.close()
            raise
        self.disk = self._open_disk()
        self.caches: OrderedDict[str, Cache] = OrderedDict()
        self.active: set[str] = set()
        self.doomed: set[str] = set()
        self.erased: dict[str, list[Erased]] = {}  # as in a cache, for windows that have none
        self.has_state = has_state(self.model)
        self._now = datetime.now()
        self.misfits = 0  # how often the map of cells did not fit what the model looked at
        self.scheduler: FairScheduler[GenerationEvent] = FairScheduler("halo-weave engine")
        atexit.register(self.close)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        atexit.unregister(self.close)
        self.scheduler.close()
        for window in list(self.caches):
            self._put_aside(window)
        if self.disk:
            self.disk.close()
            self.disk = None
        self.renderer.close()
        self.model.close()

    @property
    def info(self) -> ModelInfo:
        return self._info

    def tokenize(self, text: str, *, special: bool = False) -> Tokens:
        return self.model.tokenize(text, special=special)

    def pieces(self, ids: Ids) -> Tokens:
        return self.model.pieces(ids)

    def controls(self, ids: Ids) -> npt.NDArray[np.bool_]:
        return self.model.controls(ids)

    @property
    def facts(self) -> TemplateFacts:
        return self.template.facts

    def chat(
        self,
        messages: Sequence[ChatMessage],
        *,
        effort: str | None = None,
        tools: Sequence[Mapping[str, Any]] = (),
    ) -> ChatPrompt:
        today = datetime.now()
        if today.date() != self._now.date():  # templates tell the date: on a new day all is read anew, once
            self._now = today
        return self.template.write(messages, thinking=effort or "auto", tools=tools, now=self._now)

    def generate(
        self,
        window: str,
        prompt: Prompt,
        sampling: Sampling,
        capture: Capture | None,
        *,
        mode: Mode = "splice",
        stopped: Callable[[], bool] = lambda: False,
    ) -> Iterator[GenerationEvent]:
        sampling.check()
        flat = FlatPrompt.of(prompt, vocabulary=self.model.size, context=self.info.context)
        capture = readable(self.info, capture)
        watch = Observation.of(flat, prompt.read_from, capture)
        mode = mode if self.info.abilities.cuts else "exact"
        work = self._generate(window, flat, prompt.next_label, sampling, capture, watch, mode, stopped)
        return self.scheduler.run(work, window)

    def read_ahead(
        self,
        window: str,
        prompt: Prompt,
        *,
        room: int,
        mode: Mode = "splice",
        most: int | None = None,
        capture: Capture | None = None,
    ) -> None:
        if self.info.abilities.ahead:
            flat = FlatPrompt.of(prompt, vocabulary=self.model.size, context=self.info.context)
            watch = Observation.of(flat, prompt.read_from, readable(self.info, capture))
            work = self._read_ahead(window, flat, room, mode, most, watch)
            with contextlib.suppress(EngineError):  # closed
                self.scheduler.post(work, window, patient=True)

    def forget(self, window: str) -> None:
        """A window that is generating is dropped when it has finished."""

        def drop() -> Generator[GenerationEvent | None]:
            for one in named_by(window, {*self.active, *self.caches}):
                if one in self.active:
                    self.doomed.add(one)
                else:
                    self._drop(one)
            if self.disk:
                self.disk.discard(window)
            return
            yield

        with contextlib.suppress(EngineError):  # a closed engine has forgotten everything
            self.scheduler.post(drop(), f"forget {window}", sure=True)

    def erase(self, spans: Sequence[Span], windows: Collection[str] = ()) -> None:
        def erase_all() -> Generator[GenerationEvent | None]:
            for window in {*self.caches, *windows}:
                erased = [Erased(first, last, window in windows) for first, last in spans]
                if window in self.caches:
                    self.caches[window].erase(erased)
                else:  # a turn that has begun may still bring them into a cache
                    self.erased[window] = [*self.erased.get(window, ()), *erased]
            if self.disk:
                self.disk.erase(spans, windows)
            return
            yield

        with contextlib.suppress(EngineError):
            self.scheduler.post(erase_all(), f"erase {spans}", sure=True)

    # Everything below runs on the engine's thread.

    def _generate(
        self,
        window: str,
        prompt: FlatPrompt,
        label: int,
        sampling: Sampling,
        capture: Capture | None,
        watch: Observation,
        mode: Mode,
        stopped: Callable[[], bool],
    ) -> Generator[GenerationEvent | None]:
        with self._at_work(window):
            began = time.perf_counter()
            looks = capture is not None and (capture.reply or capture.reading)
            cache = self._cache(window, len(prompt) + sampling.max_new_tokens, attention=looks)
            self._drop_erased(cache, prompt)
            if cache.reader and capture:
                cache.reader.choose(capture)
            with Sampler(self.model, sampling, prompt.ids) as sampler:
                self._fetch(window, cache, prompt, mode)
                reading = self._read(
                    cache, prompt, sampling.max_new_tokens, watch, mode, batch=self.shape.batch
                )
                for event in reading:
                    if event is None and stopped():
                        reading.close()
                        yield Done("abort", 0, time.perf_counter() - began)
                        return
                    yield event
                yield from self._reply(cache, sampler, sampling, label, watch.last, stopped, began)

    def _read_ahead(
        self, window: str, prompt: FlatPrompt, room: int, mode: Mode, most: int | None, watch: Observation
    ) -> Generator[GenerationEvent | None]:
        """In small batches: whoever speaks now does not wait for long. What was read off of words waits for them."""
        with self._at_work(window):
            looks = watch.rows_from != NEVER
            cache = self._cache(window, len(prompt) + room, attention=looks)
            self._drop_erased(cache, prompt)
            if cache.reader and watch.capture:
                cache.reader.choose(watch.capture)
            self._fetch(window, cache, prompt, mode)
            if np.array_equal(cache.live.ids, prompt.ids):
                return
            batch = min(self.shape.batch, PATIENT)
            try:
                for _ in self._read(cache, prompt, room, watch, mode, batch=batch, allowed=most):
                    yield None
            finally:
                cache.foreseen = cache.foreseen or watch

    @contextlib.contextmanager
    def _at_work(self, window: str) -> Iterator[None]:
        """The window's cache is not dropped meanwhile; what fell asleep goes to disk after it."""
        self.active.add(window)
        try:
            yield
        finally:
            self.active.discard(window)
            if window in self.doomed:
                self.doomed.discard(window)
                self._drop(window)
            elif window in self.caches:
                keep_fresh(self.disk, window, self.caches[window])
            self._bound_sleeping()

    def _bound_sleeping(self) -> None:
        """The cells of pruned text of all windows stay within the limit. Those of the window used longest ago go first."""
        over = sum(cache.sleeping_bytes for cache in self.caches.values()) - self.limits.graveyard_bytes
        for name, cache in list(self.caches.items()):
            if name not in self.active:
                over -= cache.drop_oldest(over)

    def _read(
        self,
        cache: Cache,
        prompt: FlatPrompt,
        room: int,
        watch: Observation,
        mode: Mode,
        *,
        batch: int,
        allowed: int | None = None,
    ) -> Generator[Planned | Read | None]:
        """Bring the prompt into the cache with the least work; read it anew if the result does not fit.

        `room`: tokens that follow. `allowed`: nothing is done if more tokens than these have to be computed.
        """
        began = time.perf_counter()
        rebuilt = cache.doubt or ("" if cache.settled else "it was stopped before a shift was done")
        while True:
            if rebuilt:
                cache.reset()
            same = cache.same_as(prompt)
            watch.take_over(
                cache.foreseen, same if mode == "splice" else min(same, cache.clean), prompt.kinds
            )
            graves = cache.usable(prompt) if mode == "splice" and not rebuilt else []
            plan = plan_reading(
                cache.live,
                [grave.tokens for grave in graves],
                prompt.labels,
                prompt.ids,
                limit=self.shape.limit,
                reserve=min(room, SPARE),
                anew_from=watch.anew_from,
                mode=mode,
                clean=cache.clean,
            )
            if len(plan.removed) and self.has_state:  # nothing can be taken out of a recurrent state
                cache.reset()
                continue
            if allowed is not None and plan.computed > allowed:
                return
            yield Planned(plan.reused, plan.restored, plan.computed)
            cache.foreseen = None
            keep = mode == "splice" and not rebuilt
            most = max((step.stop for step in plan.steps[:-1]), default=0)
            try:
                with contextlib.closing(Apart(cache, most)) as apart:
                    for _ in cache.carry_out(
                        plan, graves, prompt, watch, keep_asleep=keep, batch=batch, apart=apart
                    ):
                        yield None
            except CellsRefused:
                cache.graves.clear()
                rebuilt = "cells that were saved could not be brought back"
                watch.begin_again()
                continue
            misfit = watch.misfits or (watch.last and cache.last_rows is not None and cache.row() is None)
            if not misfit:
                break
            self.misfits += 1
            if rebuilt:  # not even in a cache that was just made: attention cannot be read from this model
                self._info = replace(self.info, abilities=replace(self.info.abilities, attention=False))
                break
            rebuilt = "the map of its cells did not fit"
            watch.begin_again()
        yield Read(
            reused=plan.reused,
            restored=plan.restored,
            computed=plan.computed,
            shifted=plan.compacted,
            rebuilt=rebuilt,
            seconds=time.perf_counter() - began,
            rows=tuple(watch.rows),
            surprisal=None if watch.surprisal_from == NEVER else np.array(watch.surprisal, np.float32),
        )

    def _reply(
        self,
        cache: Cache,
        sampler: Sampler,
        sampling: Sampling,
        label: int,
        look: bool,
        stopped: Callable[[], bool],
        began: float,
    ) -> Generator[GenerationEvent | None]:
        stops = Stops((*sampling.stop, *self.ends))
        made = given = 0
        reason: Reason | None = None
        last: AttentionRow | None = None
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
                reason, last = "eos", row
                break
            likely = sampler.likeliest(cache.context, sampling.likely) if sampling.likely else ()
            step = Step(id, label, self.model.piece(id), cache.surprisal(-1, id), row, likely)
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
        yield Done(reason, given + len(rest), time.perf_counter() - began, last)

    def _has_room(self, cache: Cache) -> bool:
        """Room for one more live token, if need be by closing holes."""
        if cache.count + 1 > self.info.context or not cache.cells.free:
            return False
        if cache.next_place >= self.shape.limit:
            if not self.info.abilities.cuts or cache.next_place == cache.count:
                return False
            cache.compact()
        return True

    def _cache(self, window: str, tokens: int, *, attention: bool) -> Cache:
        """The window's cache with room for so many tokens. Idle windows are dropped when memory is short."""
        attention = attention or self.shape.callback_in_c  # in C it costs nothing until rows are asked for
        wanted = min(-(-(tokens + SPARE) // GROWTH) * GROWTH, self.info.context + SPARE)
        cache = self.caches.get(window)
        if cache is None or len(cache.cells) < wanted or (attention and cache.reader is None):
            self._make_room(wanted * self.shape.cell_bytes, window, self.limits.memory_bytes)
            try:
                cache = self._grown(window, wanted, attention=attention)
            except EngineError:  # less memory than thought: only what is in use may stay
                self._drop(window)
                self._make_room(wanted * self.shape.cell_bytes, window, 0)
                cache = self._grown(window, wanted, attention=attention)
        self.caches.move_to_end(window)
        return cache

    def _drop_erased(self, cache: Cache, prompt: FlatPrompt) -> None:
        if cache.erased and self.has_state:  # nothing can be taken out of a recurrent state
            cache.reset()
        cache.drop_erased(prompt)

    def _grown(self, window: str, size: int, *, attention: bool) -> Cache:
        cache = self.caches.get(window)
        if cache is None:
            cache = self.caches[window] = Cache(self.model, self.shape, size, attention=attention)
            cache.erased = self.erased.pop(window, [])
        else:
            if cache.doubt or not cache.settled:
                cache.reset()
            attention = attention or cache.reader is not None
            cache.resize(max(size, len(cache.cells)), attention=attention)
        return cache

    def _make_room(self, bytes: int, window: str, limit: int) -> None:
        for name in list(self.caches):
            if sum(cache.bytes for cache in self.caches.values()) + bytes <= limit:
                break
            if name != window and name not in self.active:
                self._put_aside(name)

    # Cells on disk

    def _open_disk(self) -> CellFiles | None:
        limits = self.limits
        if limits.cells is None or limits.cells_bytes <= 0 or not self.info.abilities.cuts:
            return None
        facts = self.info.tokenizer, limits.kv_type, self.shape.sliding
        return CellFiles(
            limits.cells, key_of(self.model.path, self.model.library, *facts), limits.cells_bytes
        )

    def _fetch(self, window: str, cache: Cache, prompt: FlatPrompt, mode: Mode) -> None:
        """What need not be computed, since it lies on disk or another window has it."""
        if self.disk:
            fetch(self.disk, window, cache, prompt, asleep=mode == "splice")
        if self.info.abilities.cuts:
            begin_alike(cache, self.caches.values(), prompt)

    def _put_aside(self, window: str) -> None:
        put_aside(self.disk, window, self.caches[window])
        self._drop(window)

    def _drop(self, window: str) -> None:
        cache = self.caches.pop(window, None)
        if cache:
            if cache.erased:
                self.erased[window] = cache.erased
            cache.close()
