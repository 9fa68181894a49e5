"""The lab's commands, as a user runs them: on the scripted engine, without a model."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from halo_weave.app import Options, build_weave
from halo_weave.cli import app
from tests.lab.test_replay import TOLD, Talked

SPOKEN = [
    ("Anna", "My sister plays the violin in Tromso every winter."),
    ("Ben", "That sounds cold. Does she like it there?"),
    ("Anna", "She does. The cat is called Pepper and sleeps on the score."),
    ("Ben", "A cat with taste. My own cat prefers the harbour."),
    ("Anna", "We painted the boat green last week."),
    ("Ben", "Green suits a boat. I would have taken red."),
]


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    config = tmp_path / "config.toml"
    config.write_text('engine = "scripted"\n')
    monkeypatch.setenv("HALO_WEAVE_CONFIG", str(config))
    monkeypatch.setenv("HALO_WEAVE_MODELS", str(tmp_path / "models"))


@pytest.fixture
def dialogues(tmp_path: Path) -> Path:
    folder = tmp_path / "dialogues"
    folder.mkdir()
    turns = [
        {"speaker": who, "dia_id": f"D1:{i}", "text": text} for i, (who, text) in enumerate(SPOKEN * 6, 1)
    ]
    held = {
        "speakers": ["Anna", "Ben"],
        "sessions": [{"date_time": "1:56 pm on 8 May, 2023", "turns": turns}],
        "qa": [
            {"question": "What is the cat called?", "answer": "Pepper", "category": 4, "evidence": ["D1:3"]},
            {
                "question": "Which colour has the boat?",
                "answer": "green",
                "category": 4,
                "evidence": ["D1:5"],
            },
        ],
    }
    (folder / "one.json").write_text(json.dumps(held))
    return folder


def run(*words: object) -> str:
    done = CliRunner().invoke(app, ["lab", *map(str, words)], catch_exceptions=False)
    assert done.exit_code == 0, done.output
    return done.stdout


@pytest.mark.slow
def test_a_conversation_is_captured_replayed_and_compared_with_plots(
    scripted: None, dialogues: Path, tmp_path: Path
) -> None:
    capture = tmp_path / "capture"
    assert "Captured 8 exchanges" in run("capture", capture, dialogues / "one.json", "--exchanges", 8)
    assert len(list(capture.glob("turn-*.npz"))) == 8
    slept = json.loads(run("replay", capture, "--strategy", "first_in_first_out", "--budget", 300, "--json"))
    assert slept["turns"] == 8
    keys = [one["key"] for one in slept["pruned"]]
    assert keys[:2] == ["1.0.user", "2.0.assistant"]  # the oldest first
    shown = run("replay", capture, "--strategy", "first_in_first_out", "--budget", 300)
    assert "violin" in shown
    found = json.loads(
        run("compare", capture, "--strategies", "first_in_first_out,surprise", "--budget", 300,
            "--plots", tmp_path / "plots", "--json")
    )[str(capture)]  # fmt: skip
    assert found["strategies"]["first_in_first_out"]["pruned"] == len(keys)
    assert 0 < found["agreement"]["first_in_first_out, surprise"] <= 1
    names = {"brightness", "asleep", "survival", "looks"}
    assert {Path(one).name for one in found["plots"]} == {f"{a}.{b}" for a in names for b in ("png", "svg")}
    assert all(Path(one).stat().st_size > 2_000 for one in found["plots"])


def test_models_are_heard_side_by_side(scripted: None, tmp_path: Path) -> None:
    said = tmp_path / "said.txt"
    said.write_text("\n".join(TOLD[:3]))
    (found,) = json.loads(run("models", said, "--model", "smollm2-135m", "--json")).values()
    assert [one["said"] for one in found["turns"]] == TOLD[:3]
    assert all(one["reply"] for one in found["turns"])


def test_a_digest_quotes_what_was_used_and_names_where_it_stands(tmp_path: Path) -> None:
    talked = Talked(tmp_path, {"strategy": "use_and_surprise"})
    window = talked.weave.windows.get(talked.window)
    talked.weave.close()
    found = json.loads(run("digest", window.name, "--data", tmp_path, "--json", "--tokens", 60))
    texts = {one["key"]: one["text"] for one in found}
    assert texts
    assert set(texts.values()) <= {*TOLD, *(text for text in texts.values() if text.startswith("You said"))}
    assert all(one["replies"] and one["share"] > 0 for one in found)
    assert [datetime.fromisoformat(one["said"]) for one in found] == sorted(
        datetime.fromisoformat(one["said"]) for one in found
    )
    more = json.loads(run("digest", window.name, "--data", tmp_path, "--json", "--tokens", 1_000))
    assert len(more) > len(found)


def test_a_captured_window_is_found_by_its_name(tmp_path: Path) -> None:
    talked = Talked(tmp_path, {"strategy": "use_and_surprise"})
    talked.weave.close()
    told = json.loads(run("replay", "one", "--data", tmp_path, "--json"))
    assert [one["key"] for one in told["pruned"]] == [str(key) for turn in talked.pruned for key, _ in turn]


@pytest.mark.parametrize("by", ["the program", "the command"])
def test_wiping_the_memory_wipes_what_was_captured(scripted: None, tmp_path: Path, by: str) -> None:
    weave = build_weave(Options(tmp_path, engine="scripted", embedder="off"))
    window = weave.windows.create("one", settings={"capture": "mean"}).id
    list(weave.turns.steps(window, "My sister plays the violin."))
    assert list((tmp_path / "captures" / window).glob("turn-*.npz"))
    if by == "the program":
        weave.memory.clear()
    weave.close()
    if by == "the command":
        wiped = CliRunner().invoke(app, ["clear", "--yes", "--data", str(tmp_path)], catch_exceptions=False)
        assert wiped.exit_code == 0
    assert not (tmp_path / "captures").exists()
