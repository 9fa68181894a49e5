"""A replay of a capture acts as the window did."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from halo_weave.chat import Weave, events
from halo_weave.chat.capture import CaptureWriter, StoredCapture
from halo_weave.core.retrieval_heads import Calibration, RetrievalHead
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.engines.base import Engine
from halo_weave.errors import BadInput
from halo_weave.lab.replay import ReplayResult, replay
from halo_weave.settings import Settings
from halo_weave.store.sqlite import SqliteStore
from tests.chat.conftest import SMALL, Clock, WordRecall, of
from tests.fakes.scripted_engine import ScriptedEngine, Visible

HEADS = Calibration((RetrievalHead(0, 1, 0.9, 0.8, 0.75), RetrievalHead(1, 0, 0.5, 0.5, 0.25)), "Two heads.")
TOLD = [
    "My lighthouse key lies under the blue pot.",
    "The ferry to Skagen leaves at seven. What do you think of ferries?",
    "Grandmother plays the cello on Sundays, and the whole street listens.",
    "Bread is baked with rye here.",
    "Where is the lighthouse key?",
    "The weather is mild, and the harbour is quiet tonight.",
    "Tell me about the cello.",
    "Nothing much happened today, only rain.",
]


def uneven(at: Visible) -> np.ndarray:
    """Looks at some words more than at others, always the same way."""
    return 1.0 + 50.0 * (np.asarray(at.ids, np.float32) % 7 == 3)


class Talked:
    """A window that talked while it was captured, and what fell asleep in it."""

    def __init__(self, folder: Path, settings: dict, says: list[str] = TOLD) -> None:
        self.folder = folder / "captures"
        store = SqliteStore(folder / "memory.sqlite")
        engine = ScriptedEngine(answer=lambda text: f"You said {len(text)} letters.", look=uneven)

        def new_recorder(
            window: str, chosen: Settings, engine: Engine, calibration: Calibration
        ) -> CaptureWriter:
            place, most = self.folder / window, chosen.capture_megabytes
            return CaptureWriter.open(place, window, engine, calibration, heads=chosen.capture, most=most)

        self.weave = Weave(
            engine, store, WordRecall(store), calibration=HEADS, new_recorder=new_recorder, now=Clock()
        )
        chosen = {**SMALL, "tools": "off", "max_context_tokens": 170, "capture": "retrieval", **settings}
        self.window = self.weave.windows.create("one", settings=chosen).id
        self.pruned: list[list[tuple[ChunkKey, float]]] = []
        self.resurrected: list[ChunkKey] = []
        self.uses: list[dict[ChunkKey, float]] = []
        for text in says:
            self.say(text)

    def say(self, text: str) -> None:
        turn = list(self.weave.turns.steps(self.window, text))
        asleep = [one for event in of(events.ChunksPruned, turn) for one in event.chunks]
        self.resurrected += [one.key for event in of(events.ChunksResurrected, turn) for one in event.chunks]
        self.uses += [
            {one.key: one.share for one in spoken.use.chunks} for spoken in of(events.ReplyStored, turn)
        ]
        self.pruned.append([(one.key, one.brightness) for one in asleep])

    @property
    def recording(self) -> StoredCapture:
        return StoredCapture.open(self.folder / self.window)


def asleep(done: ReplayResult, turns: int) -> list[list[tuple[ChunkKey, float]]]:
    return [[(one.key, one.brightness) for one in done.pruned if one.turn == i] for i in range(turns)]


@pytest.mark.parametrize("strategy", ["use_and_surprise", "magnitude_voting", "cumulative", "surprise"])
def test_a_replay_puts_to_sleep_what_fell_asleep_live(tmp_path: Path, strategy: str) -> None:
    talked = Talked(tmp_path, {"strategy": strategy})
    talked.weave.close()
    assert sum(map(len, talked.pruned)) >= 4
    done = replay(talked.recording)
    assert asleep(done, len(TOLD)) == talked.pruned
    assert [key for _, key in done.resurrected] == talked.resurrected


def test_a_replay_finds_the_same_sources_of_each_reply(tmp_path: Path) -> None:
    talked = Talked(tmp_path, {"strategy": "use_and_surprise"})
    talked.weave.close()
    assert any(talked.uses)
    assert replay(talked.recording, uses=True).uses == talked.uses


def test_another_strategy_or_budget_acts_otherwise_on_the_same_capture(tmp_path: Path) -> None:
    talked = Talked(tmp_path, {"strategy": "use_and_surprise"})
    talked.weave.close()
    same, other = replay(talked.recording), replay(talked.recording, strategy="first_in_first_out")
    ages = [one.turn - i for i, one in enumerate(other.pruned)]
    assert ages
    assert asleep(other, len(TOLD)) != asleep(same, len(TOLD))
    assert not replay(talked.recording, budget=0).pruned
    assert len(replay(talked.recording, budget=120).pruned) > len(same.pruned)


def test_a_capture_at_a_large_budget_tells_what_is_done_at_a_small_one(tmp_path: Path) -> None:
    """First in, first out does not depend on what was looked at, so it must do the same as live."""
    for name, budget in (("large", 0), ("small", 170)):
        (tmp_path / name).mkdir()
        settings = {"strategy": "first_in_first_out", "max_context_tokens": budget, "resurrection_budget": 0}
        talked = Talked(tmp_path / name, settings)
        talked.weave.close()
        if name == "large":
            assert not sum(map(len, talked.pruned))
            done = replay(talked.recording, budget=170)
    assert sum(map(len, talked.pruned)) > 3
    assert asleep(done, len(TOLD)) == talked.pruned


def test_what_the_user_does_between_turns_is_replayed(tmp_path: Path) -> None:
    talked = Talked(tmp_path, {"strategy": "use_and_surprise"}, TOLD[:3])
    key = ChunkKey(1, 0, Role.USER)
    talked.weave.chunks.pin(talked.window, key)
    for text in TOLD[3:6]:
        talked.say(text)
    talked.weave.chunks.unpin(talked.window, key)
    talked.weave.chunks.prune(talked.window, key)
    for text in ("One more thing about rain.", "And one about snow and the mountains."):
        talked.say(text)
    talked.weave.close()
    assert asleep(replay(talked.recording), 8) == talked.pruned


def test_a_capture_goes_on_after_a_restart_and_ends_at_its_size(tmp_path: Path) -> None:
    talked = Talked(tmp_path, {}, TOLD[:2])
    recording = talked.weave.runtime.recording(talked.window, talked.weave.windows.settings(talked.window))
    assert isinstance(recording, CaptureWriter)
    again = CaptureWriter(recording.folder, HEADS, heads="retrieval", most=1_000)
    talked.weave.runtime._recorders = dict.fromkeys(talked.weave.runtime._recorders, again)
    talked.say(TOLD[2])
    assert len(list(talked.recording)) == 3
    again.most = 0
    talked.say(TOLD[3])
    assert len(list(talked.recording)) == 3
    assert "reached 0 MB" in again.sentence
    talked.weave.close()


def test_another_choice_of_heads_gets_a_capture_of_its_own(tmp_path: Path) -> None:
    talked = Talked(tmp_path, {}, TOLD[:2])
    talked.weave.windows.change(talked.window, settings={"capture": "all"})
    talked.say(TOLD[2])
    talked.weave.windows.change(talked.window, settings={"capture": "off"})
    talked.say(TOLD[3])
    talked.weave.close()
    assert sorted(path.name for path in talked.folder.iterdir()) == [talked.window, f"{talked.window}-2"]
    assert len(list(talked.recording)) == 2
    assert len(list(StoredCapture.open(talked.folder / f"{talked.window}-2"))) == 1


def test_the_format_is_what_is_documented(tmp_path: Path) -> None:
    talked = Talked(tmp_path, {"capture": "all"}, TOLD[:2])
    talked.weave.close()
    with np.load(talked.folder / talked.window / "turn-000002.npz") as held:
        rows = len(held["row_ends"])
        assert held["kinds"].tolist() == sorted(held["kinds"].tolist())
        assert int(held["heads"]) == talked.weave.engine.info.layers * talked.weave.engine.info.heads
        assert len(held["raw"]) == int(held["heads"]) * len(held["tokens"])
        sums = np.add.reduceat(held["tokens"], [0, *held["row_ends"][:-1]]) + held["aside"][:, :2].sum(axis=1)
        np.testing.assert_allclose(sums, np.ones(rows), atol=1e-3)


def test_another_folder_or_a_broken_file_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="no capture"):
        StoredCapture.open(tmp_path)
    talked = Talked(tmp_path, {}, TOLD[:2])
    talked.weave.close()
    (talked.folder / talked.window / "turn-000002.npz").write_bytes(b"PK broken")
    with pytest.raises(BadInput, match="cannot be read"):
        replay(talked.recording)
