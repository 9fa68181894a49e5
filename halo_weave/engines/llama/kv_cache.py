"""The KV cache of one window: a llama_context, the live tokens in it, and the saved cells of pruned text. Executes cache plans."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from halo_weave.core.brightness import AttentionRow, Floats
from halo_weave.core.tokens import Ids, Positions
from halo_weave.engines.base import NAMELESS, UNSENT
from halo_weave.engines.flat_prompt import (
    CHUNK,
    NEVER,
    FlatPrompt,
    Kinds,
    Observation,
    attention_row,
    latest_in_sight,
)
from halo_weave.engines.llama import bindings
from halo_weave.engines.llama.attention_capture import AttentionCapture
from halo_weave.engines.llama.cache_files import SavedCells, SavedWindow, overlaps_any
from halo_weave.engines.llama.cache_plan import (
    LEAST_BORROWED,
    CachedTokens,
    CachePlan,
    CellAllocator,
    Places,
    Restore,
    contiguous_runs,
    split_runs,
)
from halo_weave.engines.llama.model import Model
from halo_weave.errors import EngineError
from halo_weave.models.memory_estimate import KvType, value_type


class TokenBatch:
    """The arrays behind a llama_batch, made once."""

    def __init__(self, size: int) -> None:
        self.tokens, self.places, self.ones, self.sequences = (
            np.ones(size, dtype=np.int32) for _ in range(4)
        )
        self.wanted = np.zeros(size, dtype=np.int8)
        integers = ctypes.POINTER(ctypes.c_int32)
        each = [ctypes.cast(self.sequences.ctypes.data + 4 * i, integers) for i in range(size)]
        self.lists = (integers * size)(*each)
        self.struct = bindings.Batch(
            n_tokens=0,
            token=self.tokens.ctypes.data_as(integers),
            embd=None,
            pos=self.places.ctypes.data_as(integers),
            n_seq_id=self.ones.ctypes.data_as(integers),
            seq_id=self.lists,
            logits=self.wanted.ctypes.data_as(ctypes.POINTER(ctypes.c_int8)),
        )

    def fill(self, ids: Ids, places: Places, sequence: int, wanted: npt.NDArray[np.bool_]) -> bindings.Batch:
        count = len(ids)
        self.tokens[:count] = ids
        self.places[:count] = places
        self.sequences[:count] = sequence
        self.wanted[:count] = wanted
        self.struct.n_tokens = count
        return self.struct


LIVE, SCRATCH, HELD = 0, 1, 2  # sequence ids
ALL_PLACES = (-1, -1)  # all places of a sequence
SAVED_RUN_TOKENS = 128  # tokens that are kept aside as one: to bring back a part, all of them are copied


@dataclass(frozen=True, slots=True)
class ContextConfig:
    """How the contexts of one engine are made."""

    threads: int
    batch: int  # tokens per decode: how long other windows wait, at most
    limit: int  # places the model was trained for
    cell_bytes: int  # keys and values of one token
    buffer_bytes: int  # of a context, beside its cells
    graveyard_bytes: int  # for the cells of pruned text
    callback_in_c: bool  # of the attention reader
    kv_type: KvType = "f16"
    sliding: int = 0  # places that the layers with a sliding window look back; 0: there are none

    def bytes(self, cells: int) -> int:
        """What a context with so many cells takes."""
        return cells * self.cell_bytes + self.buffer_bytes


class ErasedSpan(NamedTuple):
    """Labels of tokens that were deleted."""

    first: int
    last: int  # the one after the last
    read: bool  # by this window: what stands later was computed while they were in sight


class CellsRejected(EngineError):
    """Saved keys and values do not fit into this cache."""


def _is_unaffected(evicted_cells: SavedCells, erased: Sequence[ErasedSpan]) -> bool:
    """Whether nothing of a grave was deleted, or computed while deleted text was in sight."""
    latest = int(evicted_cells.latest.max())
    return not overlaps_any(evicted_cells.tokens.labels, [one[:2] for one in erased]) and all(
        latest < one.first for one in erased if one.read
    )


def _before_unsent(labels: Positions) -> int:
    """How many tokens stand before the first that was typed and not sent."""
    return int(np.argmax(np.append(labels <= UNSENT, True)))


class KvCache:
    """The keys and values of one window."""

    def __init__(self, model: Model, shape: ContextConfig, size: int, *, attention: bool) -> None:
        """`attention`: whether rows can be read from it."""
        self.model, self.shape, self.c = model, shape, model.c
        self.batch = TokenBatch(shape.batch)
        self.erased: list[ErasedSpan] = []  # what was deleted since a prompt was read that does not have it
        self.new = True  # nobody asked yet what lies on disk
        self.evicted: list[SavedCells] = []
        self.fresh: list[SavedCells] = []  # those that fell asleep since somebody asked
        self.read_ahead_result: Observation | None = None  # what was read off of words that were not sent yet
        self.exp_buffer = np.empty(model.size, dtype=np.float32)
        self._open(size, attention=attention)
        self.reset()

    def _open(self, size: int, *, attention: bool) -> None:
        size = -(-size // 256) * 256
        self.reader = (
            AttentionCapture(
                self.c,
                int(self.c.llama_model_n_layer(self.model.handle)),
                int(self.c.llama_model_n_head(self.model.handle)),
                size,
                self.shape.batch,
                in_c=self.shape.callback_in_c,
            )
            if attention
            else None
        )
        self.last_rows: Floats | None = None  # (queries, columns) of the last decode
        self.last_raw: Floats | None = None  # (queries, pairs, columns)
        self.context: int | None = self.model.context(
            n_ctx=size,
            n_batch=self.shape.batch,
            n_ubatch=self.shape.batch,
            n_seq_max=3 if self.shape.sliding else 2,
            kv_unified=True,
            swa_full=True,
            flash_attn_type=bindings.FLASH_ATTENTION_OFF,
            type_k=bindings.TENSOR_TYPES[self.shape.kv_type],
            type_v=bindings.TENSOR_TYPES[value_type(self.shape.kv_type)],
            n_threads=self.shape.threads,
            n_threads_batch=self.shape.threads,
            **(self.reader.settings if self.reader else {}),
        )
        self.memory = self.c.llama_get_memory(self.context)
        self.cells = CellAllocator(int(self.c.llama_n_ctx(self.context)))

    def close(self) -> None:
        self.evicted.clear()
        if self.context:
            self.c.llama_free(self.context)
            self.context = None

    def reset(self) -> None:
        """Empty, as new. What sleeps stays."""
        self.c.llama_memory_clear(self.memory, False)
        self.cells = CellAllocator(len(self.cells))
        room = len(self.cells)
        self.count = 0
        self.labels = np.zeros(room, dtype=np.int64)
        self.ids = np.zeros(room, dtype=np.int32)
        self.places = np.zeros(room, dtype=np.int32)
        self.columns = np.zeros(room, dtype=np.int32)  # each live token's cell
        self.kinds = np.zeros(room, dtype=np.uint8)
        self.latest = np.zeros(room, dtype=np.int64)  # the latest position that each was computed in sight of
        self.lendable = np.zeros(room, dtype=np.bool_)  # said in this window, and computed here
        self.lenders: set[str] = (
            set()
        )  # the windows, by their keys, whose cells were in sight of what is live
        self.owner: str | None = None  # whose window of the memory it is, if it is one
        self.reading = False  # a plan is being carried out: what is live is not known
        self.clean = 0  # how many of the first tokens are as reading anew would make them
        self.settled = True  # no shift waits for the next decode
        self.rebuild_reason = ""  # why the cache should be read anew, if it should

    def resize(self, size: int, *, attention: bool) -> None:
        """A new context with more cells, or one whose attention can be read, and everything live moved over."""
        kept, rebuild_reason = self.saved(), self.rebuild_reason
        old, self.context = self.context, None
        self.c.llama_free(old)
        self._open(size, attention=attention)
        self.reset()
        self.take_in(kept)
        self.rebuild_reason = rebuild_reason

    def saved(self, first: int = NEVER) -> SavedWindow:
        """A copy of everything live, or of the first tokens, up to words that were not sent."""
        sent = np.arange(_before_unsent(self.labels[: min(self.count, first)]))
        pieces = [
            run[piece]
            for run in self._contiguous_runs(sent)
            for piece in split_runs(self.labels[run], SAVED_RUN_TOKENS)
        ]
        return SavedWindow([self._saved(piece) for piece in pieces], self.clean)

    def lent(self, window: str, asked: FlatPrompt, wanted: npt.NDArray[np.bool_]) -> list[SavedCells]:
        """What this window, whose key is `window`, can lend of the wanted tokens of another one's prompt."""
        if (
            self.owner != asked.owner
            or self.reading
            or self.erased
            or self.rebuild_reason
            or not self.settled
        ):
            return []
        lenders = frozenset({window, *self.lenders})
        now = slice(0, self.count)
        mine = np.flatnonzero(self.lendable[now] & asked.has(self.labels[now], self.ids[now], wanted))
        found = [
            self._saved(run[piece]).lent_by(lenders, np.ones(piece.stop - piece.start, np.bool_))
            for run in self._contiguous_runs(mine)
            for piece in split_runs(self.labels[run], SAVED_RUN_TOKENS)
            if len(run) >= LEAST_BORROWED
        ]
        for cells in self.evicted:
            tokens = cells.tokens
            if cells.owner == asked.owner and not tokens.elsewhere and asked.is_consistent_with(tokens):
                these = cells.lendable & asked.has(tokens.labels, tokens.ids, wanted)
                if these.any():
                    found.append(cells.lent_by(cells.lenders | {window}, these))
        return found

    def borrowed_from(self, windows: Collection[str]) -> bool:
        """Whether something here was computed in one of these windows, or in sight of what was."""
        return not self.lenders.isdisjoint(windows) or any(
            not cells.lenders.isdisjoint(windows) for cells in self.evicted
        )

    def take_in(self, saved: SavedWindow) -> None:
        """An empty cache gets what another one had. Kinds are known when the next prompt is read."""
        for part in saved.parts:
            now = slice(self.count, self.count + len(part.tokens))
            self.columns[now] = self._bring_back(part, 0, part.tokens.places)
            self.labels[now], self.ids[now] = part.tokens.labels, part.tokens.ids
            self.places[now] = part.tokens.places
            self.latest[now], self.lendable[now] = part.latest, part.lendable
            self.lenders |= part.lenders
            self.owner = part.owner
            self.count = now.stop
        self.clean = min(saved.clean, self.count)

    @property
    def bytes(self) -> int:
        return self.shape.bytes(len(self.cells)) + self.evicted_bytes

    @property
    def evicted_bytes(self) -> int:
        """Of the cells of pruned text that are kept in memory."""
        return sum(evicted_cells.state.nbytes for evicted_cells in self.evicted)

    def drop_oldest(self, size: int) -> int:
        """At least so many bytes of pruned text's cells go, or all. Returns how many went."""
        gone = 0
        while self.evicted and gone < size:
            gone += self.evicted.pop(0).state.nbytes
        return gone

    @property
    def live(self) -> CachedTokens:
        now = slice(0, self.count)
        return CachedTokens(self.labels[now].copy(), self.ids[now].copy(), self.places[now].copy())

    def common_prefix_length(self, prompt: FlatPrompt) -> int:
        """How many tokens the prompt begins with as the cache does."""
        most = min(self.count, len(prompt))
        same = (self.ids[:most] == prompt.ids[:most]) & (self.kinds[:most] == prompt.kinds[:most])
        return int(np.argmin(np.append(same, False)))

    def erase(self, erased: Sequence[ErasedSpan]) -> None:
        """These tokens were deleted: nothing is kept of them, nor of what was computed while they were in sight."""
        self.erased += erased
        self.evicted = [
            evicted_cells for evicted_cells in self.evicted if _is_unaffected(evicted_cells, erased)
        ]
        self.fresh = [evicted_cells for evicted_cells in self.fresh if _is_unaffected(evicted_cells, erased)]

    def drop_erased(self, prompt: FlatPrompt | None = None) -> None:
        """Live tokens leave for good that were deleted, or computed while deleted ones were in sight.

        Not yet if the prompt still has them: its turn began before the deletion.
        """
        ends = [one.last - 1 for one in self.erased]
        if prompt is not None and bool(np.isin(ends, prompt.labels).any()):
            return
        stale = self._stale_from()
        self.erased.clear()
        if stale != NEVER:
            kept = int(np.argmax(np.append(self.latest[: self.count] >= stale, True)))
            self._remove(np.arange(kept, self.count), keep=False)
            self.count, self.clean, self.read_ahead_result = kept, min(self.clean, kept), None

    def _stale_from(self) -> int:
        """The label from which on deleted text was in sight."""
        labels = self.labels[: self.count]
        return min(
            (one.first for one in self.erased if one.read or overlaps_any(labels, [one[:2]])), default=NEVER
        )

    def usable(self, prompt: FlatPrompt) -> list[SavedCells]:
        """Graves that there is room for: one that returns in part needs cells for all its tokens for a moment."""
        spare = len(self.cells) - len(prompt)
        return [
            evicted_cells
            for evicted_cells in self.evicted
            if len(evicted_cells.tokens) <= spare
            or len(evicted_cells.tokens) - int(np.isin(evicted_cells.tokens.labels, prompt.labels).sum())
            <= spare
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
                f"llama.cpp could not bring back a part of the KV cache{self.model.library.error_detail()}."
            )

    # Carrying out a plan

    def execute_plan(
        self,
        plan: CachePlan,
        evicted: list[SavedCells],
        prompt: FlatPrompt,
        watch: Observation,
        *,
        keep_evicted: bool,
        batch: int,
        apart: PrefixContext | None = None,
    ) -> Generator[None]:
        """Make the prompt live. Yields after each decode of `batch` tokens, so that other windows get their turn.

        `graves` are those that the plan counts. If it is stopped in between, what was done so far is live.

        llama.cpp continues a sequence only at its end. A stretch in the middle is decoded in a second sequence that
        shares what stands before it, and then handed over.
        """
        self.rebuild_reason = "it was interrupted while chunks left"
        self.reading = True
        known = np.full(len(prompt), -1, np.int64)
        stays = np.ones(len(prompt), dtype=np.bool_)
        lendable = prompt.lendable.copy()
        for step in plan.steps:
            stays[step.start : step.stop] = False
            if isinstance(step, Restore):
                back, source = slice(step.start, step.stop), evicted[step.run]
                origin = slice(step.at, step.at + step.stop - step.start)
                known[back], lendable[back] = source.latest[origin], source.lendable[origin]
                self.lenders |= source.lenders
        known[stays], lendable[stays] = self.latest[plan.kept], self.lendable[plan.kept]
        latest = latest_in_sight(prompt.labels, prompt.kinds, known)
        self._remove(plan.removed, keep=keep_evicted)
        for move in plan.moves:
            self.c.llama_memory_seq_add(self.memory, LIVE, move.start, move.stop, move.by)
            self.cells.rewind()
            self.settled = False
        self.rebuild_reason = ""
        present = stays
        columns = np.zeros(len(prompt), dtype=np.int32)
        columns[present] = self.columns[plan.kept]
        elsewhere = np.flatnonzero(present)[self.places[plan.kept] != plan.places[present]]
        moved = int(elsewhere.min(initial=NEVER))  # from here on keys wait for the next decode to be shifted
        unchanged = int(np.argmin(np.append(plan.kept == np.arange(len(plan.kept)), False)))
        head = int(np.argmin(np.append(present, False)))
        self.clean = min(self.clean, unchanged, head)
        only_tail = len(plan.steps) == 1 and head == self.clean
        beside = slice(0)  # tokens of a stretch in the middle that are not handed over yet
        try:
            for step in plan.steps:
                places = plan.places[step.start : step.stop]
                if isinstance(step, Restore):
                    if int(places[0]) != int(evicted[step.run].tokens.places[step.at]):
                        moved = min(moved, step.start)
                    columns[step.start : step.stop] = self._bring_back(evicted[step.run], step.at, places)
                    present[step.start : step.stop] = True
                    continue
                tail = step.stop == len(prompt)
                unseen = step.stop <= watch.compute_from and not tail
                if apart and unseen and apart.is_worthwhile(step.start, step.stop):
                    if step.start > moved:
                        self._shift()
                        moved = NEVER
                    tokens = CachedTokens(prompt.labels, prompt.ids, plan.places)
                    evicted_cells = yield from apart.read(tokens, columns, step.start, step.stop, batch)
                    columns[step.start : step.stop] = self._bring_back(evicted_cells, 0, places)
                    present[step.start : step.stop] = True
                    continue
                if not tail and step.start:
                    self.c.llama_memory_seq_cp(self.memory, LIVE, SCRATCH, 0, int(places[0]))
                for start in range(step.start, step.stop, batch):
                    stop = min(step.stop, start + batch)
                    self._compute(start, stop, LIVE if tail else SCRATCH, plan.places, columns, prompt, watch)
                    present[start:stop], moved = tail, NEVER
                    beside = slice(stop if tail else step.start, stop)
                    yield
                if not tail:
                    first, last = int(places[0]), int(places[-1]) + 1
                    self.c.llama_memory_seq_cp(self.memory, SCRATCH, LIVE, first, last)
                    self.c.llama_memory_seq_rm(self.memory, SCRATCH, *ALL_PLACES)
                    present[step.start : step.stop] = True
                beside = slice(0)
        finally:
            self.c.llama_memory_seq_rm(self.memory, SCRATCH, *ALL_PLACES)
            self._discard_cells(columns[beside], plan.places[beside])
            self.count = int(present.sum())
            for mine, theirs in (
                (self.labels, prompt.labels),
                (self.ids, prompt.ids),
                (self.places, plan.places),
                (self.columns, columns),
                (self.kinds, prompt.kinds),
                (self.latest, latest),
                (self.lendable, lendable & (latest < NEVER)),
            ):
                mine[: self.count] = theirs[present]
            self.reading, self.owner = False, prompt.owner
            if (
                not self.settled and not self.rebuild_reason and self.cells.free
            ):  # it was stopped before a decode
                self._shift()
        if only_tail:
            self.clean = self.count
        live = set(zip(prompt.labels.tolist(), prompt.ids.tolist(), strict=True))
        self.evicted = [
            evicted_cells for evicted_cells in self.evicted if not live.issuperset(evicted_cells.tokens)
        ]

    def _remove(self, index: npt.NDArray[np.intp], *, keep: bool) -> None:
        """Live tokens leave; their keys and values are kept aside while there is room."""
        room = self.shape.graveyard_bytes // self.shape.cell_bytes  # tokens
        stale = self._stale_from()
        for gone in self._contiguous_runs(index):
            first, last = int(self.places[gone[0]]), int(self.places[gone[-1]]) + 1
            sent = gone[: _before_unsent(self.labels[gone])]
            named = bool((self.labels[sent] > NAMELESS).any())  # nobody will ask for a frame without its turn
            for piece in split_runs(self.labels[sent], SAVED_RUN_TOKENS) if keep and named else ():
                sound = bool((self.latest[sent[piece]] < stale).all()) or stale == NEVER
                if sound and len(sent[piece]) <= room:
                    self.evicted.append(self._saved(sent[piece]))
                    self.fresh.append(self.evicted[-1])
                    room -= len(sent[piece])
            for sequence in (LIVE, HELD) if self.shape.sliding else (LIVE,):
                self.c.llama_memory_seq_rm(self.memory, sequence, first, last)
            self.cells.give_back(self.columns[gone])
        self.drop_oldest(self.evicted_bytes - self.shape.graveyard_bytes)

    def _discard_cells(self, cells: npt.NDArray[np.int32], places: Places) -> None:
        """Tokens that were computed and never became live, since reading was stopped."""
        if len(cells) and self.shape.sliding:
            self.c.llama_memory_seq_rm(self.memory, HELD, int(places[0]), int(places[-1]) + 1)
        self.cells.give_back(cells)

    def _shift(self) -> None:
        """Keys that wait to be shifted are: any decode does it."""
        cells = self.decode(self.ids[:1], np.zeros(1, np.int32), SCRATCH, np.zeros(1, np.bool_), queries=0)
        self.c.llama_memory_seq_rm(self.memory, SCRATCH, *ALL_PLACES)
        self.cells.give_back(cells)

    def _contiguous_runs(self, index: npt.NDArray[np.intp]) -> Iterator[npt.NDArray[np.intp]]:
        """Live tokens that follow each other. With sliding windows llama.cpp saves no more than a window at once."""
        for start, stop in contiguous_runs(index):
            while start < stop:
                reach = int(self.places[index[start]]) + (self.shape.sliding or NEVER)
                end = start + int(np.searchsorted(self.places[index[start:stop]], reach))
                yield index[start:end]
                start = end

    def _saved(self, index: npt.NDArray[np.intp]) -> SavedCells:
        """A copy of live tokens that follow each other, with their keys and values."""
        tokens = CachedTokens(self.labels[index], self.ids[index], self.places[index])
        order, state = self._copied(tokens.places, self.columns[index])
        lenders = frozenset(self.lenders)
        return SavedCells(tokens, order, state, self.latest[index], self.lendable[index], lenders, self.owner)

    def copied(self, tokens: CachedTokens, columns: npt.NDArray[np.int32]) -> SavedCells:
        """Likewise of tokens whose cells are `columns`, for a context of this window."""
        order, state = self._copied(tokens.places, columns)
        return SavedCells.unlent(tokens, order, state)

    def _copied(
        self, places: Places, columns: npt.NDArray[np.int32]
    ) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.uint8]]:
        first, last = int(places[0]), int(places[-1]) + 1
        self.c.llama_memory_seq_cp(self.memory, LIVE, SCRATCH, first, last)
        order, state = np.argsort(columns, kind="stable"), self._save(SCRATCH)
        self.c.llama_memory_seq_rm(self.memory, SCRATCH, *ALL_PLACES)
        return order, state

    def _hold(self, sequence: int, first: int, last: int) -> None:
        """llama.cpp takes away cells that have left the sliding window, unless a second sequence has them too."""
        if self.shape.sliding:
            self.c.llama_memory_seq_cp(self.memory, sequence, HELD, first, last)

    def _bring_back(self, evicted_cells: SavedCells, at: int, places: Places) -> npt.NDArray[np.int32]:
        """Bring tokens from index `at` of a grave back, to `places`. Returns their cells."""
        stop = at + len(places)
        self._load(evicted_cells.state, SCRATCH)
        cells = np.empty(len(evicted_cells.tokens), dtype=np.int32)
        cells[evicted_cells.order] = self.cells.take(len(evicted_cells.tokens))
        old = evicted_cells.tokens.places
        for unwanted in (slice(0, at), slice(stop, len(old))):
            if len(old[unwanted]):
                first, last = int(old[unwanted][0]), int(old[unwanted][-1]) + 1
                self.c.llama_memory_seq_rm(self.memory, SCRATCH, first, last)
                self.cells.give_back(cells[unwanted])
        by = int(places[0]) - int(old[at])
        if by:
            self.c.llama_memory_seq_add(self.memory, SCRATCH, int(old[at]), int(old[stop - 1]) + 1, by)
            self.cells.rewind()
            self.settled = False
        self.c.llama_memory_seq_cp(self.memory, SCRATCH, LIVE, *ALL_PLACES)
        self._hold(SCRATCH, *ALL_PLACES)
        self.c.llama_memory_seq_rm(self.memory, SCRATCH, *ALL_PLACES)
        return cells[at:stop]

    def _compute(
        self,
        start: int,
        stop: int,
        sequence: int,
        places: Places,
        columns: npt.NDArray[np.int32],
        prompt: FlatPrompt,
        watch: Observation,
    ) -> None:
        """Run tokens `start` to `stop` of the prompt through the model, and read off what is wanted of them."""
        if start == watch.surprisal_from == 0 and prompt.kinds[0] == CHUNK:
            watch.surprisal.append(float(np.log(self.model.size)))  # nothing came before the very first token
        following = np.arange(start + 1, stop + 1)
        foretold = (following >= watch.surprisal_from) & (following < len(prompt))
        foretold[foretold] = prompt.kinds[following[foretold]] == CHUNK
        logits = foretold.copy()
        logits[-1] |= stop == len(prompt)
        queries = max(0, stop - max(start, watch.rows_from))
        if stop == len(prompt) and watch.last:
            queries = max(queries, 1)
        columns[start:stop] = self.decode(
            prompt.ids[start:stop], places[start:stop], sequence, logits, queries
        )
        for i in range(max(start, watch.rows_from), stop) if self.last_rows is not None else ():
            if prompt.kinds[i] == CHUNK:
                row = self._row(i - stop, columns[: i + 1], prompt.kinds[: i + 1])
                if row is None:
                    watch.mapping_errors += 1
                else:
                    watch.rows.append(row)
        for i in np.flatnonzero(foretold).tolist():
            watch.surprisal.append(self.surprisal(i, int(prompt.ids[start + i + 1])))

    def decode(
        self, ids: Ids, places: Places, sequence: int, logits: npt.NDArray[np.bool_], queries: int
    ) -> npt.NDArray[np.int32]:
        """Run tokens through the model. Returns the cells they got; `last_rows` holds the attention asked for."""
        cells = self.cells.take(len(ids))
        if self.reader:
            self.reader.open(len(ids), queries)
        result = self.c.llama_decode(self.context, self.batch.fill(ids, places, sequence, logits))
        if self.reader:
            self.last_rows, self.last_raw = self.reader.close()
        if result:
            self.rebuild_reason = "the model stopped in the middle"
            raise EngineError(
                f"The model stopped in the middle of its work (code {result}){self.model.library.error_detail()}."
            )
        self.settled = True
        self._hold(sequence, int(places[0]), int(places[-1]) + 1)
        return cells

    # Growing

    def extend(self, tokens: CachedTokens) -> None:
        """These tokens are read and become live at the end; nothing is read off."""
        now = slice(self.count, self.count + len(tokens))
        self.columns[now] = self.decode(
            tokens.ids, tokens.places, LIVE, np.zeros(len(tokens), np.bool_), queries=0
        )
        self.labels[now], self.ids[now], self.places[now] = tokens.labels, tokens.ids, tokens.places
        self.count = now.stop

    def append(self, label: int, id: int, *, look: bool) -> None:
        """The token that was generated becomes live."""
        at = self.count
        place = int(self.places[at - 1]) + 1
        (cell,) = self.decode(
            np.array([id], np.int32), np.array([place], np.int32), LIVE, np.ones(1, np.bool_), int(look)
        )
        self.labels[at], self.ids[at], self.places[at] = label, id, place
        self.columns[at], self.kinds[at] = cell, CHUNK
        self.latest[at] = max(label, int(self.latest[:at].max()))
        self.lendable[at] = self.owner is not None and label >= 0 and self.latest[at] < NEVER
        if self.clean == at:
            self.clean += 1
        self.count += 1

    def compact(self) -> None:
        """Close the holes between the live tokens, since places run out."""
        places = self.places[: self.count]
        index = np.arange(self.count, dtype=np.int32)
        for start, stop in contiguous_runs(places):
            by = start - int(places[start])
            if by:
                self.c.llama_memory_seq_add(
                    self.memory, LIVE, int(places[start]), int(places[stop - 1]) + 1, by
                )
                self.cells.rewind()
                self.settled = False
        self.clean = min(self.clean, int(np.argmin(np.append(places == index, False))))
        self.places[: self.count] = index

    @property
    def next_place(self) -> int:
        return int(self.places[self.count - 1]) + 1

    def surprisal(self, index: int, id: int) -> float:
        """Negative log-probability of a token under the model's own distribution, in nats."""
        logits = self.model.logits(self.context, index)
        peak = logits.max()
        np.subtract(logits, peak, out=self.exp_buffer)
        np.exp(self.exp_buffer, out=self.exp_buffer)
        return float(peak + np.log(self.exp_buffer.sum()) - logits[id])

    def row(self) -> AttentionRow | None:
        """What the last token looked at, over everything live; None if it does not fit the map of cells."""
        now = slice(0, self.count)
        return self._row(-1, self.columns[now], self.kinds[now])

    def _row(self, query: int, columns: npt.NDArray[np.int32], kinds: Kinds) -> AttentionRow | None:
        """The row of one token of the last decode, counted from its end."""
        if self.last_rows is None:
            return None
        raw = None if self.last_raw is None else self.last_raw[query]
        return attention_row(self.last_rows[query], columns, kinds, raw)


# In cells looked at (2.5 us of one core each): what copying a token costs, and what making a context does. SmolLM2-135M.
COPY_COST, OPEN_COST = 8, 16_000


class PrefixContext:
    """Lives as long as one prompt is read. Chunks are read in time order, so that each copy goes on where the last ended."""

    def __init__(self, home: KvCache, size: int) -> None:
        self._main_cache, self._size = home, size
        self._prefix_cache: KvCache | None = None

    def close(self) -> None:
        if self._prefix_cache is not None:
            self._prefix_cache.close()

    def is_worthwhile(self, start: int, stop: int) -> bool:
        """Whether tokens `start` to `stop` of the prompt are worth it."""
        home = self._main_cache
        if home.shape.sliding or not start:
            return False
        saved = (stop - start) * (len(home.cells) - home.cells.free - start)
        have = self._prefix_cache.count if self._prefix_cache else 0
        return saved > COPY_COST * (start - have + stop - start) + (0 if self._prefix_cache else OPEN_COST)

    def read(
        self, tokens: CachedTokens, columns: npt.NDArray[np.int32], start: int, stop: int, batch: int
    ) -> Generator[None, None, SavedCells]:
        """Compute tokens `start` to `stop`, of which all before are live at `columns`. Yields after each batch."""
        if self._prefix_cache is None:
            self._prefix_cache = KvCache(
                self._main_cache.model, self._main_cache.shape, self._size, attention=False
            )
        side, have = self._prefix_cache, self._prefix_cache.count
        if have < start:
            missing = slice(have, start)
            copied = self._main_cache.copied(tokens.part(missing), columns[missing])
            side.take_in(SavedWindow([copied], 0))
        for first in range(start, stop, batch):
            side.extend(tokens.part(slice(first, min(stop, first + batch))))
            yield
        return side.copied(tokens.part(slice(start, stop)), side.columns[start:stop])
