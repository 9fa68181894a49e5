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
from halo_weave.core.tokens import Ids, Positions, Tokens
from halo_weave.engines.base import (
    Capture,
    Engine,
    GenerationEnd,
    GenerationEvent,
    IdleReadResult,
    PrefillPlanned,
    PrefillResult,
    Prompt,
    Sampling,
    Step,
    StopReason,
    matching_windows,
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

BATCH, BATCH_ON_GPU = 64, 512  # tokens per decode during prefill
PREFETCH_BATCH = 16  # tokens per decode during prefetch
CONTEXT_GROWTH = 2048  # number of cells by which a context grows
LOGIT_BUFFERS = (
    2  # buffers of a context with the logits of a whole batch: one for its graph, one for its output
)
SPARE_CELLS = (
    256  # cells beyond prompt and reply, since restoring a part of a saved run needs cells for all of it
)


@dataclass(frozen=True, slots=True)
class EngineLimits:
    """Limits and options of the engine."""

    context: int = 8192  # largest number of live tokens in a window; at most the model's trained context
    # Memory for all KV caches; the least recently used window is dropped first. None: as `halo-weave doctor` reports.
    memory_bytes: int | None = None
    graveyard_bytes: int = 128 << 20  # of this, memory for the saved cells of pruned text of all windows
    threads: int | None = None  # None: one per processor core
    gpu_layers: int = -1  # -1: all, if there is a GPU
    kv_type: KvType = "f16"  # type of the keys; values have at least 16 bits, since attention is captured
    batch: int | None = None  # tokens per decode during prefill
    cells: Path | None = None  # folder for the KV cache on disk; None: none
    cells_bytes: int | None = None  # quota of the folder; None: a tenth of the free space, at most 10 GB


class LlamaEngine(Engine):
    """Runs one model. One thread computes for all windows, one decode of each in turn."""

    def __init__(
        self,
        path: Path,
        *,
        limits: EngineLimits | None = None,
        lib: str | None = None,
        in_c: bool | None = None,
        name: str = "",
    ) -> None:
        """`in_c`: use the attention callback in C; None: if it was built. `name`: shown instead of the file's name."""
        limits = limits or EngineLimits()
        header = read_header(path)
        if header.is_embedder:
            raise ModelUnusable(
                f"{path} is an embedding model. Use it with --embedder, and choose a chat model here."
            )
        self.model = Model(path, header, library.load(lib), gpu_layers=limits.gpu_layers)
        self.renderer = TemplateRenderer()
        try:
            check_is_decoder(self.model)
            self.limits = limits
            self.template = template_of(self.model, header, self.renderer)
            self.end_texts = end_texts(self.model, self.template)
            trained = self.model.trained_context or limits.context
            batch = limits.batch or (BATCH_ON_GPU if self.model.c.llama_supports_gpu_offload() else BATCH)
            self.config = ContextConfig(
                threads=limits.threads or physical_cores(),
                batch=batch,
                trained_context=trained,
                cell_bytes=max(1, kv_bytes_per_token(header, limits.kv_type)),
                buffer_bytes=LOGIT_BUFFERS * 4 * batch * self.model.size,
                kv_type=limits.kv_type,
                graveyard_bytes=limits.graveyard_bytes,
                callback_in_c=has_c_callback() if in_c is None else in_c,
                sliding_window=int(self.model.c.llama_model_n_swa(self.model.handle)),
            )
            full = self.config.bytes(min(trained, limits.context) + SPARE_CELLS)
            self.memory_bytes = kv_cache_limit(full) if limits.memory_bytes is None else limits.memory_bytes
            described = model_info_of(
                self.model, header, self.template, self.config, min(trained, limits.context)
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
        self.erased: dict[str, list[ErasedSpan]] = {}  # deletions in windows that have no cache now
        self.recurrent = is_recurrent(self.model)
        self._now = datetime.now()
        self.mapping_errors = 0  # how often attention rows did not match the cells of the tokens
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
            self._save_and_drop(window)
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
        if (
            today.date() != self._now.date()
        ):  # templates may write the date, which changes the prompt once a day
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
        observation = Observation.of(flat, prompt.read_from, capture)
        mode = mode if self.info.abilities.cuts else "exact"
        work = self._generate(window, flat, prompt.next_label, sampling, capture, observation, mode, stopped)
        return self.scheduler.run(work, window)

    def prefetch(
        self,
        window: str,
        prompt: Prompt,
        *,
        room: int,
        mode: Mode = "splice",
        max_computed: int | None = None,
        capture: Capture | None = None,
    ) -> None:
        if self.info.abilities.prefetch:
            flat = FlatPrompt.of(prompt, vocabulary=self.model.size, context=self.info.context)
            observation = Observation.of(flat, prompt.read_from, supported_capture(self.info, capture))
            work = self._prefetch(window, flat, room, mode, max_computed, observation)
            with contextlib.suppress(EngineError):  # closed
                self.scheduler.post(work, window, idle_only=True)

    def positions_on_disk(self, owner: str) -> Positions | None:
        return self.disk.positions(owner) if self.disk else None

    def read_idle(self, window: str, prompt: Prompt, *, stopped: Callable[[], bool]) -> IdleReadResult:
        flat = FlatPrompt.of(prompt, vocabulary=self.model.size, context=self.info.context)
        results: list[IdleReadResult] = []
        with contextlib.suppress(EngineError):  # closed
            work = self._read_idle(window, flat, stopped, results)
            task = self.scheduler.post(work, "idle", idle_only=True, gives_up=True)
            task.out.get()
            if task.error and not task.cancelled:
                raise task.error
        return results[0] if results else "given up"

    def forget(self, window: str) -> None:
        """A window that is generating is dropped when it has finished."""

        def drop() -> Generator[GenerationEvent | None]:
            for name in matching_windows(window, {*self.active, *self.caches}):
                if name in self.active:
                    self.drop_when_idle.add(name)
                else:
                    self._drop(name)
            if self.disk:
                self.disk.discard(window)
            return
            yield

        with contextlib.suppress(EngineError):  # a closed engine has no caches
            self.scheduler.post(drop(), f"forget {window}", must_run=True)

    def erase(self, spans: Sequence[Span], windows: Collection[str] = ()) -> None:
        def erase_all() -> Generator[GenerationEvent | None]:
            keys = {window_key(window) for window in windows}
            for window in {*self.caches, *windows}:
                read = window in windows
                erased = [ErasedSpan(first, last, read) for first, last in spans]
                borrowed = window in self.caches and self.caches[window].borrowed_from(keys)
                if borrowed or (read and not spans):  # which tokens are affected is not known
                    erased.append(ErasedSpan(0, NEVER, read=True))
                if window in self.caches:
                    self.caches[window].erase(erased)
                else:  # a running turn may still create a cache with these tokens
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
        observation: Observation,
        mode: Mode,
        stopped: Callable[[], bool],
    ) -> Generator[GenerationEvent | None]:
        with self._mark_active(window):
            started = time.perf_counter()
            captures_rows = capture is not None and (capture.reply or capture.reading)
            cache = self._cache(window, len(prompt) + sampling.max_new_tokens, attention=captures_rows)
            self._drop_erased(cache, prompt)
            cache.temporary = prompt.temporary
            if cache.attention_capture and capture:
                cache.attention_capture.choose(capture)
            with Sampler(self.model, sampling, prompt.ids) as sampler:
                self._load_saved_cells(window, cache, prompt, mode, observation)
                prefill = self._prefill(
                    cache, prompt, sampling.max_new_tokens, observation, mode, batch=self.config.batch
                )
                for event in prefill:
                    if event is None and stopped():
                        prefill.close()
                        yield GenerationEnd("abort", 0, time.perf_counter() - started)
                        return
                    yield event
                yield from self._reply(
                    cache, sampler, sampling, label, observation.last_row, stopped, started
                )

    def _prefetch(
        self,
        window: str,
        prompt: FlatPrompt,
        room: int,
        mode: Mode,
        max_computed: int | None,
        observation: Observation,
    ) -> Generator[GenerationEvent | None]:
        """Prefill in small batches, so that a turn can begin soon. What is captured is kept for the coming message."""
        with self._mark_active(window):
            captures_rows = observation.rows_from != NEVER
            cache = self._cache(window, len(prompt) + room, attention=captures_rows)
            self._drop_erased(cache, prompt)
            cache.temporary = prompt.temporary
            if cache.attention_capture and observation.capture:
                cache.attention_capture.choose(observation.capture)
            self._load_saved_cells(window, cache, prompt, mode, observation)
            if np.array_equal(cache.live.ids, prompt.ids):
                return
            batch = min(self.config.batch, PREFETCH_BATCH)
            try:
                for _ in self._prefill(
                    cache, prompt, room, observation, mode, batch=batch, max_computed=max_computed
                ):
                    yield None
            finally:
                cache.prefetch_result = cache.prefetch_result or observation

    def _read_idle(
        self, window: str, prompt: FlatPrompt, stopped: Callable[[], bool], results: list[IdleReadResult]
    ) -> Generator[GenerationEvent | None]:
        """Prefill in a context of its own, which is closed afterwards: windows keep their caches, and lose no memory."""
        lent, disk = prompt.labels[prompt.lendable], self.disk
        in_memory = [
            cache.labels[: cache.count][cache.lendable[: cache.count]]
            for cache in self.caches.values()
            if cache.owner == prompt.owner and not cache.erased
        ]
        if disk is None or not len(lent):
            return
        if np.isin(lent, np.concatenate([lent[:0], *in_memory])).all():
            results.append("in memory")
            return
        if not disk.has_room(len(prompt) * self.config.cell_bytes):
            results.append("disk full")
            return
        with contextlib.closing(
            KvCache(self.model, self.config, len(prompt) + SPARE_CELLS, attention=False)
        ) as cache:
            copy_shared_prefix(cache, self.caches.values(), prompt)
            prefill = self._prefill(cache, prompt, 0, Observation(), "splice", batch=PREFETCH_BATCH)
            with contextlib.closing(prefill):
                for _ in prefill:
                    if stopped():
                        return
                    yield None
            if not stopped():
                first = int(np.argmax(prompt.lendable))
                disk.save_together(window, cache.snapshot(start=first).parts)
                results.append("saved")

    @contextlib.contextmanager
    def _mark_active(self, window: str) -> Iterator[None]:
        """Keep the window's cache from being dropped meanwhile. Afterwards, write cells of pruned text to disk."""
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
        """Keep the saved cells of pruned text within the limit. Those of the least recently used window are dropped first."""
        over = sum(cache.evicted_bytes for cache in self.caches.values()) - self.limits.graveyard_bytes
        for name, cache in list(self.caches.items()):
            if name not in self.active:
                over -= cache.drop_oldest(over)

    def _prefill(
        self,
        cache: KvCache,
        prompt: FlatPrompt,
        room: int,
        observation: Observation,
        mode: Mode,
        *,
        batch: int,
        max_computed: int | None = None,
    ) -> Generator[PrefillPlanned | PrefillResult | None]:
        """Bring the prompt into the cache with the least work; compute all of it if the cache turns out to be unusable.

        `room`: number of tokens that will follow. `max_computed`: do nothing if more tokens would have to be computed.
        """
        started = time.perf_counter()
        rebuilt = cache.rebuild_reason or (
            "it was stopped before keys were shifted" if cache.shift_pending else ""
        )
        while True:
            if rebuilt:
                cache.reset()
            same = cache.common_prefix_length(prompt)
            observation.reuse_observations(
                cache.prefetch_result,
                same if mode == "splice" else min(same, cache.exact_prefix),
                prompt.kinds,
            )
            evicted = cache.restorable(prompt) if mode == "splice" and not rebuilt else []
            plan = plan_cache(
                cache.live,
                [evicted_cells.tokens for evicted_cells in evicted],
                prompt.labels,
                prompt.ids,
                limit=self.config.trained_context,
                reserve=min(room, SPARE_CELLS),
                compute_from=observation.compute_from,
                mode=mode,
                exact_prefix=cache.exact_prefix,
            )
            if len(plan.removed) and self.recurrent:  # tokens cannot be removed from a recurrent state
                cache.reset()
                continue
            if max_computed is not None and plan.computed > max_computed:
                return
            yield PrefillPlanned(plan.reused, plan.restored, plan.computed)
            cache.prefetch_result = None
            keep = mode == "splice" and not rebuilt
            size = max((step.stop for step in plan.steps[:-1]), default=0)
            try:
                with contextlib.closing(PrefixContext(cache, size)) as prefix_context:
                    for _ in cache.execute_plan(
                        plan,
                        evicted,
                        prompt,
                        observation,
                        keep_evicted=keep,
                        batch=batch,
                        prefix_context=prefix_context,
                    ):
                        yield None
            except CellsRejected:
                cache.evicted.clear()
                rebuilt = "saved cells could not be restored"
                observation.reset()
                continue
            mapping_error = observation.mapping_errors or (
                observation.last_row and cache.last_attention is not None and cache.row() is None
            )
            if not mapping_error:
                break
            self.mapping_errors += 1
            if rebuilt:  # not even right after a full prefill: attention of this model cannot be captured
                self._info = replace(self.info, abilities=replace(self.info.abilities, attention=False))
                break
            rebuilt = "attention did not match the cells"
            observation.reset()
        yield PrefillResult(
            reused=plan.reused,
            restored=plan.restored,
            computed=plan.computed,
            shifted=plan.compacted,
            rebuilt=rebuilt,
            seconds=time.perf_counter() - started,
            rows=tuple(observation.rows),
            surprisal=None
            if observation.surprisal_from == NEVER
            else np.array(observation.surprisal, np.float32),
        )

    def _reply(
        self,
        cache: KvCache,
        sampler: Sampler,
        sampling: Sampling,
        label: int,
        capture_row: bool,
        stopped: Callable[[], bool],
        started: float,
    ) -> Generator[GenerationEvent | None]:
        stops = StopStrings((*sampling.stop, *self.end_texts))
        generated = released = 0
        reason: StopReason | None = None
        last: AttentionRow | None = None
        while reason is None:
            if stopped():
                reason = "abort"
                break
            row = cache.row() if capture_row else None
            if capture_row and row is None and cache.last_attention is not None:
                self.mapping_errors += 1
                cache.rebuild_reason = "attention did not match the cells"
            id = sampler.sample(cache.context)
            if self.model.ends_generation(id):
                reason, last = "eos", row
                break
            likely = sampler.top_tokens(cache.context, sampling.likely) if sampling.likely else ()
            step = Step(id, label, self.model.piece(id), cache.surprisal(-1, id), row, likely)
            generated += 1
            out, met = stops.feed(step)
            released += len(out)
            yield from out
            if met:
                reason = "stop"
            elif generated == sampling.max_new_tokens:
                reason = "length"
            elif not self._has_room(cache):
                reason = "context"
            else:
                cache.append(label, id, capture_row=capture_row)
                label += 1
                if not out:
                    yield None
        rest = stops.rest()
        yield from rest
        yield GenerationEnd(reason, released + len(rest), time.perf_counter() - started, last)

    def _has_room(self, cache: KvCache) -> bool:
        """Whether there is room for one more live token. Closes gaps between places if necessary."""
        if cache.count + 1 > self.info.context or not cache.cells.free:
            return False
        if cache.next_place >= self.config.trained_context:
            if not self.info.abilities.cuts or cache.next_place == cache.count:
                return False
            cache.compact()
        return True

    def _cache(self, window: str, tokens: int, *, attention: bool) -> KvCache:
        """The window's cache with room for `tokens`. If memory is short, idle windows are dropped."""
        attention = (
            attention or self.config.callback_in_c
        )  # the callback in C costs nothing while no rows are requested
        size = min(
            -(-(tokens + SPARE_CELLS) // CONTEXT_GROWTH) * CONTEXT_GROWTH, self.info.context + SPARE_CELLS
        )
        cache = self.caches.get(window)
        if cache is None or len(cache.cells) < size or (attention and cache.attention_capture is None):
            self._make_room(self.config.bytes(size), window, self.memory_bytes)
            try:
                cache = self._create_or_grow(window, size, attention=attention)
            except EngineError:  # less memory than estimated: drop all idle windows
                self._drop(window)
                self._make_room(self.config.bytes(size), window, 0)
                cache = self._create_or_grow(window, size, attention=attention)
        self.caches.move_to_end(window)
        return cache

    def _drop_erased(self, cache: KvCache, prompt: FlatPrompt) -> None:
        if cache.erased and self.recurrent:  # tokens cannot be removed from a recurrent state
            cache.reset()
        cache.drop_erased(prompt)

    def _create_or_grow(self, window: str, size: int, *, attention: bool) -> KvCache:
        cache = self.caches.get(window)
        if cache is None:
            cache = self.caches[window] = KvCache(self.model, self.config, size, attention=attention)
            cache.erased = self.erased.pop(window, [])
        else:
            if cache.rebuild_reason or cache.shift_pending:
                cache.reset()
            attention = attention or cache.attention_capture is not None
            cache.resize(max(size, len(cache.cells)), attention=attention)
        return cache

    def _make_room(self, bytes: int, window: str, limit: int) -> None:
        for name in list(self.caches):
            if sum(cache.bytes for cache in self.caches.values()) + bytes <= limit:
                break
            if name != window and name not in self.active:
                self._save_and_drop(name)

    # KV cache on disk

    def _open_disk(self) -> CacheFiles | None:
        limits = self.limits
        if limits.cells is None or not self.info.abilities.cuts:
            return None
        quota = disk_quota(limits.cells) if limits.cells_bytes is None else limits.cells_bytes
        if quota <= 0:
            return None
        facts = self.info.tokenizer, limits.kv_type, self.config.sliding_window
        return CacheFiles(limits.cells, cache_key(self.model.path, self.model.library, *facts), quota)

    def _load_saved_cells(
        self, window: str, cache: KvCache, prompt: FlatPrompt, mode: Mode, observation: Observation
    ) -> None:
        """Load cells that need not be computed from disk and from other windows."""
        if self.disk:
            restore_from_disk(self.disk, window, cache, prompt, evicted=mode == "splice")
        if self.info.abilities.cuts:
            copy_shared_prefix(cache, self.caches.values(), prompt)
            if mode == "splice":
                borrow(window, cache, self.caches, self.disk, prompt, observation.compute_from)

    def _save_and_drop(self, window: str) -> None:
        save_window(self.disk, window, self.caches[window])
        self._drop(window)

    def _drop(self, window: str) -> None:
        cache = self.caches.pop(window, None)
        if cache:
            if cache.erased:
                self.erased[window] = cache.erased
            cache.close()
