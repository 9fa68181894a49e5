"""Conversations that are given: who answers whom."""

from __future__ import annotations

import json
from pathlib import Path

from halo_weave.core.tokens import Role
from halo_weave.lab.dialogues import dialogue_of, exchanges_of


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
    pairs = list(exchanges_of(dialogue_of(tmp_path / "one.json").turns))
    assert [(a.text, b.text) for a, b in pairs] == [
        ("Anna: Hello.", "Ben: Hi."),
        ("Anna: Back again.", "Ben: Good. How was it?"),
        ("Anna: Wet.", "Ben: You were away."),
        ("Anna: Yes.", "Ben: I see."),
    ]
    assert {(a.role, b.role) for a, b in pairs} == {(Role.USER, Role.ASSISTANT)}
