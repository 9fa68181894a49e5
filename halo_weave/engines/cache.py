"""One window's KV cache: a llama_context, what is live in it, and what sleeps beside it. Carries plans out.

Only the engine's thread uses it.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from halo_weave.core.brightness import AttentionRow, Floats
from halo_weave.core.tokens import Ids, Positions
from halo_weave.engines.batch import TokenBatch
from halo_weave.engines.capture import AttentionReader
from halo_weave.engines.cells import (
    BringBack,
    CachedTokens,
    Cells,
    Places,
    Plan,
    count_before,
    pieces,
    runs,
    stands_before,
)
from halo_weave.engines.disk import Grave, SavedWindow, has_any
from halo_weave.engines.prompts import CHUNK, NEVER, FlatPrompt, Kinds, Observation, attention_row
from halo_weave.errors import EngineError
from halo_weave.llama import abi
from halo_weave.llama.footprint import KvType, value_type
from halo_weave.llama.model import Model
from halo_weave.ports import NAMELESS, UNSENT

if TYPE_CHECKING:
    from halo_weave.engines.apart import Apart

LIVE, SCRATCH, HELD = 0, 1, 2  # sequence ids
EVERYTHING = (-1, -1)  # all places of a sequence
PIECE = 128  # tokens that are kept aside as one: to bring back a part, all of them are copied


@dataclass(frozen=True, slots=True)
class Shape:
    """How the contexts of one engine are made."""

    threads: int
    batch: int  # tokens per decode: how long other windows wait, at most
    limit: int  # places the model was trained for
    cell_bytes: int  # keys and values of one token
    graveyard_bytes: int  # for the cells of pruned text
    callback_in_c: bool  # of the attention reader
    kv_type: KvType = "f16"
    sliding: int = 0  # places that the layers with a sliding window look back; 0: there are none


class Erased(NamedTuple):
    """Labels of tokens that were deleted."""

    first: int
    last: int  # the one after the last
    read: bool  # by this window: what stands later was computed while they were in sight


class CellsRefused(EngineError):
    """Saved keys and values do not fit into this cache."""


def _survives(grave: Grave, erased: Sequence[Erased]) -> bool:
    """Whether nothing of a grave was deleted, or computed while deleted text was in sight."""
    labels = grave.tokens.labels
    return not has_any(labels, [one[:2] for one in erased]) and all(
        stands_before(labels, one.first) for one in erased if one.read
    )


def _before_unsent(labels: Positions) -> int:
    """How many tokens stand before the first that was typed and not sent."""
    return int(np.argmax(np.append(labels <= UNSENT, True)))


class Cache:
    """The keys and values of one window."""

    def __init__(self, model: Model, shape: Shape, size: int, *, attention: bool) -> None:
        """`attention`: whether rows can be read from it."""
        self.model, self.shape, self.c = model, shape, model.c
        self.batch = TokenBatch(shape.batch)
        self.erased: list[Erased] = []  # what was deleted since a prompt was read that does not have it
        self.new = True  # nobody asked yet what lies on disk
        self.graves: list[Grave] = []
        self.fresh: list[Grave] = []  # those that fell asleep since somebody asked
        self.foreseen: Observation | None = None  # what was read off of words that were not sent yet
        self.powers = np.empty(model.size, dtype=np.float32)
        self._open(size, attention=attention)
        self.reset()

    def _open(self, size: int, *, attention: bool) -> None:
        size = -(-size // 256) * 256
        self.reader = (
            AttentionReader(
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
            flash_attn_type=abi.FLASH_ATTENTION_OFF,
            type_k=abi.TENSOR_TYPES[self.shape.kv_type],
            type_v=abi.TENSOR_TYPES[value_type(self.shape.kv_type)],
            n_threads=self.shape.threads,
            n_threads_batch=self.shape.threads,
            **(self.reader.settings if self.reader else {}),
        )
        self.memory = self.c.llama_get_memory(self.context)
        self.cells = Cells(int(self.c.llama_n_ctx(self.context)))

    def close(self) -> None:
        self.graves.clear()
        if self.context:
            self.c.llama_free(self.context)
            self.context = None

    def reset(self) -> None:
        """Empty, as new. What sleeps stays."""
        self.c.llama_memory_clear(self.memory, False)
        self.cells = Cells(len(self.cells))
        room = len(self.cells)
        self.count = 0
        self.labels = np.zeros(room, dtype=np.int64)
        self.ids = np.zeros(room, dtype=np.int32)
        self.places = np.zeros(room, dtype=np.int32)
        self.columns = np.zeros(room, dtype=np.int32)  # each live token's cell
        self.kinds = np.zeros(room, dtype=np.uint8)
        self.clean = 0  # how many of the first tokens are as reading anew would make them
        self.settled = True  # no shift waits for the next decode
        self.doubt = ""  # why the cache should be read anew, if it should

    def resize(self, size: int, *, attention: bool) -> None:
        """A new context with more cells, or one whose attention can be read, and everything live moved over."""
        kept, doubt = self.saved(), self.doubt
        old, self.context = self.context, None
        self.c.llama_free(old)
        self._open(size, attention=attention)
        self.reset()
        self.take_in(kept)
        self.doubt = doubt

    def saved(self, first: int = NEVER) -> SavedWindow:
        """A copy of everything live, or of the first tokens, up to words that were not sent."""
        sent = _before_unsent(self.labels[: min(self.count, first)])
        parts = self._stretches(np.arange(sent))
        return SavedWindow([self._saved(part) for part in parts], self.clean)

    def take_in(self, saved: SavedWindow) -> None:
        """An empty cache gets what another one had. Kinds are known when the next prompt is read."""
        for part in saved.parts:
            now = slice(self.count, self.count + len(part.tokens))
            self.columns[now] = self._bring_back(part, 0, part.tokens.places)
            self.labels[now], self.ids[now] = part.tokens.labels, part.tokens.ids
            self.places[now] = part.tokens.places
            self.count = now.stop
        self.clean = min(saved.clean, self.count)

    @property
    def bytes(self) -> int:
        return len(self.cells) * self.shape.cell_bytes + self.sleeping_bytes

    @property
    def sleeping_bytes(self) -> int:
        """Of the cells of pruned text that are kept in memory."""
        return sum(grave.state.nbytes for grave in self.graves)

    def drop_oldest(self, size: int) -> int:
        """At least so many bytes of pruned text's cells go, or all. Returns how many went."""
        gone = 0
        while self.graves and gone < size:
            gone += self.graves.pop(0).state.nbytes
        return gone

    @property
    def live(self) -> CachedTokens:
        now = slice(0, self.count)
        return CachedTokens(self.labels[now].copy(), self.ids[now].copy(), self.places[now].copy())

    def same_as(self, prompt: FlatPrompt) -> int:
        """How many tokens the prompt begins with as the cache does."""
        most = min(self.count, len(prompt))
        same = (self.ids[:most] == prompt.ids[:most]) & (self.kinds[:most] == prompt.kinds[:most])
        return int(np.argmin(np.append(same, False)))

    def erase(self, erased: Sequence[Erased]) -> None:
        """These tokens were deleted: nothing is kept of them, nor of what was computed while they were in sight."""
        self.erased += erased
        self.graves = [grave for grave in self.graves if _survives(grave, erased)]
        self.fresh = [grave for grave in self.fresh if _survives(grave, erased)]

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
            kept = count_before(self.labels[: self.count], stale)
            self._remove(np.arange(kept, self.count), keep=False)
            self.count, self.clean, self.foreseen = kept, min(self.clean, kept), None

    def _stale_from(self) -> int:
        """The label from which on deleted text was in sight."""
        labels = self.labels[: self.count]
        return min(
            (one.first for one in self.erased if one.read or has_any(labels, [one[:2]])), default=NEVER
        )

    def usable(self, prompt: FlatPrompt) -> list[Grave]:
        """Graves that there is room for: one that returns in part needs cells for all its tokens for a moment."""
        spare = len(self.cells) - len(prompt)
        return [
            grave
            for grave in self.graves
            if len(grave.tokens) <= spare
            or len(grave.tokens) - int(np.isin(grave.tokens.labels, prompt.labels).sum()) <= spare
        ]

    def _save(self, sequence: int) -> npt.NDArray[np.uint8]:
        size = self.c.llama_state_seq_get_size(self.context, sequence)
        state = np.empty(size, dtype=np.uint8)
        if self.c.llama_state_seq_get_data(self.context, state.ctypes.data, size, sequence) != size:
            raise EngineError("llama.cpp could not save a part of the KV cache.")
        return state

    def _load(self, state: npt.NDArray[np.uint8], sequence: int) -> None:
        if not self.c.llama_state_seq_set_data(self.context, state.ctypes.data, state.nbytes, sequence):
            raise CellsRefused(
                f"llama.cpp could not bring back a part of the KV cache{self.model.library.complaint()}."
            )

    # Carrying out a plan

    def carry_out(
        self,
        plan: Plan,
        graves: list[Grave],
        prompt: FlatPrompt,
        watch: Observation,
        *,
        keep_asleep: bool,
        batch: int,
        apart: Apart | None = None,
    ) -> Generator[None]:
        """Make the prompt live. Yields after each decode of `batch` tokens, so that other windows get their turn.

        `graves` are those that the plan counts. If it is stopped in between, what was done so far is live.

        llama.cpp continues a sequence only at its end. A stretch in the middle is decoded in a second sequence that
        shares what stands before it, and then handed over.
        """
        self.doubt = "it was interrupted while chunks left"
        self._remove(plan.removed, keep=keep_asleep)
        for move in plan.moves:
            self.c.llama_memory_seq_add(self.memory, LIVE, move.start, move.stop, move.by)
            self.cells.rewind()
            self.settled = False
        self.doubt = ""
        present = np.ones(len(prompt), dtype=np.bool_)
        for step in plan.steps:
            present[step.start : step.stop] = False
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
                if isinstance(step, BringBack):
                    if int(places[0]) != int(graves[step.run].tokens.places[step.at]):
                        moved = min(moved, step.start)
                    columns[step.start : step.stop] = self._bring_back(graves[step.run], step.at, places)
                    present[step.start : step.stop] = True
                    continue
                tail = step.stop == len(prompt)
                unseen = step.stop <= watch.anew_from and not tail
                if apart and unseen and apart.pays(step.start, step.stop):
                    if step.start > moved:
                        self._shift()
                        moved = NEVER
                    tokens = CachedTokens(prompt.labels, prompt.ids, plan.places)
                    grave = yield from apart.read(tokens, columns, step.start, step.stop, batch)
                    columns[step.start : step.stop] = self._bring_back(grave, 0, places)
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
                    self.c.llama_memory_seq_rm(self.memory, SCRATCH, *EVERYTHING)
                    present[step.start : step.stop] = True
                beside = slice(0)
        finally:
            self.c.llama_memory_seq_rm(self.memory, SCRATCH, *EVERYTHING)
            self._give_up(columns[beside], plan.places[beside])
            self.count = int(present.sum())
            for mine, theirs in (
                (self.labels, prompt.labels),
                (self.ids, prompt.ids),
                (self.places, plan.places),
                (self.columns, columns),
                (self.kinds, prompt.kinds),
            ):
                mine[: self.count] = theirs[present]
            if not self.settled and not self.doubt and self.cells.free:  # it was stopped before a decode
                self._shift()
        if only_tail:
            self.clean = self.count
        live = set(zip(prompt.labels.tolist(), prompt.ids.tolist(), strict=True))
        self.graves = [grave for grave in self.graves if not live.issuperset(grave.tokens)]

    def _remove(self, index: npt.NDArray[np.intp], *, keep: bool) -> None:
        """Live tokens leave; their keys and values are kept aside while there is room."""
        room = self.shape.graveyard_bytes // self.shape.cell_bytes  # tokens
        stale = self._stale_from()
        for gone in self._stretches(index):
            first, last = int(self.places[gone[0]]), int(self.places[gone[-1]]) + 1
            sent = gone[: _before_unsent(self.labels[gone])]
            named = bool((self.labels[sent] > NAMELESS).any())  # nobody will ask for a frame without its turn
            for piece in pieces(self.labels[sent], PIECE) if keep and named else ():
                sound = stale == NEVER or stands_before(self.labels[sent[piece]], stale)
                if sound and len(sent[piece]) <= room:
                    self.graves.append(self._saved(sent[piece]))
                    self.fresh.append(self.graves[-1])
                    room -= len(sent[piece])
            for sequence in (LIVE, HELD) if self.shape.sliding else (LIVE,):
                self.c.llama_memory_seq_rm(self.memory, sequence, first, last)
            self.cells.give_back(self.columns[gone])
        self.drop_oldest(self.sleeping_bytes - self.shape.graveyard_bytes)

    def _give_up(self, cells: npt.NDArray[np.int32], places: Places) -> None:
        """Tokens that were computed and never became live, since reading was stopped."""
        if len(cells) and self.shape.sliding:
            self.c.llama_memory_seq_rm(self.memory, HELD, int(places[0]), int(places[-1]) + 1)
        self.cells.give_back(cells)

    def _shift(self) -> None:
        """Keys that wait to be shifted are: any decode does it."""
        cells = self.decode(self.ids[:1], np.zeros(1, np.int32), SCRATCH, np.zeros(1, np.bool_), queries=0)
        self.c.llama_memory_seq_rm(self.memory, SCRATCH, *EVERYTHING)
        self.cells.give_back(cells)

    def _stretches(self, index: npt.NDArray[np.intp]) -> Iterator[npt.NDArray[np.intp]]:
        """Live tokens that follow each other. With sliding windows llama.cpp saves no more than a window at once."""
        for start, stop in runs(index):
            while start < stop:
                reach = int(self.places[index[start]]) + (self.shape.sliding or NEVER)
                end = start + int(np.searchsorted(self.places[index[start:stop]], reach))
                yield index[start:end]
                start = end

    def _saved(self, index: npt.NDArray[np.intp]) -> Grave:
        """A copy of live tokens that follow each other, with their keys and values."""
        tokens = CachedTokens(self.labels[index], self.ids[index], self.places[index])
        return self.copied(tokens, self.columns[index])

    def copied(self, tokens: CachedTokens, columns: npt.NDArray[np.int32]) -> Grave:
        """Likewise of tokens whose cells are `columns`."""
        first, last = int(tokens.places[0]), int(tokens.places[-1]) + 1
        self.c.llama_memory_seq_cp(self.memory, LIVE, SCRATCH, first, last)
        grave = Grave(tokens, np.argsort(columns, kind="stable"), self._save(SCRATCH))
        self.c.llama_memory_seq_rm(self.memory, SCRATCH, *EVERYTHING)
        return grave

    def _hold(self, sequence: int, first: int, last: int) -> None:
        """llama.cpp takes away cells that have left the sliding window, unless a second sequence has them too."""
        if self.shape.sliding:
            self.c.llama_memory_seq_cp(self.memory, sequence, HELD, first, last)

    def _bring_back(self, grave: Grave, at: int, places: Places) -> npt.NDArray[np.int32]:
        """Bring tokens from index `at` of a grave back, to `places`. Returns their cells."""
        stop = at + len(places)
        self._load(grave.state, SCRATCH)
        cells = np.empty(len(grave.tokens), dtype=np.int32)
        cells[grave.order] = self.cells.take(len(grave.tokens))
        old = grave.tokens.places
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
        self.c.llama_memory_seq_cp(self.memory, SCRATCH, LIVE, *EVERYTHING)
        self._hold(SCRATCH, *EVERYTHING)
        self.c.llama_memory_seq_rm(self.memory, SCRATCH, *EVERYTHING)
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
                    watch.misfits += 1
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
            self.doubt = "the model stopped in the middle"
            raise EngineError(
                f"The model stopped in the middle of its work (code {result}){self.model.library.complaint()}."
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
        if self.clean == at:
            self.clean += 1
        self.count += 1

    def compact(self) -> None:
        """Close the holes between the live tokens, since places run out."""
        places = self.places[: self.count]
        index = np.arange(self.count, dtype=np.int32)
        for start, stop in runs(places):
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
        np.subtract(logits, peak, out=self.powers)
        np.exp(self.powers, out=self.powers)
        return float(peak + np.log(self.powers.sum()) - logits[id])

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
