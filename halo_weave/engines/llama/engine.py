"""The local engine: runs any GGUF model on llama.cpp in this process, captures its attention and edits its KV cache."""

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
from halo_weave.engines.base import (
    Capture,
    Engine,
    GenerationEnd,
    GenerationEvent,
    PrefillPlanned,
    PrefillResult,
    Prompt,
    Sampling,
    Step,
    StopReason,
    windows_named_by,
)
from halo_weave.engines.flat_prompt import NEVER, FlatPrompt, Observation
from halo_weave.engines.llama import library
from halo_weave.engines.llama.attention_capture import has_c_callback
from halo_weave.engines.llama.cache_files import CacheFiles, Span, cache_key, disk_quota, window_key
from halo_weave.engines.llama.cache_plan import plan_cache
from halo_weave.engines.llama.cell_sources import (
    borrow,
    copy_shared_prefix,
    restore_from_disk,
    save_evicted,
    save_window,
)
from halo_weave.engines.llama.kv_cache import CellsRejected, ContextConfig, ErasedSpan, KvCache, PrefixContext
from halo_weave.engines.llama.model import Model, physical_cores
from halo_weave.engines.llama.model_info import (
    check_is_decoder,
    end_texts,
    is_recurrent,
    model_info_of,
    supported_capture,
    template_of,
)
from halo_weave.engines.llama.sampler import Sampler
from halo_weave.engines.llama.scheduler import FairScheduler
from halo_weave.engines.stop_strings import StopStrings
from halo_weave.engines.templates.messages import ChatMessage, ChatPrompt
from halo_weave.engines.templates.model_template import TemplateFacts
from halo_weave.engines.templates.renderer import TemplateRenderer
from halo_weave.errors import EngineError, ModelUnusable
from halo_weave.models.gguf_header import read_header
from halo_weave.models.memory_estimate import KvType, kv_bytes_per_token, kv_cache_limit

Mode = Literal["splice", "exact"]

BATCH, BATCH_ON_GPU = 64, 512  # tokens per decode while a prompt is read
READ_AHEAD_BATCH = 16  # and while it is read ahead
CONTEXT_GROWTH = 2048  # a context grows by so many cells
LOGIT_BUFFERS = (
    2  # a context has one for its graph and one for its output, with logits of all tokens of a batch
)
SPARE_CELLS = 256  # cells beyond prompt and reply, for what returns in the middle


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """What the engine may use."""

    context: int = 8192  # most tokens live in one window, if the model was trained for as many
    memory_bytes: int | None = (
        None  # for all of KV caches; the window used longest ago goes first. None: as the doctor says
    )
    graveyard_bytes: int = 128 << 20  # of that, for the cells of pruned text of all windows
    threads: int | None = None  # None: one per processor
    gpu_layers: int = -1  # all, if there is a GPU
    kv_type: KvType = "f16"  # how keys are stored; values take 16 bits at least, since attention is read
    batch: int | None = None  # tokens per decode while a prompt is read
    cells: Path | None = None  # folder for cells on disk; None: they are in memory only
    cells_bytes: int | None = None  # most that may lie there; None: a tenth of what is free, at most 10 GB


class LlamaEngine(Engine):
    """One thread does the work for all windows, a slice of each in turn."""

    def __init__(
        self,
        path: Path,
        *,
        limits: EngineLimits | None = None,
        lib: str | None = None,
        in_c: bool | None = None,
        name: str = "",
    ) -> None:
        """`in_c` chooses the attention callback; by default C if it was built. `name`: if the file does not tell it."""
        limits = limits or EngineLimits()
        header = read_header(path)
        if header.is_embedder:
            raise ModelUnusable(
                f"{path} is an embedding model. Use it with --embedder, and a chat model here."
            )
        self.model = Model(path, header, library.load(lib), gpu_layers=limits.gpu_layers)
        self.renderer = TemplateRenderer()
        try:
            check_is_decoder(self.model)
            self.limits = limits
            self.template = template_of(self.model, header, self.renderer)
            self.ends = end_texts(self.model, self.template)
            trained = self.model.trained_context or limits.context
            batch = limits.batch or (BATCH_ON_GPU if self.model.c.llama_supports_gpu_offload() else BATCH)
            self.shape = ContextConfig(
                threads=limits.threads or physical_cores(),
                batch=batch,
                limit=trained,
                cell_bytes=max(1, kv_bytes_per_token(header, limits.kv_type)),
                buffer_bytes=LOGIT_BUFFERS * 4 * batch * self.model.size,
                kv_type=limits.kv_type,
                graveyard_bytes=limits.graveyard_bytes,
                callback_in_c=has_c_callback() if in_c is None else in_c,
                sliding=int(self.model.c.llama_model_n_swa(self.model.handle)),
            )
            full = self.shape.bytes(min(trained, limits.context) + SPARE_CELLS)
            self.memory_bytes = kv_cache_limit(full) if limits.memory_bytes is None else limits.memory_bytes
            described = model_info_of(
                self.model, header, self.template, self.shape, min(trained, limits.context)
            )
            self._info = replace(described, name=name or described.name)
        except BaseException:
            self.renderer.close()
            self.model.close()
            raise
        self.disk = self._open_disk()
        self.caches: OrderedDict[str, KvCache] = OrderedDict()
        self.active: set[str] = set()
        self.drop_when_idle: set[str] = set()
        self.erased: dict[str, list[ErasedSpan]] = {}  # as in a cache, for windows that have none
        self.has_state = is_recurrent(self.model)
        self._now = datetime.now()
        self.mapping_errors = 0  # how often the map of cells did not fit what the model looked at
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
    def step_seconds(self) -> float:
        return self.scheduler.step_seconds

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
        capture = supported_capture(self.info, capture)
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
            watch = Observation.of(flat, prompt.read_from, supported_capture(self.info, capture))
            work = self._read_ahead(window, flat, room, mode, most, watch)
            with contextlib.suppress(EngineError):  # closed
                self.scheduler.post(work, window, idle_only=True)

    def forget(self, window: str) -> None:
        """A window that is generating is dropped when it has finished."""

        def drop() -> Generator[GenerationEvent | None]:
            for one in windows_named_by(window, {*self.active, *self.caches}):
                if one in self.active:
                    self.drop_when_idle.add(one)
                else:
                    self._drop(one)
            if self.disk:
                self.disk.discard(window)
            return
            yield

        with contextlib.suppress(EngineError):  # a closed engine has forgotten everything
            self.scheduler.post(drop(), f"forget {window}", must_run=True)

    def erase(self, spans: Sequence[Span], windows: Collection[str] = ()) -> None:
        def erase_all() -> Generator[GenerationEvent | None]:
            readers = {window_key(window) for window in windows}
            for window in {*self.caches, *windows}:
                read = window in windows
                erased = [ErasedSpan(first, last, read) for first, last in spans]
                lent = window in self.caches and self.caches[window].borrowed_from(readers)
                if lent or (read and not spans):  # which tokens it is, is not known here
                    erased.append(ErasedSpan(0, NEVER, read=True))
                if window in self.caches:
                    self.caches[window].erase(erased)
                else:  # a turn that has begun may still bring them into a cache
                    self.erased[window] = [*self.erased.get(window, ()), *erased]
            if self.disk:
                self.disk.erase(spans, windows)
            return
            yield

        with contextlib.suppress(EngineError):
            self.scheduler.post(erase_all(), f"erase {spans}", must_run=True)

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
                self._fetch(window, cache, prompt, mode, watch)
                reading = self._read(
                    cache, prompt, sampling.max_new_tokens, watch, mode, batch=self.shape.batch
                )
                for event in reading:
                    if event is None and stopped():
                        reading.close()
                        yield GenerationEnd("abort", 0, time.perf_counter() - began)
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
            self._fetch(window, cache, prompt, mode, watch)
            if np.array_equal(cache.live.ids, prompt.ids):
                return
            batch = min(self.shape.batch, READ_AHEAD_BATCH)
            try:
                for _ in self._read(cache, prompt, room, watch, mode, batch=batch, allowed=most):
                    yield None
            finally:
                cache.read_ahead_result = cache.read_ahead_result or watch

    @contextlib.contextmanager
    def _at_work(self, window: str) -> Iterator[None]:
        """The window's cache is not dropped meanwhile; what fell asleep goes to disk after it."""
        self.active.add(window)
        try:
            yield
        finally:
            self.active.discard(window)
            if window in self.drop_when_idle:
                self.drop_when_idle.discard(window)
                self._drop(window)
            elif window in self.caches:
                save_evicted(self.disk, window, self.caches[window])
            self._limit_evicted_bytes()

    def _limit_evicted_bytes(self) -> None:
        """The cells of pruned text of all windows stay within the limit. Those of the window used longest ago go first."""
        over = sum(cache.evicted_bytes for cache in self.caches.values()) - self.limits.graveyard_bytes
        for name, cache in list(self.caches.items()):
            if name not in self.active:
                over -= cache.drop_oldest(over)

    def _read(
        self,
        cache: KvCache,
        prompt: FlatPrompt,
        room: int,
        watch: Observation,
        mode: Mode,
        *,
        batch: int,
        allowed: int | None = None,
    ) -> Generator[PrefillPlanned | PrefillResult | None]:
        """Bring the prompt into the cache with the least work; read it anew if the result does not fit.

        `room`: tokens that follow. `allowed`: nothing is done if more tokens than these have to be computed.
        """
        began = time.perf_counter()
        rebuilt = cache.rebuild_reason or ("" if cache.settled else "it was stopped before a shift was done")
        while True:
            if rebuilt:
                cache.reset()
            same = cache.common_prefix_length(prompt)
            watch.reuse_observations(
                cache.read_ahead_result, same if mode == "splice" else min(same, cache.clean), prompt.kinds
            )
            evicted = cache.usable(prompt) if mode == "splice" and not rebuilt else []
            plan = plan_cache(
                cache.live,
                [evicted_cells.tokens for evicted_cells in evicted],
                prompt.labels,
                prompt.ids,
                limit=self.shape.limit,
                reserve=min(room, SPARE_CELLS),
                compute_from=watch.compute_from,
                mode=mode,
                clean=cache.clean,
            )
            if len(plan.removed) and self.has_state:  # nothing can be taken out of a recurrent state
                cache.reset()
                continue
            if allowed is not None and plan.computed > allowed:
                return
            yield PrefillPlanned(plan.reused, plan.restored, plan.computed)
            cache.read_ahead_result = None
            keep = mode == "splice" and not rebuilt
            most = max((step.stop for step in plan.steps[:-1]), default=0)
            try:
                with contextlib.closing(PrefixContext(cache, most)) as apart:
                    for _ in cache.execute_plan(
                        plan, evicted, prompt, watch, keep_evicted=keep, batch=batch, apart=apart
                    ):
                        yield None
            except CellsRejected:
                cache.evicted.clear()
                rebuilt = "cells that were saved could not be brought back"
                watch.start_over()
                continue
            mapping_error = watch.mapping_errors or (
                watch.last and cache.last_rows is not None and cache.row() is None
            )
            if not mapping_error:
                break
            self.mapping_errors += 1
            if rebuilt:  # not even in a cache that was just made: attention cannot be read from this model
                self._info = replace(self.info, abilities=replace(self.info.abilities, attention=False))
                break
            rebuilt = "the map of its cells did not fit"
            watch.start_over()
        yield PrefillResult(
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
        cache: KvCache,
        sampler: Sampler,
        sampling: Sampling,
        label: int,
        look: bool,
        stopped: Callable[[], bool],
        began: float,
    ) -> Generator[GenerationEvent | None]:
        stops = StopStrings((*sampling.stop, *self.ends))
        made = given = 0
        reason: StopReason | None = None
        last: AttentionRow | None = None
        while reason is None:
            if stopped():
                reason = "abort"
                break
            row = cache.row() if look else None
            if look and row is None and cache.last_rows is not None:
                self.mapping_errors += 1
                cache.rebuild_reason = "the map of its cells did not fit"
            id = sampler.sample(cache.context)
            if self.model.ends_generation(id):
                reason, last = "eos", row
                break
            likely = sampler.top_tokens(cache.context, sampling.likely) if sampling.likely else ()
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
        yield GenerationEnd(reason, given + len(rest), time.perf_counter() - began, last)

    def _has_room(self, cache: KvCache) -> bool:
        """Room for one more live token, if need be by closing holes."""
        if cache.count + 1 > self.info.context or not cache.cells.free:
            return False
        if cache.next_place >= self.shape.limit:
            if not self.info.abilities.cuts or cache.next_place == cache.count:
                return False
            cache.compact()
        return True

    def _cache(self, window: str, tokens: int, *, attention: bool) -> KvCache:
        """The window's cache with room for so many tokens. Idle windows are dropped when memory is short."""
        attention = attention or self.shape.callback_in_c  # in C it costs nothing until rows are asked for
        wanted = min(
            -(-(tokens + SPARE_CELLS) // CONTEXT_GROWTH) * CONTEXT_GROWTH, self.info.context + SPARE_CELLS
        )
        cache = self.caches.get(window)
        if cache is None or len(cache.cells) < wanted or (attention and cache.reader is None):
            self._make_room(self.shape.bytes(wanted), window, self.memory_bytes)
            try:
                cache = self._grown(window, wanted, attention=attention)
            except EngineError:  # less memory than thought: only what is in use may stay
                self._drop(window)
                self._make_room(self.shape.bytes(wanted), window, 0)
                cache = self._grown(window, wanted, attention=attention)
        self.caches.move_to_end(window)
        return cache

    def _drop_erased(self, cache: KvCache, prompt: FlatPrompt) -> None:
        if cache.erased and self.has_state:  # nothing can be taken out of a recurrent state
            cache.reset()
        cache.drop_erased(prompt)

    def _grown(self, window: str, size: int, *, attention: bool) -> KvCache:
        cache = self.caches.get(window)
        if cache is None:
            cache = self.caches[window] = KvCache(self.model, self.shape, size, attention=attention)
            cache.erased = self.erased.pop(window, [])
        else:
            if cache.rebuild_reason or not cache.settled:
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

    def _open_disk(self) -> CacheFiles | None:
        limits = self.limits
        if limits.cells is None or not self.info.abilities.cuts:
            return None
        quota = disk_quota(limits.cells) if limits.cells_bytes is None else limits.cells_bytes
        if quota <= 0:
            return None
        facts = self.info.tokenizer, limits.kv_type, self.shape.sliding
        return CacheFiles(limits.cells, cache_key(self.model.path, self.model.library, *facts), quota)

    def _fetch(self, window: str, cache: KvCache, prompt: FlatPrompt, mode: Mode, watch: Observation) -> None:
        """What need not be computed, since it lies on disk or another window has it."""
        if self.disk:
            restore_from_disk(self.disk, window, cache, prompt, asleep=mode == "splice")
        if self.info.abilities.cuts:
            copy_shared_prefix(cache, self.caches.values(), prompt)
            if mode == "splice":
                borrow(window, cache, self.caches, self.disk, prompt, watch.compute_from)

    def _put_aside(self, window: str) -> None:
        save_window(self.disk, window, self.caches[window])
        self._drop(window)

    def _drop(self, window: str) -> None:
        cache = self.caches.pop(window, None)
        if cache:
            if cache.erased:
                self.erased[window] = cache.erased
            cache.close()
