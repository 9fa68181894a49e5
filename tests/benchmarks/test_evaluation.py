"""Strategies evaluated on given conversations: who answers whom, attribution, what is kept, evidence end to end."""

from __future__ import annotations

import json
from pathlib import Path

from benchmarks.evaluation import Records, Workload, attribution, end_to_end, kept_shares, measure_windows
from halo_weave.core.retrieval_heads import Calibration
from halo_weave.core.tokens import Role
from halo_weave.lab.conversations import exchanges_of, read_dialogue, read_dialogues
from tests.cli.test_lab import dialogues
from tests.fakes import ScriptedEngine

assert dialogues


def session(day: int, *spoken: tuple[str, str]) -> dict:
    turns = [{"speaker": who, "dia_id": f"D{day}:{i}", "text": text} for i, (who, text) in enumerate(spoken)]
    return {"date_time": f"1:56 pm on {day} May, 2023", "turns": turns}


def test_an_exchange_begins_with_the_user_also_after_a_day_that_ended_with_one(tmp_path: Path) -> None:
    held = {
        "speakers": ["Anna", "Ben"],
        "sessions": [
            session(1, ("Anna", "Hello."), ("Ben", "Hi."), ("Anna", "Bye.")),
            session(2, ("Anna", "Back again."), ("Ben", "Good."), ("Ben", "How was it?"), ("Anna", "Wet.")),
            session(3, ("Ben", "You were away."), ("Anna", "Yes."), ("Ben", "I see.")),
        ],
        "qa": [],
    }
    (tmp_path / "one.json").write_text(json.dumps(held))
    pairs = list(exchanges_of(read_dialogue(tmp_path / "one.json").turns))
    assert [(a.text, b.text) for a, b in pairs] == [
        ("Anna: Hello.", "Ben: Hi."),
        ("Anna: Back again.", "Ben: Good. How was it?"),
        ("Anna: Wet.", "Ben: You were away."),
        ("Anna: Yes.", "Ben: I see."),
    ]
    assert {(a.role, b.role) for a, b in pairs} == {(Role.USER, Role.ASSISTANT)}


def test_the_caption_of_a_picture_is_said_only_if_it_is_asked_for(tmp_path: Path) -> None:
    held = {"speakers": ["Anna", "Ben"], "sessions": [session(1, ("Anna", "Look!"))], "qa": []}
    held["sessions"][0]["turns"][0]["blip_caption"] = "a photo of a cup"
    (tmp_path / "one.json").write_text(json.dumps(held))
    assert [one.text for one in read_dialogue(tmp_path / "one.json").turns] == ["Anna: Look!"]
    (shown,) = read_dialogue(tmp_path / "one.json", captions=True).turns
    assert shown.text == "Anna: Look! [picture: a photo of a cup]"


def whole(dialogue: str, strategy: str, each: list[int]) -> dict:
    counts = {"questions": len(each), "found": sum(each), "live": 0, "read_tokens": 100, "woken_tokens": 10}
    return {"dialogue": dialogue, "budget": "1000", "strategy": strategy, "each": each, **counts}


def test_end_to_end_a_strategy_is_compared_with_a_sliding_window_on_the_same_questions() -> None:
    told = end_to_end(
        [
            whole("one", "use_and_surprise", [1] * 12),
            whole("one", "first_in_first_out", [1] * 4 + [0] * 8),
            whole("two", "use_and_surprise", [1, 0]),  # not said with the other one
        ]
    )["1000"]
    assert told["use_and_surprise"]["evidence"] == round(13 / 14, 4)
    assert told["use_and_surprise"]["ahead"]["difference"] == round(8 / 12, 4)
    assert told["use_and_surprise"]["ahead"]["p"] < 0.05
    assert "ahead" not in told["first_in_first_out"]
    assert told["first_in_first_out"]["read_tokens"] == 100


def test_strategies_are_evaluated_on_conversations_with_questions(dialogues: Path) -> None:
    records = Records(None)
    talks = read_dialogues(dialogues)
    extent = Workload(windows=1)
    assert measure_windows(talks, ScriptedEngine(), Calibration(), extent, records, print, lambda: True)
    windows = records.of("window")
    found = attribution(windows)
    assert found["default"]["questions"] == 2
    assert found["default, or the turn beside it"]["top1"] >= found["default"]["top1"]
    assert set(kept_shares(windows)["use_and_surprise"]) == {"0.75", "0.5", "0.25"}
    assert not measure_windows(
        talks, ScriptedEngine(), Calibration(), extent, Records(None), print, lambda: False
    )
