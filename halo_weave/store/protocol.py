"""The interface of the store."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import IO, Literal, NamedTuple, Protocol, Self

from halo_weave.core.attribution import Attribution
from halo_weave.core.resurrection import RecallCandidate
from halo_weave.core.tokens import Brightness, Chunk, ChunkKey, Role
from halo_weave.core.working_set import LiveChunk
from halo_weave.store.coordination import Coordinator
from halo_weave.store.records import (
    OWNER,
    Access,
    ChunkEvent,
    ChunkPlace,
    ChunksToEmbed,
    ChunkToPrune,
    ChunkToResurrect,
    ChunkUse,
    Draft,
    ExportFilter,
    GraveyardChunk,
    GraveyardPage,
    ImportResult,
    IndexChanges,
    Json,
    MemoryEntry,
    MemoryStats,
    MostUsed,
    Note,
    Numbers,
    Person,
    ReplySource,
    Reservation,
    ResurrectableChunk,
    Scores,
    Share,
    Similarities,
    StoredChunk,
    StoredLiveChunk,
    Traces,
    TurnPage,
    TurnRecord,
    VectorGeneration,
    Vectors,
    VerifyFinding,
    WindowRecord,
    WindowStats,
    WindowTimeline,
)


class PersonalStore(Protocol):
    """What the AI and the user keep on purpose: structured memory, notes, settings."""

    def for_owner(self, owner: str) -> PersonalStore:
        """The same of another person: nobody reaches the notes and the structured memory of somebody else."""

    def entry(self, path: str, *, now: datetime | None = None) -> MemoryEntry | None:
        """An entry, or None. With `now`, it counts as accessed then."""

    def save_entry(
        self,
        path: str,
        content: Json,
        *,
        now: datetime,
        snapshot: Sequence[Mapping[str, Json]] = (),
        vectors: Vectors | None = None,
        model: str = "",
    ) -> MemoryEntry:
        """Make an entry or a new version of it; the older version is kept."""

    def entries(self, under: str = "") -> list[MemoryEntry]:
        """Entries below a path, in order of paths; all of them for an empty one."""

    def entry_paths(self, under: str = "") -> list[tuple[str, int, datetime]]:
        """Path, version and time of change of the entries below a path, without reading what they hold."""

    def entry_versions(self, path: str) -> list[MemoryEntry]:
        """Older versions, newest first."""

    def delete_entry(self, path: str, *, now: datetime, recursive: bool = False) -> int:
        """Delete an entry and, on request, all below it. Their versions are kept. Returns how many went."""

    def note(self, name: str) -> Note | None: ...
    def notes(self) -> list[Note]: ...
    def save_note(
        self, name: str, content: Json, *, now: datetime, unless_modified_since: datetime | None = None
    ) -> Note:
        """Write a note. With `unless_modified_since`, refused if another process wrote it after that time."""

    def settings(self) -> dict[str, Json]:
        """What holds for all windows, by key."""

    def change_settings(
        self, key: str, changes: Mapping[str, Json], reset: Collection[str] = (), *, now: datetime
    ) -> None:
        """Change these of the settings that stand under a key; those to `reset` go, the others stay."""


class PeopleStore(Protocol):
    """Who has a memory here, with which key, and what they share. The owner of the server is `records.OWNER`."""

    def people(self) -> list[Person]:
        """All that were ever added, by name; the owner is not among them."""

    def several(self) -> bool:
        """Whether anybody was ever added."""

    def add_person(self, name: str, key_hash: str, *, now: datetime) -> Person:
        """Someone new, or someone whose key was revoked, with a new one: their memory is still there."""

    def revoke_person(self, name: str, *, now: datetime) -> Person:
        """Their key opens nothing any more. Their memory stays."""

    def key_hashes(self, start: str) -> list[tuple[str, str]]:
        """Hashes of the keys in use that start like this, each with the id of its person."""

    def key_mark(self, person: str) -> str | None:
        """By which someone's key is told from an earlier one; empty for the owner, None for who has no key."""

    def share(self, owner: str, window_id: str, person: str, *, writes: bool, now: datetime) -> Share:
        """Someone may read a window of the owner's, or write there; with an empty id, in all of theirs."""

    def unshare(self, owner: str, window_id: str, person: str) -> bool:
        """What was shared is not any more, and leaves the windows that only had it by that. Whether it was shared."""

    def shares(self) -> list[Share]: ...
    def reach(self, person: str) -> Access:
        """The windows that someone may read and write, deleted ones too."""

    def readers(self, window_id: str) -> tuple[str, ...]:
        """Who may read a window besides the one it belongs to."""

    def turn_windows(self, turns: Iterable[int]) -> dict[int, str]:
        """Where turns were said; unknown ones are left out."""


class TagStore(Protocol):
    """Tags of chunks. Each person has their own; nobody sees another's. A deleted chunk has none until it is undeleted."""

    def tag_chunk(self, key: ChunkKey, tags: Sequence[str], *, now: datetime, owner: str = OWNER) -> None:
        """These are its tags from now on."""

    def chunk_tags(self, keys: Iterable[ChunkKey], *, owner: str = OWNER) -> dict[ChunkKey, tuple[str, ...]]:
        """The tags of those that have any, in order."""

    def tagged(self, tags: Collection[str], *, owner: str = OWNER) -> dict[ChunkKey, int]:
        """The chunks that have one of these tags, with their numbers."""

    def tag_counts(self, *, owner: str = OWNER) -> dict[str, int]:
        """How many chunks that someone may read have each of their tags."""


Progress = Callable[[int, int], None]  # done, of how many; 0: it is not known of how many


def silent(done: int, total: int) -> None:
    """Progress that nobody watches."""


class Transcript(Protocol):
    """What was said: ids, turns, replies while they are written; and what the user does to it for all windows."""

    def reserve(self, positions: int) -> Reservation:
        """Two turn ids and a range of positions, never given to anyone else."""

    def append(
        self,
        window_id: str,
        said: Sequence[LiveChunk],
        *,
        tokenizer: str,
        now: datetime,
        asleep: bool = False,
        speaker: str | None = None,
        tags: Mapping[ChunkKey, Sequence[str]] | None = None,
        after: int | None = None,
    ) -> list[int]:
        """Chunks of one turn, with their words and their place in the window. Returns their numbers.

        When this returns, they are on the disk, and a draft of the turn is gone. `asleep`: they go to the graveyard.
        `speaker`: another than the window's names say. `after`: the turn that it follows, 0 for none; what followed
        before goes aside. Else the turn takes its place by its id on the window's current branch, and a second answer
        to a question takes the place of the first, which goes aside.
        """

    def save_drafts(self, drafts: Sequence[Draft]) -> None:
        """Replies so far, all or none. Of each, only the tokens that are new since the last call are written."""

    def drafts(self, *, now: datetime, abandoned: bool = True, held: str | None = None) -> list[Draft]:
        """Replies that were never finished; by default only those whose process has ended.

        Where that cannot be known, a draft that was not saved for a minute counts as abandoned. In the window that this
        process `held`, its own drafts count too, since nobody is writing there.
        """

    def draft_in(self, window_id: str, *, after: int = 0) -> Draft | None:
        """The newest reply in a window that was not finished, whoever writes it, without its first `after` tokens."""

    def drop_draft(self, turn_id: int) -> None: ...
    def save_use(
        self,
        turn_id: int,
        use: Attribution | None,
        woken: Mapping[ChunkKey, Mapping[str, Json]] | None = None,
    ) -> None:
        """What a stored reply took from chunks, if it is known, and which woke up for it and why. What is known stays."""

    def remembered(
        self, turn_ids: Iterable[int], *, least: float = 0.0
    ) -> dict[int, tuple[float, list[ReplySource]]]:
        """By reply: its share from nothing in particular, and the chunks that woke up for it or gave it `least`.

        What it answers is no memory, and not among them.
        """

    def use_of(self, turn_id: int) -> Attribution | None:
        """The same, without deleted chunks, merged ones by the key they have now; None if it is not known."""

    def used_in(self, key: ChunkKey, *, limit: int = 100) -> list[ChunkUse]:
        """The replies that took something from a chunk, newest first; without the one that answers it."""

    def most_used(self, window_id: str, limit: int = 200) -> list[MostUsed]:
        """The chunks that the window's replies took most from, the most first; what a reply answers does not count."""

    def chunk(self, key: ChunkKey) -> StoredChunk: ...
    def chunks(self, numbers: Iterable[int]) -> list[StoredChunk]:
        """Records in the order asked for; unknown numbers are left out."""

    def chunks_by_key(self, keys: Iterable[ChunkKey]) -> list[StoredChunk]:
        """Records in the order asked for; unknown keys are left out."""

    def chunks_between(self, first: int, stop: int) -> list[StoredChunk]:
        """The chunks that have a token at one of these positions, in order; deleted ones too."""

    def deleted_in(
        self, window_id: str, *, offset: int = 0, limit: int = 100
    ) -> tuple[int, list[StoredChunk]]:
        """How many chunks said in a window are deleted, and some of them, what was deleted last first."""

    def turn(self, turn_id: int) -> list[StoredChunk]:
        """All chunks of a turn in order, deleted and merged ones too."""

    def said_in(
        self, window_id: str, *, offset: int | None = None, around: int | None = None, limit: int = 50
    ) -> TurnPage:
        """Turns of a window's current branch, in order: from an offset on, around a turn, or the last ones."""

    def merge(self, window_id: str, key: ChunkKey, *, now: datetime) -> ChunkKey:
        """The chunk joins the one before it in its turn and goes by that one's key, which is returned.

        Both must be live here. Refused while another window has one of them live, since its tokens would change
        under it; where they sleep, they sleep on as one.
        """

    def deletion_of(self, key: ChunkKey) -> tuple[ChunkKey, ...]:
        """What goes when this chunk is deleted: the pair of turns for a question's opening or any part of an answer,
        else the chunk alone. The same set comes back when it is undeleted."""

    def holders(self, keys: Sequence[ChunkKey]) -> dict[str, bool]:
        """Windows that hold one of these chunks, live or asleep: there a model has read them. And whether the window reads
        some chunk with other tokens than it was said with."""

    def delete(self, keys: Sequence[ChunkKey], *, now: datetime) -> tuple[str, ...]:
        """Out of every window and every search, until undeleted. The record stays. Returns where they were live."""

    def undelete(self, keys: Sequence[ChunkKey], *, now: datetime) -> tuple[str, ...]:
        """Deleted chunks are again what they were in every window, live or asleep. Returns where they are live."""

    def split_long_chunks(self, most: int, *, now: datetime) -> int:
        """Chunks of more than so many tokens, and more than 256, that are live nowhere are cut into parts, each at its
        place. So all that was ever said can wake up. Returns how many there were."""

    def remove_timestamps(self, *, now: datetime) -> int:
        """Stored replies lose the time stamps that they begin with; the history keeps them. Done once for a memory, and
        again after an import. Returns how many replies began with one."""

    def add_negative_feedback(self, key: ChunkKey, question: str | None, *, now: datetime) -> None:
        """The wrong memory for questions like this one. None takes all such marks of the chunk back."""

    def negative_feedback(self) -> list[tuple[int, str]]:
        """The numbers of the chunks that were marked, each with a question that it is wrong for."""

    def resurrection_count(self, key: ChunkKey) -> int:
        """How often it woke up, in all windows."""


class Branches(Protocol):
    """Which turn follows which. What leads up to a window's last turn is its current branch; turns that are on no
    current branch are aside: in no window and no search, until their branch comes back."""

    def switch(self, window_id: str, head: int, *, now: datetime) -> tuple[str, ...]:
        """This turn becomes the window's last one; 0: nothing was said. Returns where something changed that is live."""

    def branch(self, window_id: str, after: int = 0) -> list[TurnRecord]:
        """The turns of the current branch with a later id than `after`, in order."""

    def turn_record(self, turn_id: int) -> TurnRecord: ...
    def timeline(
        self,
        *,
        since: datetime | None = None,
        until: datetime | None = None,
        window: str | None = None,
        after: tuple[datetime, int] | None = None,
        limit: int = 100,
        reader: str | None = None,
    ) -> list[TurnRecord]:
        """Turns of current branches in the order of time. `after`: the time and id of the last one that is known."""

    def followers(self, turn_id: int, window_id: str) -> list[TurnRecord]:
        """The turns that follow this one, in order; for 0, those of the window that follow none."""

    def siblings(self, turns: Iterable[int]) -> dict[int, list[int]]:
        """For each of these turns all that follow the same turn, itself among them, in order."""

    def marked(self, mark: int, *, window: str | None = None, reader: str | None = None) -> list[TurnRecord]:
        """Turns with the mark of these words, newest first; at most a few dozen."""

    def marks_before(self, turn_id: int, limit: int) -> list[tuple[int, int | None]]:
        """Ids and marks of a turn and of those it follows, backwards."""


class Windows(Protocol):
    """The windows, and the working set of each: what is live, what sleeps, and how that came about."""

    def create_window(
        self,
        name: str,
        *,
        now: datetime,
        system_prompt: str = "",
        user_name: str = "User",
        ai_name: str = "AI",
        settings: Mapping[str, Json] | None = None,
        tags: Sequence[str] = (),
        inherits: Collection[str] = (),
        owner: str = OWNER,
    ) -> WindowRecord: ...
    def window(self, window_id: str) -> WindowRecord:
        """A window, deleted or not."""

    def windows(self, *, deleted: bool = False, reader: str | None = None) -> list[WindowRecord]:
        """In the order they were made; deleted ones on request. `reader`: only what this person may read."""

    def chat_window(self, name: str, *, owner: str = OWNER) -> str | None:
        """The window of a chat that another program knows by this name; None if there is none any more."""

    def name_chat(self, name: str, window_id: str, *, owner: str = OWNER) -> None:
        """Another program knows this window by this name from now on."""

    def window_names(self, *, reader: str | None = None) -> dict[str, str]:
        """The name of every window by its id, deleted ones too. For a `reader` only those that they may read, and of
        other people's it tells whose they are."""

    def change_window(
        self,
        window_id: str,
        *,
        now: datetime,
        name: str | None = None,
        system_prompt: str | None = None,
        user_name: str | None = None,
        ai_name: str | None = None,
        settings: Mapping[str, Json] | None = None,
        reset: Collection[str] = (),
        tags: Sequence[str] | None = None,
        pinned: bool | None = None,
        archived: bool | None = None,
        inherits: Collection[str] = (),
    ) -> WindowRecord:
        """Change what is given; settings to `reset` go. What was said keeps the names it was said under.
        Words that are given are the window's own from now on; those it `inherits` follow those of all windows again."""

    def change_persona(
        self, changes: Mapping[str, str], *, now: datetime, owner: str = OWNER
    ) -> tuple[str, ...]:
        """Change the words that all windows of someone share, and those of the windows that inherit them. Returns these windows."""

    def delete_window(self, window_id: str, *, now: datetime) -> None:
        """The window closes; what was said in it stays in memory."""

    def window_stats(self, window_id: str) -> WindowStats: ...
    def live(self, window_id: str) -> list[StoredLiveChunk]:
        """The live chunks in position order, bit by bit as they were saved."""

    def save_brightness(
        self,
        window_id: str,
        chunks: Sequence[Chunk],
        brightness: Brightness,
        traces: Traces | None = None,
    ) -> None:
        """The brightness of these live chunks, one after the other in one array; likewise the traces, if any are kept."""

    def prune(self, window_id: str, orders: Sequence[ChunkToPrune], *, now: datetime) -> None:
        """Live chunks fall asleep, with the brightness they have."""

    def wake(self, window_id: str, orders: Sequence[ChunkToResurrect], *, now: datetime) -> None:
        """Chunks of the graveyard or of another window become live here."""

    def pin(self, window_id: str, key: ChunkKey, *, now: datetime, brightness: float | None = None) -> None:
        """The chunk stays live until it is unpinned; with `brightness`, all its tokens get that."""

    def unpin(self, window_id: str, key: ChunkKey, *, now: datetime) -> None: ...
    def reread(self, window_id: str, live: Sequence[LiveChunk], *, tokenizer: str, now: datetime) -> None:
        """The window reads these live chunks with another tokenizer. The record keeps the tokens they were said with."""

    def graveyard(
        self,
        window_id: str,
        *,
        offset: int = 0,
        limit: int = 100,
        sort: Literal["position", "slept", "peak", "tokens"] = "position",
        descending: bool = True,
        role: Role | None = None,
        text: str | None = None,
    ) -> GraveyardPage:
        """Sleeping chunks, by page."""

    def asleep_or_said(self, window_id: str, keys: Iterable[ChunkKey]) -> dict[ChunkKey, ResurrectableChunk]:
        """Chunks that are not live here, with the brightness they had here if they sleep here.

        In the order asked for; unknown keys are left out. Of a deleted or merged one, `record.gone` is true.
        """

    def asleep_places(self, window_id: str) -> tuple[Numbers, Numbers]:
        """Starts and sizes in tokens of all sleeping chunks, in position order."""

    def count_asleep(self, window_id: str, after: int, before: int) -> tuple[int, int]:
        """How many chunks and tokens sleep from one position on and before another."""

    def asleep_between(self, window_id: str, after: int, before: int, limit: int) -> list[GraveyardChunk]:
        """Sleeping chunks that start from one position on and before another, in position order."""

    def sleepers(self, window_id: str, keys: Iterable[ChunkKey]) -> dict[ChunkKey, RecallCandidate]:
        """What a resurrection plan needs of these chunks and of the openings that come with them. Live, deleted and
        merged chunks are left out."""

    def history(
        self, *, window: str | None = None, key: ChunkKey | None = None, limit: int = 100
    ) -> list[ChunkEvent]:
        """What happened, newest first: of a window, of a chunk, of a chunk in a window, or of all."""

    def life(self, window_id: str) -> WindowTimeline:
        """A window's current branch without its words, and all that happened to its chunks."""


class Serving(NamedTuple):
    """The generation that is searched."""

    id: int
    model: str
    dimension: int


class VectorSearch(Protocol):
    """A store's own index over the vectors of one generation."""

    def nearest(
        self, vector: Vectors, *, limit: int, window: str | None = None, among: Numbers | None = None
    ) -> tuple[Numbers, Similarities]:
        """Numbers of the chunks nearest to a vector (dimension,), each once, nearest first, and their cosine
        similarity. Never a deleted or merged chunk. `window`: only what was said there. `among`: only these chunks."""


class SearchIndex(Protocol):
    """What recall needs: words, vectors by generation, and what changed since it last looked."""

    def search_terms(
        self, terms: Sequence[str], limit: int, *, window: str | None = None
    ) -> list[tuple[Numbers, Scores]]:
        """For each term the numbers of the chunks that hold it and their BM25 (higher is better), in any order.

        Both are empty if more than `limit` chunks of all windows hold the term. `window`: only what was said there.
        """

    def vector_search(self, generation: int) -> VectorSearch | None:
        """The store's own index over these vectors; None if it has none, then the process loads them itself."""

    def generations(self) -> list[VectorGeneration]:
        """All of them, with the figures of each. Counting takes longer the more there is."""

    def serving(self) -> Serving | None:
        """The current generation, at once."""

    def begin_generation(self, model: str, dimension: int, *, now: datetime) -> VectorGeneration:
        """The generation of this embedder: the current one, one half built, or a new one that wants every chunk.

        The first generation of a memory is current at once; a later one is built beside it until `complete_generation`.
        """

    def wanted(self, generation: int, limit: int) -> ChunksToEmbed:
        """Chunks whose vector is missing or out of date, newest first: what was just said is asked for soonest."""

    def request_embeddings(self, numbers: Iterable[int]) -> None:
        """Ask for new vectors of these chunks, in every generation that serves or is being built."""

    def add_vectors(
        self, generation: int, wanted: ChunksToEmbed, vectors: Vectors, counts: Sequence[int] | None = None
    ) -> int:
        """Vectors of `wanted.numbers`, in that order: one for each chunk, or as many as `counts` says.

        A chunk deleted meanwhile gets none; one changed stays wanted. Returns how many chunks got theirs.
        """

    def vectors(self, generation: int) -> Iterator[tuple[Numbers, Vectors]]:
        """All vectors of a generation in blocks, as of one moment. A chunk's number stands with each of its vectors."""

    def vectors_of(self, generation: int, numbers: Iterable[int]) -> tuple[Numbers, Vectors]:
        """The vectors that these chunks have, with the numbers of those chunks."""

    def complete_generation(self, generation: int, *, now: datetime) -> None:
        """From now on this generation serves. Refused while it still lacks vectors."""

    def delete_old_vectors(self) -> int:
        """Remove the vectors of retired generations, in small steps that let others write. Returns how many went."""

    def sequence(self) -> int:
        """A number that grows with every change of a chunk: while it is the same, nothing changed."""

    def changes(self, since: int) -> IndexChanges:
        """Chunks said, changed, embedded, merged, deleted or undeleted after this point of the sequence."""

    def outline(self, since: int = 0) -> Iterator[ChunkPlace]:
        """Where the chunks stand that were said or changed after this point of the sequence, in any order, as of one
        moment."""

    def record_index_snapshot(self, mark: str, generation: int) -> bool:
        """A file holds what the index of a generation is at this moment, or was before. Its mark stays until the memory
        is cleared or repaired, or some dozens came after it. False: the generation is gone, so the file is of no use."""

    def knows_index_snapshot(self, mark: str) -> bool:
        """Whether this memory is the one that the file was made of, or went on from it. A backup from before is not."""


@dataclass(frozen=True, slots=True)
class Synced:
    """What a sync with a shared folder did."""

    told: int  # turns and changes that others can take in from now on
    turns: int  # that came
    changes: int  # that came: to windows, turns, notes and what else is shared
    waiting: int  # files that are not whole yet, or wait for others
    refused: tuple[str, ...] = ()  # files that were not taken in, and why


class Exchange(Protocol):
    """Memory out of and into files."""

    def export(
        self,
        write: Callable[[str], object],
        *,
        now: datetime,
        subset: ExportFilter | None = None,
        vectors: bool = False,
        progress: Progress = silent,
    ) -> None:
        """Write the memory as it is at this moment, while others go on writing. `progress` counts turns."""

    def import_file(self, path: Path, *, now: datetime, progress: Progress = silent) -> ImportResult:
        """Add what a file holds that is not here yet: an export of ours, or of the prototype.

        The whole file is checked before anything is changed. An import that was interrupted goes on when repeated.
        """

    def import_open_file(
        self, source: IO[bytes], *, now: datetime, progress: Progress = silent
    ) -> ImportResult:
        """The same of a file that is open for reading and can be sought in. It stays open."""

    def sync(self, folder: Path, *, now: datetime) -> Synced:
        """Tell a shared folder what is new here, and take in what others told. Refused while a reply is written."""


class Upkeep(Protocol):
    """Looking after the store itself."""

    @property
    def place(self) -> str:
        """Where the memory is, as its user knows it: a path or an address."""

    @property
    def folder(self) -> Path:
        """Where large files may lie for a while."""

    @property
    def fleet(self) -> Coordinator: ...
    def version(self) -> int:
        """A number that is another one whenever anything was committed since, by any thread or process."""

    def stats(self, *, reader: str | None = None) -> MemoryStats:
        """Figures of the memory, or of what one person has."""

    def verify(self, *, repair: bool = False, progress: Progress = silent) -> list[VerifyFinding]:
        """Everything that is wrong with the memory; an empty list if nothing is."""

    def backup(self, target: Path, *, progress: Progress = silent) -> None:
        """A copy of the memory as it is at this moment, while others go on writing. Never half a file in place."""

    def clear(self, *, confirm: bool = False) -> None:
        """Wipe all that was said and kept, and start ids over; settings stay."""

    def close(self) -> None: ...
    def __enter__(self) -> Self: ...
    def __exit__(self, *_: object) -> None: ...


class Store(
    Transcript,
    Branches,
    Windows,
    SearchIndex,
    PersonalStore,
    TagStore,
    PeopleStore,
    Exchange,
    Upkeep,
    Protocol,
):
    """All that was ever said, what each window knows of it, and the ways to find it again."""
