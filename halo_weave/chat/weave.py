"""The running system as the server and the command line use it."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from datetime import UTC, datetime

from halo_weave.chat.capture import DeleteRecordings, NewRecorder
from halo_weave.chat.chunks import Chunks
from halo_weave.chat.documents import Documents
from halo_weave.chat.idle_reading import IdleReader, IdleReading
from halo_weave.chat.injection import Injection, inject_snapshot
from halo_weave.chat.memory import McpMemory, Memory, Reembed
from halo_weave.chat.models import Calibrate, Engines, Models, OpenModel, RememberModel
from halo_weave.chat.people import People
from halo_weave.chat.prefetch import Prefetcher
from halo_weave.chat.presets import Presets
from halo_weave.chat.reply_storage import recover_drafts
from halo_weave.chat.runtime import OpenEngine, Runtime
from halo_weave.chat.tools.notes import Notes
from halo_weave.chat.tools.structured_memory import StructuredMemory
from halo_weave.chat.tools.toolbox import Toolbox
from halo_weave.chat.turn_runner import Turns
from halo_weave.chat.windows import Windows
from halo_weave.core.retrieval_heads import NOT_CALIBRATED, Calibration
from halo_weave.engines.base import Engine
from halo_weave.engines.engine_list import EngineList
from halo_weave.errors import UnknownMemory
from halo_weave.search.memory_search import MemorySearch
from halo_weave.settings import Settings
from halo_weave.store.sql_store import SqlStore


class Weave:
    """The methods that server, terminal and lab call, by subject. `runtime` holds what all parts share."""

    def __init__(
        self,
        engine: Engine,
        store: SqlStore,
        recall: MemorySearch,
        toolbox: Toolbox | None = None,
        *,
        defaults: Settings | None = None,
        embed_anew: Reembed | None = None,
        open_model: OpenModel | None = None,
        calibrate: Calibrate | None = None,
        remember_model: RememberModel | None = None,
        calibration: Calibration = NOT_CALIBRATED,
        new_recorder: NewRecorder | None = None,
        engine_list: EngineList | None = None,
        open_other: OpenEngine | None = None,
        local_tokenizer: Engine | None = None,
        delete_recordings: DeleteRecordings | None = None,
        remember_idle_reading: Callable[[IdleReading], None] = lambda progress: None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.runtime = Runtime(
            engine,
            store,
            recall,
            toolbox,
            defaults=defaults or Settings(),
            calibration=calibration,
            now=now,
        )
        self.runtime.new_recorder, self.runtime.delete_recording_files = new_recorder, delete_recordings
        self.runtime.engine_list, self.runtime.open_other = engine_list, open_other
        if local_tokenizer is not None:
            self.runtime.use_local_tokenizer(local_tokenizer)
        self._prefetcher = Prefetcher(self.runtime)
        self.idle_reader = IdleReader(self.runtime, remember_idle_reading)
        self.turns = Turns(self.runtime, self._prefetcher)
        self.models = Models(self.runtime, self.turns, open_model, calibrate, remember_model)
        self.engines = Engines(self.runtime, engine_list)
        self.windows = Windows(self.runtime, self.turns)
        self.documents = Documents(self.runtime)
        self.presets = Presets(self.runtime)
        self.chunks = Chunks(self.runtime)
        self.memory = Memory(self.runtime, embed_anew, self._prefetcher)
        self.memory_tools = MemoryTools(self.runtime)
        self.library = McpMemory(self.runtime)
        self.people = People(store, now, changed=self.runtime.publish_changed)
        self.now = now
        recover_drafts(self.runtime)
        self.runtime.split_long_chunks()
        self.runtime.remove_timestamps()
        store.fleet.listen(self.turns.on_remote_change)

    def of(self, person: str) -> Weave:
        """The same system, limited to what a person owns or others share with them. If there is only one person: `self`."""
        whole = self.runtime.unrestricted
        if not whole.store.several():
            return self
        runtime = whole.with_access(whole.store.access_of(person))
        own = copy(self)
        own.runtime = runtime
        own.turns = self.turns.within(runtime)
        own.memory = self.memory.within(runtime)
        own.windows = Windows(runtime, own.turns)
        own.documents, own.presets = Documents(runtime), Presets(runtime)
        own.chunks, own.memory_tools = Chunks(runtime), MemoryTools(runtime)
        own.library, own.engines = McpMemory(runtime), self.engines.within(runtime)
        own.people = People(
            whole.store, self.now, changed=whole.publish_changed, person=person, reached=runtime.store
        )
        return own

    @property
    def engine(self) -> Engine:
        """The model alone, without windows and memory: for the prototype's API."""
        return self.runtime.engine

    @property
    def calibration(self) -> Calibration:
        """The calibration of the default model."""
        return self.runtime.calibration

    def close(self) -> None:
        """End running turns and close everything. What was said so far is stored."""
        self.models.close()
        self.memory.close()
        self.idle_reader.close()
        self._prefetcher.close()
        self.turns.close()
        self.turns.abort_all()  # also when a caller runs the turn's steps in its own thread
        self.runtime.close()


class MemoryTools:
    """`weave.memory_tools`: the AI's notes and structured memory."""

    def __init__(self, runtime: Runtime) -> None:
        self.runtime = runtime

    @property
    def _toolbox(self) -> Toolbox:
        if self.runtime.toolbox is None:
            raise UnknownMemory("There is no memory of the AI's own here: its tools are off.")
        return self.runtime.toolbox

    @property
    def tree(self) -> StructuredMemory:
        return self._toolbox.tree

    @property
    def notes(self) -> Notes:
        return self._toolbox.notes

    def inject(self, window_id: str, path: str) -> Injection:
        """Resurrect the chunks in an entry's snapshot, within half of the window's budget. The dimmest chunks are
        pruned to make room.

        If recall is limited to certain windows, chunks of other windows are left out.
        """
        runtime = self.runtime
        keys = self.tree.query(path, now=runtime.now()).keys
        with runtime.exclusive_change(window_id):
            return inject_snapshot(runtime.window_for_change(window_id), keys, now=runtime.now())
