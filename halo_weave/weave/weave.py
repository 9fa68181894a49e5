"""The system as the server and the command line use it: windows, turns, chunks, memory, keepsakes, models."""

from __future__ import annotations

from collections.abc import Callable
from copy import copy
from datetime import UTC, datetime
from typing import cast

from halo_weave.core.heads import NOT_CALIBRATED, Calibration
from halo_weave.engine_list import EngineList
from halo_weave.keepsakes.tools import Toolbox
from halo_weave.ports import Engine, RecallPort
from halo_weave.settings import Settings
from halo_weave.store import Store
from halo_weave.weave.ahead import ReadAhead
from halo_weave.weave.chunks import WeaveChunks
from halo_weave.weave.documents import WeaveDocuments
from halo_weave.weave.elsewhere import WeaveEngines
from halo_weave.weave.keepsakes import WeaveKeepsakes
from halo_weave.weave.library import WeaveLibrary
from halo_weave.weave.memory import EmbedAnew, WeaveMemory
from halo_weave.weave.models import Calibrate, OpenModel, Remember, WeaveModels
from halo_weave.weave.people import WeavePeople
from halo_weave.weave.presets import WeavePresets
from halo_weave.weave.reach import SystemInReach
from halo_weave.weave.recovery import recover
from halo_weave.weave.system import OpenOther, System
from halo_weave.weave.taping import DropTapes, NewTape
from halo_weave.weave.turns import WeaveTurns
from halo_weave.weave.windows import WeaveWindows


class Weave:
    def __init__(
        self,
        engine: Engine,
        store: Store,
        recall: RecallPort,
        toolbox: Toolbox | None = None,
        *,
        defaults: Settings | None = None,
        embed_anew: EmbedAnew | None = None,
        open_model: OpenModel | None = None,
        calibrate: Calibrate | None = None,
        remember_model: Remember | None = None,
        calibration: Calibration = NOT_CALIBRATED,
        new_tape: NewTape | None = None,
        engine_list: EngineList | None = None,
        open_other: OpenOther | None = None,
        silent: Engine | None = None,
        drop_tapes: DropTapes | None = None,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._system = System(
            engine,
            store,
            recall,
            toolbox,
            defaults=defaults or Settings(),
            calibration=calibration,
            now=now,
        )
        self._system.new_tape, self._system.erase_tapes = new_tape, drop_tapes
        self._system.listed, self._system.open_other = engine_list, open_other
        if silent is not None:
            self._system.use_silent(silent)
        self._ahead = ReadAhead(self._system)
        self.turns = WeaveTurns(self._system, self._ahead)
        self.models = WeaveModels(self._system, self.turns, open_model, calibrate, remember_model)
        self.engines = WeaveEngines(self._system, engine_list)
        self.windows = WeaveWindows(self._system, self.turns)
        self.documents = WeaveDocuments(self._system)
        self.presets = WeavePresets(self._system)
        self.chunks = WeaveChunks(self._system)
        self.memory = WeaveMemory(self._system, embed_anew, self._ahead)
        self.keepsakes = WeaveKeepsakes(self._system)
        self.library = WeaveLibrary(self._system)
        self.people = WeavePeople(store, now, changed=self._system.changed)
        self.now = now
        recover(self._system)
        self._system.divide_long()
        self._system.remove_stamps()
        store.fleet.listen(self.turns.hear)

    def of(self, person: str) -> Weave:
        """As this person may use it: what is theirs, and what others share with them. All of it while there is only one."""
        whole = self._system.root
        if not whole.store.several():
            return self
        system = cast(System, SystemInReach(whole, whole.store.reach(person)))
        own = copy(self)
        own._system = system
        own.turns = self.turns.within(system)
        own.memory = self.memory.within(system)
        own.windows = WeaveWindows(system, own.turns)
        own.documents, own.presets = WeaveDocuments(system), WeavePresets(system)
        own.chunks, own.keepsakes = WeaveChunks(system), WeaveKeepsakes(system)
        own.library, own.engines = WeaveLibrary(system), self.engines.within(system)
        own.people = WeavePeople(
            whole.store, self.now, changed=whole.changed, person=person, reached=system.store
        )
        return own

    @property
    def engine(self) -> Engine:
        """The model alone, without windows and memory: for the prototype's addresses."""
        return self._system.engine

    @property
    def calibration(self) -> Calibration:
        """The retrieval heads of the model."""
        return self._system.calibration

    def close(self) -> None:
        """Stop what is being written and let go of everything. What was said so far is kept."""
        self.models.close()
        self.memory.close()
        self._ahead.close()
        self.turns.close()
        self.turns.abort_all()  # also in the thread of someone who asks for a turn's steps
        self._system.close()
