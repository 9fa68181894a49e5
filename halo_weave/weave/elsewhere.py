"""Engines that windows can choose, and where the words of a window go."""

from __future__ import annotations

from dataclasses import dataclass

from halo_weave.engine_list import EngineList, NamedEngine
from halo_weave.errors import BadInput
from halo_weave.ports import ModelInfo, machine_of
from halo_weave.settings import Leaving
from halo_weave.weave.events import WindowChanged
from halo_weave.weave.leaving import leaving
from halo_weave.weave.system import System

MACHINE = "this machine"


@dataclass(frozen=True, slots=True)
class ListedEngine:
    """An engine by name. Its key is never told."""

    engine: NamedEngine
    open: bool
    elsewhere: str  # the machine that words are sent to; empty: none
    light: str  # which eyes are in use, once it is open

    @property
    def has_key(self) -> bool:
        return bool(self.engine.key)


@dataclass(frozen=True, slots=True)
class WhereWordsGo:
    """What answers in a window, and what of memory it may read."""

    name: str  # of the engine; empty: the model of all windows
    known: bool  # whether there is one of this name
    model: str  # empty: it is not open yet
    elsewhere: str
    rule: Leaving
    private: bool
    light: str
    malformed: int  # rows of attention that could not be used since it was opened


class WeaveEngines:
    """`weave.engines`."""

    def __init__(self, system: System, listed: EngineList | None) -> None:
        self._system, self._listed = system, listed

    def within(self, system: System) -> WeaveEngines:
        return WeaveEngines(system, self._listed)

    def list(self) -> list[ListedEngine]:
        found = []
        for one in self._listed or ():
            model = self._system.others.get(one.name)
            light = model.calibration.sentence if model else ""
            found.append(ListedEngine(one, model is not None, machine_of(one.url), light))
        return found

    @property
    def notice(self) -> str:
        """What was wrong with the file of engines; empty: nothing."""
        return self._listed.notice if self._listed else ""

    def add(self, one: NamedEngine) -> None:
        """A new engine, or another address or key for one; its windows open it anew."""
        if self._listed is None:
            raise BadInput("Engines cannot be added here.")
        self._system.close_other(one.name)
        self._listed.add(one)
        self._system.hubs.publish(WindowChanged())  # pages tell where the words of their window go

    def remove(self, name: str) -> None:
        if self._listed is None:
            raise BadInput("Engines cannot be removed here.")
        self._listed.get(name)
        self._system.close_other(name)
        self._listed.remove(name)
        self._system.hubs.publish(WindowChanged())

    def where(self, window_id: str) -> WhereWordsGo:
        system = self._system
        settings = system.settings(system.window(window_id))
        name = settings.answered_by
        model = system.others.get(name) if name else system.model
        info = model.engine.info if model else None
        known = {one.name: one.url for one in self._listed or ()}
        if info is None:  # it is not open yet: where its words would go is known all the same
            info = _unopened(known.get(name, ""))
        return WhereWordsGo(
            name,
            not name or name in known,
            model.engine.info.name if model else "",
            info.elsewhere,
            leaving(settings, info),
            settings.private,
            model.calibration.sentence if model else "",
            int(getattr(model.engine, "malformed", 0)) if model else 0,
        )


def _unopened(url: str) -> ModelInfo:
    return ModelInfo("", "", 0, 0, 0, 0, 0, 0, {}, "", "chatml", url=url)
