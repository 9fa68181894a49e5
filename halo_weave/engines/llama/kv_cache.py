"""The KV cache of one window: a llama_context, the live tokens in it, and the saved cells of pruned text. Executes cache plans.

| word | meaning |
| --- | --- |
| cell | the slot of one token's keys and values in the llama_context |
| column | the index of a token's cell, and of the token's column in an attention row |
| place | the token's position within the llama_context (`llama_pos`), which its keys are rotated by |
| label | what identifies the token between prompts: for chunks its position in the memory, for other tokens a negative number |
| id | the token's number in the model's vocabulary |
| index | where the token is among the live tokens, or in the prompt |
"""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Generator, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from halo_weave.core.brightness import AttentionRow, Floats
from halo_weave.core.tokens import Ids, Positions
from halo_weave.engines.base import ANONYMOUS_LABELS, UNSENT_LABELS, positions_of
from halo_weave.engines.flat_prompt import (
    CHUNK,
    NEVER,
    FlatPrompt,
    Kinds,
    Observation,
    attention_row,
    latest_visible_positions,
)
from halo_weave.engines.llama import bindings
from halo_weave.engines.llama.attention_capture import AttentionCapture
from halo_weave.engines.llama.cache_files import SavedCells, SavedWindow, overlaps_any
from halo_weave.engines.llama.cache_plan import (
    MIN_BORROWED_TOKENS,
    CachedTokens,
    CachePlan,
    CellAllocator,
    Move,
    Places,
    Restore,
    contiguous_runs,
    split_runs,
)
from halo_weave.engines.llama.model import Model
from halo_weave.errors import EngineError
from halo_weave.models.memory_estimate import KvType, value_type


class TokenBatch:
    """The arrays of a llama_batch, allocated once."""

    def __init__(self, size: int) -> None:
        self.tokens, self.places, self.sequence_counts, self.sequences = (
            np.ones(size, dtype=np.int32) for _ in range(4)
        )
        self.wants_logits = np.zeros(size, dtype=np.int8)
        integers = ctypes.POINTER(ctypes.c_int32)
        each = [ctypes.cast(self.sequences.ctypes.data + 4 * i, integers) for i in range(size)]
        self.sequence_lists = (integers * size)(*each)
        self.struct = bindings.Batch(
            n_tokens=0,
            token=self.tokens.ctypes.data_as(integers),
            embd=None,
            pos=self.places.ctypes.data_as(integers),
            n_seq_id=self.sequence_counts.ctypes.data_as(integers),
            seq_id=self.sequence_lists,
            logits=self.wants_logits.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(
        self, ids: Ids, places: Places, sequence: int, wants_logits: npt.NDArray[np.bool_]
    ) -> bindings.Batch:
        count = len(ids)
        self.tokens[:count] = ids
        self.places[:count] = places
        self.sequences[:count] = sequence
        self.wants_logits[:count] = wants_logits
        self.struct.n_tokens = count
        return self.struct


# Sequence ids: the live tokens; tokens that are being computed or copied; a second reference to the live tokens, which keeps
# llama.cpp from freeing cells that have left a sliding window.
LIVE, SCRATCH, HELD = 0, 1, 2
ALL_PLACES = (-1, -1)  # all places of a sequence
SAVED_RUN_TOKENS = (
    128  # about the most tokens saved together; to restore some of them, all of them are copied
)
CELL_GRANULARITY = 256  # llama.cpp rounds the number of cells up to a multiple of this


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """How an engine creates its llama_contexts."""

    threads: int
    batch: int  # tokens per decode; another window waits at most for one decode
    trained_context: int  # context length the model was trained with
    cell_bytes: int  # size of one token's keys and values
    buffer_bytes: int  # size of a context without its cells
    graveyard_bytes: int  # limit for the saved cells of pruned text
    callback_in_c: bool  # use the attention callback in C
    kv_type: KvType = "f16"
    sliding_window: int = 0  # width of the model's sliding window in tokens; 0: it has none

    def bytes(self, cells: int) -> int:
        """Memory of a context with this number of cells."""
        return cells * self.cell_bytes + self.buffer_bytes


class ErasedSpan(NamedTuple):
    """The labels `first` to `last` (exclusive) of deleted tokens."""

    first: int
    last: int
    read: bool  # this window's prompts have contained them, so later tokens have attended to them


class CellsRejected(EngineError):
    """llama.cpp could not restore saved keys and values to this cache."""


def _is_unaffected(saved: SavedCells, erased: Sequence[ErasedSpan]) -> bool:
    """Whether none of these tokens was deleted or has attended to deleted text."""
    latest = int(saved.latest.max())
    return not overlaps_any(saved.tokens.labels, [span[:2] for span in erased]) and all(
        latest < span.first for span in erased if span.read
    )


def _length_before_unsent(labels: Positions) -> int:
    """The number of tokens before the first one that was typed but not sent."""
    return int(np.argmax(np.append(labels <= UNSENT_LABELS, True)))


class KvCache:
    """A llama_context with the live tokens of one window, and copies of the cells of tokens that were pruned from it."""

    def __init__(self, model: Model, config: ContextConfig, size: int, *, attention: bool) -> None:
        """`attention`: whether attention rows can be captured."""
        self.model, self.config, self.c = model, config, model.c
        self.batch = TokenBatch(config.batch)
        self.erased: list[ErasedSpan] = []  # deleted text whose cells have not been removed yet
        self.disk_unchecked = True  # the window's saved cells on disk have not been loaded yet
        self.evicted: list[SavedCells] = []  # cells of pruned text
        self.newly_evicted: list[SavedCells] = []  # those that have not been written to disk yet
        self.temporary = False  # its cells are never written to disk
        self.prefetch_result: Observation | None = None  # captured by a prefetch of text that is not sent yet
        self.exp_buffer = np.empty(model.size, dtype=np.float32)
        self._open(size, attention=attention)
        self.reset()

    def _open(self, size: int, *, attention: bool) -> None:
        size = -(-size // CELL_GRANULARITY) * CELL_GRANULARITY
        self.attention_capture = (
            AttentionCapture(
                self.c,
                int(self.c.llama_model_n_layer(self.model.handle)),
                int(self.c.llama_model_n_head(self.model.handle)),
                size,
                self.config.batch,
                in_c=self.config.callback_in_c,
            )
            if attention
            else None
        )
        self.last_attention: Floats | None = None  # (queries, columns) of the last decode
        self.last_attention_by_head: Floats | None = None  # (queries, pairs, columns)
        self.context: int | None = self.model.context(
            n_ctx=size,
            n_batch=self.config.batch,
            n_ubatch=self.config.batch,
            n_seq_max=3 if self.config.sliding_window else 2,  # LIVE, SCRATCH, and HELD for a sliding window
            kv_unified=True,  # so that sequences share cells
            swa_full=True,  # a cell for each token in the layers with a sliding window, too
            flash_attn_type=bindings.FLASH_ATTENTION_OFF,
            type_k=bindings.TENSOR_TYPES[self.config.kv_type],
            type_v=bindings.TENSOR_TYPES[value_type(self.config.kv_type)],
            n_threads=self.config.threads,
            n_threads_batch=self.config.threads,
            **(self.attention_capture.settings if self.attention_capture else {}),
        )
        self.memory = self.c.llama_get_memory(self.context)
        self.cells = CellAllocator(int(self.c.llama_n_ctx(self.context)))

    def close(self) -> None:
        self.evicted.clear()
        if self.context:
            self.c.llama_free(self.context)
            self.context = None

    def reset(self) -> None:
        """Remove all live tokens. The saved cells of pruned text stay."""
        self.c.llama_memory_clear(self.memory, False)
        self.cells = CellAllocator(len(self.cells))
        capacity = len(self.cells)
        self.count = 0
        self.labels = np.zeros(capacity, dtype=np.int64)
        self.ids = np.zeros(capacity, dtype=np.int32)
        self.places = np.zeros(capacity, dtype=np.int32)
        self.columns = np.zeros(capacity, dtype=np.int32)  # index of each live token's cell
        self.kinds = np.zeros(capacity, dtype=np.uint8)
        self.latest = np.zeros(capacity, dtype=np.int64)  # the latest position that each token attended to
        self.lendable = np.zeros(capacity, dtype=np.bool_)  # said and computed in this window
        # Keys of the other windows whose cells were copied here, so that live tokens may have attended to them.
        self.lenders: set[str] = set()
        self.owner: str | None = None  # the owner of the window, if it is a window of this server's store
        self.executing_plan = False  # if so, the list of live tokens is not valid
        self.exact_prefix = (
            0  # number of first tokens whose cells are as a prefill of the whole prompt would make them
        )
        self.shift_pending = False  # keys are shifted to their new places by the next decode
        self.rebuild_reason = ""  # why the whole prompt must be computed again; empty: it need not

    def resize(self, size: int, *, attention: bool) -> None:
        """Replace the context by one with more cells, or with attention capture, and copy the live tokens over."""
        saved, rebuild_reason = self.snapshot(), self.rebuild_reason
        old, self.context = self.context, None
        self.c.llama_free(old)
        self._open(size, attention=attention)
        self.reset()
        self.load_saved(saved)
        self.rebuild_reason = rebuild_reason

    def snapshot(self, first: int = NEVER, *, start: int = 0) -> SavedWindow:
        """A copy of the first live tokens (all by default) from `start` on, without text that was typed but not sent."""
        sent = np.arange(start, _length_before_unsent(self.labels[: min(self.count, first)]))
        pieces = [
            run[piece]
            for run in self._contiguous_runs(sent)
            for piece in split_runs(self.labels[run], SAVED_RUN_TOKENS)
        ]
        return SavedWindow([self._copy_tokens(piece) for piece in pieces], self.exact_prefix)

    def cells_to_lend(
        self, window: str, prompt: FlatPrompt, missing: npt.NDArray[np.bool_]
    ) -> list[SavedCells]:
        """Copies of cells for the `missing` tokens of another window's prompt. `window`: the key of this window."""
        if (
            self.owner != prompt.owner
            or self.executing_plan
            or self.erased
            or self.rebuild_reason
            or self.shift_pending
        ):
            return []
        lenders = frozenset({window, *self.lenders})
        live = slice(0, self.count)
        lendable_index = np.flatnonzero(
            self.lendable[live] & prompt.contains(self.labels[live], self.ids[live], missing)
        )
        lent = [
            self._copy_tokens(run[piece]).as_borrowed(lenders, np.ones(piece.stop - piece.start, np.bool_))
            for run in self._contiguous_runs(lendable_index)
            for piece in split_runs(self.labels[run], SAVED_RUN_TOKENS)
            if len(run) >= MIN_BORROWED_TOKENS
        ]
        for cells in self.evicted:
            tokens = cells.tokens
            if cells.owner == prompt.owner and not tokens.borrowed and prompt.is_consistent_with(tokens):
                wanted = cells.lendable & prompt.contains(tokens.labels, tokens.ids, missing)
                if wanted.any():
                    lent.append(cells.as_borrowed(cells.lenders | {window}, wanted))
        return lent

    def borrowed_from(self, windows: Collection[str]) -> bool:
        """Whether cells here were copied from one of these windows, or have attended to such cells."""
        return not self.lenders.isdisjoint(windows) or any(
            not cells.lenders.isdisjoint(windows) for cells in self.evicted
        )

    def load_saved(self, saved: SavedWindow) -> None:
        """Append saved tokens to the live ones. Their kinds are set when the next plan is executed."""
        for part in saved.parts:
            appended = slice(self.count, self.count + len(part.tokens))
            self.columns[appended] = self._restore_cells(part, 0, part.tokens.places)
            self.labels[appended], self.ids[appended] = part.tokens.labels, part.tokens.ids
            self.places[appended] = part.tokens.places
            self.latest[appended], self.lendable[appended] = part.latest, part.lendable
            self.lenders |= part.lenders
            self.owner = part.owner
            self.count = appended.stop
        self.exact_prefix = min(saved.exact_prefix, self.count)

    @property
    def bytes(self) -> int:
        return self.config.bytes(len(self.cells)) + self.evicted_bytes

    @property
    def evicted_bytes(self) -> int:
        """Memory of the saved cells of pruned text."""
        return sum(saved.state.nbytes for saved in self.evicted)

    def drop_oldest(self, size: int) -> int:
        """Drop the oldest saved cells of pruned text until `size` bytes are freed. Returns the number of freed bytes."""
        freed = 0
        while self.evicted and freed < size:
            freed += self.evicted.pop(0).state.nbytes
        return freed

    @property
    def live(self) -> CachedTokens:
        live = slice(0, self.count)
        return CachedTokens(self.labels[live].copy(), self.ids[live].copy(), self.places[live].copy())

    def common_prefix_length(self, prompt: FlatPrompt) -> int:
        """The number of first tokens that the prompt and the live tokens have in common."""
        shorter = min(self.count, len(prompt))
        same = (self.ids[:shorter] == prompt.ids[:shorter]) & (self.kinds[:shorter] == prompt.kinds[:shorter])
        return int(np.argmin(np.append(same, False)))

    def erase(self, erased: Sequence[ErasedSpan]) -> None:
        """Drop saved cells of deleted tokens and of tokens that have attended to them. Live ones: see `drop_erased`."""
        self.erased += erased
        self.evicted = [saved for saved in self.evicted if _is_unaffected(saved, erased)]
        self.newly_evicted = [saved for saved in self.newly_evicted if _is_unaffected(saved, erased)]

    def drop_erased(self, prompt: FlatPrompt | None = None) -> None:
        """Remove live tokens that were deleted or have attended to deleted tokens, without saving their cells.

        If the prompt still has deleted tokens, its turn began before the deletion: then they are removed later.
        """
        ends = [span.last - 1 for span in self.erased]
        if prompt is not None and bool(np.isin(ends, positions_of(prompt.labels)).any()):
            return
        stale = self._stale_from()
        self.erased.clear()
        if stale != NEVER:
            kept = int(np.argmax(np.append(self.latest[: self.count] >= stale, True)))
            self._remove(np.arange(kept, self.count), keep=False)
            self.count, self.exact_prefix, self.prefetch_result = kept, min(self.exact_prefix, kept), None

    def _stale_from(self) -> int:
        """Tokens that have attended to this label or a later one may have attended to deleted text."""
        labels = self.labels[: self.count]
        return min(
            (span.first for span in self.erased if span.read or overlaps_any(labels, [span[:2]])),
            default=NEVER,
        )

    def restorable(self, prompt: FlatPrompt) -> list[SavedCells]:
        """The saved cells that fit. To restore some tokens of a saved run, all its tokens need free cells for a moment."""
        spare = len(self.cells) - len(prompt)
        return [
            saved
            for saved in self.evicted
            if len(saved.tokens) <= spare
            or len(saved.tokens) - int(np.isin(saved.tokens.labels, prompt.labels).sum()) <= spare
        ]

    def _save(self, sequence: int) -> npt.NDArray[np.uint8]:
        size = self.c.llama_state_seq_get_size(self.context, sequence)
        state = np.empty(size, dtype=np.uint8)
        if self.c.llama_state_seq_get_data(self.context, state.ctypes.data, size, sequence) != size:
            raise EngineError("llama.cpp could not save a part of the KV cache.")
        return state

    def _load(self, state: npt.NDArray[np.uint8], sequence: int) -> None:
        if not self.c.llama_state_seq_set_data(self.context, state.ctypes.data, state.nbytes, sequence):
            raise CellsRejected(
                f"llama.cpp could not restore a part of the KV cache{self.model.library.error_detail()}."
            )

    # Executing a plan

    def execute_plan(
        self,
        plan: CachePlan,
        evicted: list[SavedCells],
        prompt: FlatPrompt,
        observation: Observation,
        *,
        keep_evicted: bool,
        batch: int,
        prefix_context: PrefixContext | None = None,
    ) -> Generator[None]:
        """Bring the prompt into the cache. Yields after each decode of `batch` tokens, so that other windows can run.

        `evicted`: the saved cells that the plan's `Restore` steps refer to. If execution is stopped, the tokens that are
        complete so far are live.

        llama.cpp appends only to the end of a sequence. A gap in the middle is decoded in a second sequence that shares
        the cells before the gap; then the new cells are moved to the live sequence.
        """
        self.rebuild_reason = "it was interrupted while cells were removed"
        self.executing_plan = True
        is_kept, latest, lendable = self._inherit(plan, evicted, prompt)
        self._remove(plan.removed, keep=keep_evicted)
        self._move(plan.moves)
        self.rebuild_reason = ""
        is_live = is_kept.copy()
        columns = np.zeros(len(prompt), dtype=np.int32)
        columns[is_kept] = self.columns[plan.kept]
        shifted = np.flatnonzero(is_kept)[self.places[plan.kept] != plan.places[is_kept]]
        first_shifted = int(
            shifted.min(initial=NEVER)
        )  # keys from this index on are shifted by the next decode
        same_index = int(np.argmin(np.append(plan.kept == np.arange(len(plan.kept)), False)))
        kept_prefix = int(np.argmin(np.append(is_kept, False)))
        self.exact_prefix = min(self.exact_prefix, same_index, kept_prefix)
        stays_exact = len(plan.steps) == 1 and kept_prefix == self.exact_prefix  # only the end is computed
        uncommitted = slice(0)  # tokens of a gap that are computed but not live yet
        try:
            for step in plan.steps:
                target = slice(step.start, step.stop)
                places = plan.places[target]
                if isinstance(step, Restore):
                    saved = evicted[step.run]
                    if int(places[0]) != int(saved.tokens.places[step.at]):
                        first_shifted = min(first_shifted, step.start)
                    columns[target] = self._restore_cells(saved, step.at, places)
                    is_live[target] = True
                    continue
                is_tail = step.stop == len(prompt)
                unobserved = step.stop <= observation.compute_from and not is_tail
                if prefix_context and unobserved and prefix_context.is_worthwhile(step.start, step.stop):
                    if step.start > first_shifted:
                        self._shift()
                        first_shifted = NEVER
                    tokens = CachedTokens(prompt.labels, prompt.ids, plan.places)
                    saved = yield from prefix_context.compute(tokens, columns, step.start, step.stop, batch)
                    columns[target] = self._restore_cells(saved, 0, places)
                    is_live[target] = True
                    continue
                if not is_tail and step.start:  # share the cells before the gap
                    self.c.llama_memory_seq_cp(self.memory, LIVE, SCRATCH, 0, int(places[0]))
                for start in range(step.start, step.stop, batch):
                    stop = min(step.stop, start + batch)
                    sequence = LIVE if is_tail else SCRATCH
                    self._compute(start, stop, sequence, plan.places, columns, prompt, observation)
                    is_live[start:stop], first_shifted = is_tail, NEVER
                    uncommitted = slice(stop if is_tail else step.start, stop)
                    yield
                if not is_tail:
                    first, last = int(places[0]), int(places[-1]) + 1
                    self.c.llama_memory_seq_cp(self.memory, SCRATCH, LIVE, first, last)
                    self.c.llama_memory_seq_rm(self.memory, SCRATCH, *ALL_PLACES)
                    is_live[target] = True
                uncommitted = slice(0)
        finally:
            self.c.llama_memory_seq_rm(self.memory, SCRATCH, *ALL_PLACES)
            self._discard_cells(columns[uncommitted], plan.places[uncommitted])
            self.count = int(is_live.sum())
            for live_values, prompt_values in (
                (self.labels, prompt.labels),
                (self.ids, prompt.ids),
                (self.places, plan.places),
                (self.columns, columns),
                (self.kinds, prompt.kinds),
                (self.latest, latest),
                (self.lendable, lendable & (latest < NEVER)),
            ):
                live_values[: self.count] = prompt_values[is_live]
            self.executing_plan, self.owner = False, prompt.owner
            if self.shift_pending and not self.rebuild_reason and self.cells.free:
                self._shift()  # execution was stopped before the next decode
        if stays_exact:
            self.exact_prefix = self.count
        live = set(zip(prompt.labels.tolist(), prompt.ids.tolist(), strict=True))
        self.evicted = [saved for saved in self.evicted if not live.issuperset(saved.tokens)]

    def _inherit(
        self, plan: CachePlan, evicted: list[SavedCells], prompt: FlatPrompt
    ) -> tuple[npt.NDArray[np.bool_], npt.NDArray[np.int64], npt.NDArray[np.bool_]]:
        """For each token of the prompt: whether it is kept, the latest position that it attended to, and whether its cell may
        be lent. Kept and restored tokens have the latter two from their cells."""
        is_kept = np.ones(len(prompt), dtype=np.bool_)
        latest_of_reused = np.full(len(prompt), -1, np.int64)
        lendable = prompt.lendable.copy()
        for step in plan.steps:
            target = slice(step.start, step.stop)
            is_kept[target] = False
            if isinstance(step, Restore):
                saved, source = evicted[step.run], slice(step.at, step.at + step.stop - step.start)
                latest_of_reused[target], lendable[target] = saved.latest[source], saved.lendable[source]
                self.lenders |= saved.lenders
        latest_of_reused[is_kept], lendable[is_kept] = self.latest[plan.kept], self.lendable[plan.kept]
        return is_kept, latest_visible_positions(prompt.labels, prompt.kinds, latest_of_reused), lendable

    def _move(self, moves: Iterable[Move]) -> None:
        """Give live tokens new places. llama.cpp shifts their keys in the next decode."""
        for move in moves:
            self.c.llama_memory_seq_add(self.memory, LIVE, move.start, move.stop, move.by)
            self.cells.rewind()
            self.shift_pending = True

    def _remove(self, index: npt.NDArray[np.intp], *, keep: bool) -> None:
        """Remove live tokens. `keep`: save their cells while there is room."""
        free_tokens = self.config.graveyard_bytes // self.config.cell_bytes  # tokens
        stale = self._stale_from()
        for run in self._contiguous_runs(index):
            first, last = int(self.places[run[0]]), int(self.places[run[-1]]) + 1
            sent = run[: _length_before_unsent(self.labels[run])]
            # A frame alone is never restored.
            identifiable = bool((self.labels[sent] > ANONYMOUS_LABELS).any())
            for piece in split_runs(self.labels[sent], SAVED_RUN_TOKENS) if keep and identifiable else ():
                never_saw_deleted = bool((self.latest[sent[piece]] < stale).all()) or stale == NEVER
                if never_saw_deleted and len(sent[piece]) <= free_tokens:
                    self.evicted.append(self._copy_tokens(sent[piece]))
                    self.newly_evicted.append(self.evicted[-1])
                    free_tokens -= len(sent[piece])
            for sequence in (LIVE, HELD) if self.config.sliding_window else (LIVE,):
                self.c.llama_memory_seq_rm(self.memory, sequence, first, last)
            self.cells.release(self.columns[run])
        self.drop_oldest(self.evicted_bytes - self.config.graveyard_bytes)

    def _discard_cells(self, cells: npt.NDArray[np.int32], places: Places) -> None:
        """Free the cells of tokens that were computed but did not become live, since execution was stopped."""
        if len(cells) and self.config.sliding_window:
            self.c.llama_memory_seq_rm(self.memory, HELD, int(places[0]), int(places[-1]) + 1)
        self.cells.release(cells)

    def _shift(self) -> None:
        """Let llama.cpp shift keys to their new places now: it does so in any decode, here of one discarded token."""
        cells = self.decode(self.ids[:1], np.zeros(1, np.int32), SCRATCH, np.zeros(1, np.bool_), queries=0)
        self.c.llama_memory_seq_rm(self.memory, SCRATCH, *ALL_PLACES)
        self.cells.release(cells)

    def _contiguous_runs(self, index: npt.NDArray[np.intp]) -> Iterator[npt.NDArray[np.intp]]:
        """Runs of adjacent live tokens. With a sliding window, llama.cpp saves at most its width at once."""
        for start, stop in contiguous_runs(index):
            while start < stop:
                reach = int(self.places[index[start]]) + (self.config.sliding_window or NEVER)
                end = start + int(np.searchsorted(self.places[index[start:stop]], reach))
                yield index[start:end]
                start = end

    def _copy_tokens(self, index: npt.NDArray[np.intp]) -> SavedCells:
        """A copy of adjacent live tokens with their keys and values."""
        tokens = CachedTokens(self.labels[index], self.ids[index], self.places[index])
        order, state = self._copy_state(tokens.places, self.columns[index])
        lenders = frozenset(self.lenders)
        return SavedCells(tokens, order, state, self.latest[index], self.lendable[index], lenders, self.owner)

    def copy_cells(self, tokens: CachedTokens, columns: npt.NDArray[np.int32]) -> SavedCells:
        """A copy of tokens that are not registered as live yet. `columns`: their cells."""
        order, state = self._copy_state(tokens.places, columns)
        return SavedCells.unshared(tokens, order, state)

    def _copy_state(
        self, places: Places, columns: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint8]]:
        first, last = int(places[0]), int(places[-1]) + 1
        self.c.llama_memory_seq_cp(self.memory, LIVE, SCRATCH, first, last)
        order, state = np.argsort(columns, kind="stable"), self._save(SCRATCH)
        self.c.llama_memory_seq_rm(self.memory, SCRATCH, *ALL_PLACES)
        return order, state

    def _hold(self, sequence: int, first: int, last: int) -> None:
        """Keep llama.cpp from freeing cells that have left the sliding window: a second sequence refers to them, too."""
        if self.config.sliding_window:
            self.c.llama_memory_seq_cp(self.memory, sequence, HELD, first, last)

    def _restore_cells(self, saved: SavedCells, first_token: int, places: Places) -> npt.NDArray[np.int32]:
        """Restore `len(places)` saved tokens, from index `first_token` on, to `places`. Returns their cells."""
        stop = first_token + len(places)
        self._load(saved.state, SCRATCH)
        cells = np.empty(len(saved.tokens), dtype=np.int32)
        cells[saved.order] = self.cells.allocate(len(saved.tokens))
        saved_places = saved.tokens.places
        for unwanted in (slice(0, first_token), slice(stop, len(saved_places))):
            if len(saved_places[unwanted]):
                first, last = int(saved_places[unwanted][0]), int(saved_places[unwanted][-1]) + 1
                self.c.llama_memory_seq_rm(self.memory, SCRATCH, first, last)
                self.cells.release(cells[unwanted])
        by = int(places[0]) - int(saved_places[first_token])
        if by:
            self.c.llama_memory_seq_add(
                self.memory, SCRATCH, int(saved_places[first_token]), int(saved_places[stop - 1]) + 1, by
            )
            self.cells.rewind()
            self.shift_pending = True
        self.c.llama_memory_seq_cp(self.memory, SCRATCH, LIVE, *ALL_PLACES)
        self._hold(SCRATCH, *ALL_PLACES)
        self.c.llama_memory_seq_rm(self.memory, SCRATCH, *ALL_PLACES)
        return cells[first_token:stop]

    def _compute(
        self,
        start: int,
        stop: int,
        sequence: int,
        places: Places,
        columns: npt.NDArray[np.int32],
        prompt: FlatPrompt,
        observation: Observation,
    ) -> None:
        """Run tokens `start` to `stop` of the prompt through the model, and record their attention and surprisal."""
        if start == observation.surprisal_from == 0 and prompt.kinds[0] == CHUNK:
            # Nothing predicts the first token: all are equally likely.
            observation.surprisal.append(float(np.log(self.model.size)))
        following = np.arange(start + 1, stop + 1)
        surprisal_wanted = (following >= observation.surprisal_from) & (following < len(prompt))
        surprisal_wanted[surprisal_wanted] = prompt.kinds[following[surprisal_wanted]] == CHUNK
        logits = surprisal_wanted.copy()
        logits[-1] |= stop == len(prompt)
        rows_wanted = max(0, stop - max(start, observation.rows_from))
        if stop == len(prompt) and observation.last_row:
            rows_wanted = max(rows_wanted, 1)
        columns[start:stop] = self.decode(
            prompt.ids[start:stop], places[start:stop], sequence, logits, rows_wanted
        )
        for i in range(max(start, observation.rows_from), stop) if self.last_attention is not None else ():
            if prompt.kinds[i] == CHUNK:
                row = self._row(i - stop, columns[: i + 1], prompt.kinds[: i + 1])
                if row is None:
                    observation.mapping_errors += 1
                else:
                    observation.rows.append(row)
        for i in np.flatnonzero(surprisal_wanted).tolist():
            observation.surprisal.append(self.surprisal(i, int(prompt.ids[start + i + 1])))

    def decode(
        self, ids: Ids, places: Places, sequence: int, logits: npt.NDArray[np.bool_], queries: int
    ) -> npt.NDArray[np.int32]:
        """Run tokens through the model. Returns their cells; `last_attention` has the attention of the last `queries` tokens."""
        cells = self.cells.allocate(len(ids))
        if self.attention_capture:
            self.attention_capture.open(len(ids), queries)
        result = self.c.llama_decode(self.context, self.batch.fill(ids, places, sequence, logits))
        if self.attention_capture:
            self.last_attention, self.last_attention_by_head = self.attention_capture.close()
        if result:
            self.rebuild_reason = "a decode failed"
            raise EngineError(
                f"llama.cpp could not run the model (code {result}){self.model.library.error_detail()}."
            )
        self.shift_pending = False
        self._hold(sequence, int(places[0]), int(places[-1]) + 1)
        return cells

    # Growing

    def extend(self, tokens: CachedTokens) -> None:
        """Compute these tokens after the live ones, without capturing anything."""
        appended = slice(self.count, self.count + len(tokens))
        self.columns[appended] = self.decode(
            tokens.ids, tokens.places, LIVE, np.zeros(len(tokens), np.bool_), queries=0
        )
        self.labels[appended], self.ids[appended], self.places[appended] = (
            tokens.labels,
            tokens.ids,
            tokens.places,
        )
        self.count = appended.stop

    def append(self, label: int, token_id: int, *, capture_row: bool) -> None:
        """Compute a generated token, which becomes the last live one."""
        index = self.count
        place = int(self.places[index - 1]) + 1
        (cell,) = self.decode(
            np.array([token_id], np.int32),
            np.array([place], np.int32),
            LIVE,
            np.ones(1, np.bool_),
            int(capture_row),
        )
        self.labels[index], self.ids[index], self.places[index] = label, token_id, place
        self.columns[index], self.kinds[index] = cell, CHUNK
        self.latest[index] = max(label, int(self.latest[:index].max()))
        self.lendable[index] = self.owner is not None and label >= 0 and self.latest[index] < NEVER
        if self.exact_prefix == index:
            self.exact_prefix += 1
        self.count += 1

    def compact(self) -> None:
        """Shift the live tokens together, to places without gaps."""
        places = self.places[: self.count]
        index = np.arange(self.count, dtype=np.int32)
        for start, stop in contiguous_runs(places):
            by = start - int(places[start])
            if by:
                self.c.llama_memory_seq_add(
                    self.memory, LIVE, int(places[start]), int(places[stop - 1]) + 1, by
                )
                self.cells.rewind()
                self.shift_pending = True
        self.exact_prefix = min(self.exact_prefix, int(np.argmin(np.append(places == index, False))))
        self.places[: self.count] = index

    @property
    def next_place(self) -> int:
        return int(self.places[self.count - 1]) + 1

    def surprisal(self, index: int, token_id: int) -> float:
        """Negative log-probability of a token under the model's own distribution, in nats."""
        logits = self.model.logits(self.context, index)
        peak = logits.max()
        np.subtract(logits, peak, out=self.exp_buffer)
        np.exp(self.exp_buffer, out=self.exp_buffer)
        return float(peak + np.log(self.exp_buffer.sum()) - logits[token_id])

    def row(self) -> AttentionRow | None:
        """The attention of the last token over all live tokens; None if it does not match their cells."""
        live = slice(0, self.count)
        return self._row(-1, self.columns[live], self.kinds[live])

    def _row(self, query: int, columns: npt.NDArray[np.int32], kinds: Kinds) -> AttentionRow | None:
        """The attention of one token of the last decode. `query`: its index, counted from the end."""
        if self.last_attention is None:
            return None
        raw = None if self.last_attention_by_head is None else self.last_attention_by_head[query]
        return attention_row(self.last_attention[query], columns, kinds, raw)


# The cost of copying one token and of creating a context, as a number of cells attended to (2.5 us each on one core,
# measured with SmolLM2-135M).
COPY_COST, OPEN_COST = 8, 16_000


class PrefixContext:
    """A second context that has only the tokens before a gap. Computing the gap there attends to fewer cells.

    Attention runs over all cells of a context, also over those of later tokens. The second context exists during one prefill;
    gaps are computed in time order, so that each copy continues where the last one ended.
    """

    def __init__(self, main: KvCache, size: int) -> None:
        self._main_cache, self._size = main, size
        self._prefix_cache: KvCache | None = None

    def close(self) -> None:
        if self._prefix_cache is not None:
            self._prefix_cache.close()

    def is_worthwhile(self, start: int, stop: int) -> bool:
        """Whether computing tokens `start` to `stop` here is faster than in the main context."""
        main = self._main_cache
        if main.config.sliding_window or not start:
            return False
        avoided_work = (stop - start) * (len(main.cells) - main.cells.free - start)
        present = self._prefix_cache.count if self._prefix_cache else 0
        return avoided_work > COPY_COST * (start - present + stop - start) + (
            0 if self._prefix_cache else OPEN_COST
        )

    def compute(
        self, tokens: CachedTokens, columns: npt.NDArray[np.int32], start: int, stop: int, batch: int
    ) -> Generator[None, None, SavedCells]:
        """Compute tokens `start` to `stop`; those before them are in the main context, in the cells `columns`.

        Yields after each batch. Returns the cells of the computed tokens.
        """
        if self._prefix_cache is None:
            self._prefix_cache = KvCache(
                self._main_cache.model, self._main_cache.config, self._size, attention=False
            )
        prefix, present = self._prefix_cache, self._prefix_cache.count
        if present < start:
            missing = slice(present, start)
            copied = self._main_cache.copy_cells(tokens.part(missing), columns[missing])
            prefix.load_saved(SavedWindow([copied], 0))
        for first in range(start, stop, batch):
            prefix.extend(tokens.part(slice(first, min(stop, first + batch))))
            yield
        return prefix.copy_cells(tokens.part(slice(start, stop)), prefix.columns[start:stop])
