"""The commands models, pull and doctor, and the options of the machine."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import pytest
from typer.testing import CliRunner

from halo_weave.cli.app import app, options_of
from halo_weave.engines.llama import devices
from halo_weave.errors import BadInput, BadSetting, ModelNotFound
from halo_weave.models import catalogue
from halo_weave.state_file import remember_model, remembered_model
from tests.models.conftest import WEIGHTS
from tests.models.hub import FakeHub
from tests.models.test_inventory import gguf

ROOT = Path(__file__).parents[2]


def run(*arguments: str) -> str:
    result = CliRunner().invoke(app, arguments, env={"COLUMNS": "300"})
    if result.exception and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result.stdout


def test_models_lists_the_catalogue_and_what_lies_here(folder: Path, tmp_path: Path) -> None:
    gguf(folder / "mine-1B-Q8_0.gguf")
    (folder / "bad.gguf").write_bytes(b"GGUF")
    told = json.loads(run("models", "--json"))
    by_name = {one["name"]: one for one in told["models"]}
    own = {name for name, one in by_name.items() if one["source"] != "hub"}
    assert own == {*(entry.name for entry in catalogue.ENTRIES), "mine-1B-Q8_0", "bad"}
    of_hub = [one for one in told["models"] if one["source"] == "hub"]
    assert {one["name"] for one in of_hub if one["fits"]} == set(told["recommended"])
    assert len([one for one in of_hub if not one["fits"]]) <= 1
    assert all(one["size"] and one["needs"] and one["license"] for one in of_hub)
    assert by_name["smollm2-135m"]["title"] == "SmolLM2 135M Instruct"
    assert by_name["smollm2-135m"]["where"] == "to pull"
    assert by_name["mine-1B-Q8_0"]["title"] == "Mine 1B"
    assert by_name["mine-1B-Q8_0"]["needs"] > by_name["mine-1B-Q8_0"]["size"]
    assert "truncated" in by_name["bad"]["problem"]
    assert told["default"] in by_name
    shown = run("models")
    assert "Qwen2.5 Coder 1.5B Instruct" in shown
    assert "Mine 1B" in shown


def test_pull_brings_a_model_of_the_hub_and_names_its_path(hub: FakeHub, folder: Path) -> None:
    told = json.loads(run("pull", "hf:owner/tiny-GGUF:Q4_K_M", "--json"))
    assert Path(told["hf:owner/tiny-GGUF:Q4_K_M"]).read_bytes() == WEIGHTS


def test_pull_of_what_lies_here_or_nowhere_is_a_sentence(folder: Path) -> None:
    with pytest.raises(BadInput, match="is on this machine already"):
        run("pull", str(gguf(folder / "mine.gguf")))
    with pytest.raises(ModelNotFound, match="halo-weave models"):
        run("pull", "gpt-9")


def test_doctor_tells_the_library_the_processor_and_the_memory(folder: Path) -> None:
    told = json.loads(run("doctor", "--json"))
    assert Path(told["llama_cpp"]["file"]).is_file()
    assert "CPU" in told["llama_cpp"]["backends"]
    assert told["llama_cpp"]["devices"][0]["kind"] == "processor"
    assert not set(told["llama_cpp"]["used"]) & set(told["llama_cpp"]["unused"])
    assert told["model"]["needs"] > told["model"]["weights"] > 0
    assert set(told["gpu"]) == {"CUDA", "Vulkan", "Metal", "own"}
    assert "xllamacpp" in run("doctor")


def test_doctor_counts_the_cache_as_it_is_asked_for(folder: Path) -> None:
    long = json.loads(run("doctor", "--model", "smollm2-135m", "--context", "2048", "--json"))["model"]
    assert (long["context"], long["cache"]) == (2048, 2048 * catalogue.SMOLLM2_135M.cache_bytes)
    with pytest.raises(ModelNotFound, match="halo-weave pull hf:a/b"):
        run("doctor", "--model", "hf:a/b")


def test_the_advice_names_the_version_that_is_pinned() -> None:
    pinned = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["dependencies"]
    (wanted,) = [one for one in pinned if one.startswith("xllamacpp")]
    assert wanted in devices.REINSTALL


def test_a_gpu_that_is_not_used_and_a_processor_that_could_do_more_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(devices.shutil, "which", lambda name: f"/usr/bin/{name}")
    monkeypatch.setattr(devices.sys, "platform", "linux")
    processor = devices.Device("CPU", "a processor", "processor", 1, 1)
    told = devices._advice((processor,), ("AVX512",))
    assert "NVIDIA GPU that is not used" in told[0]
    assert "--no-binary" in told[1]
    assert "HALO_WEAVE_LIBLLAMA" in told[1]
    assert devices.AVX512_NOTE in told[1]
    monkeypatch.setattr(devices.shutil, "which", lambda _: None)
    (other,) = (one for one in devices._advice((processor,), ("SVE",)) if "SVE" in one)
    assert "AVX-512" not in other  # what another instruction brings was not measured
    assert devices._advice((processor, devices.Device("CUDA0", "a card", "GPU", 1, 1)), ()) == ()


def test_the_options_of_the_machine_come_from_the_line_then_the_config(folder: Path) -> None:
    config = {"gpu_layers": "12", "kv_type": "q8_0", "batch": 128, "threads": 3}
    options = options_of(config, data=None, model=None, embedder="off", gpu_layers=0)
    assert (options.gpu_layers, options.kv_type, options.batch, options.threads) == (0, "q8_0", 128, 3)
    assert options_of(config, data=None, model=None, embedder="off").gpu_layers == 12
    with pytest.raises(BadSetting, match="q8_0"):
        options_of({"kv_type": "q3"}, data=None, model=None, embedder="off")
    with pytest.raises(BadSetting, match="gpu_layers"):
        options_of({"gpu_layers": "many"}, data=None, model=None, embedder="off")


def test_a_wrong_model_name_is_told_before_anything_is_opened(folder: Path) -> None:
    with pytest.raises(ModelNotFound, match="Did you mean"):
        options_of({"model": "smollm2-13m"}, data=None, model=None, embedder="off")
    options = options_of({}, data=None, model="smollm2-135m", embedder="minilm")
    assert (options.model, options.embedder) == ("smollm2-135m", None)


def test_a_choice_of_an_earlier_run_counts_before_the_config_and_after_what_is_named(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("chosen", "configured", "named", "environment"):
        gguf(folder / f"{name}.gguf")
    monkeypatch.delenv("HALO_WEAVE_MODEL", raising=False)
    config = {"model": "configured", "embedder": "off"}
    before = options_of(config, data=tmp_path / "data")
    assert (before.model, before.remembered) == ("configured", None)
    remember_model(tmp_path / "data", "chosen")
    after = options_of(config, data=tmp_path / "data")
    assert (after.model, after.remembered) == (None, "chosen")
    named = options_of(config, data=tmp_path / "data", model="named")
    assert (named.model, named.remembered) == ("named", None)
    monkeypatch.setenv("HALO_WEAVE_MODEL", "environment")
    from_outside = options_of({**config, "model": "environment"}, data=tmp_path / "data")
    assert (from_outside.model, from_outside.remembered) == ("environment", None)


def test_a_path_that_was_chosen_is_kept_whole(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gguf(tmp_path / "here.gguf")
    monkeypatch.chdir(tmp_path)
    remember_model(tmp_path / "data", "here.gguf")
    assert remembered_model(tmp_path / "data") == str(tmp_path / "here.gguf")
    (tmp_path / "data" / "chosen-model.txt").write_bytes(b"\xff\xfe")
    assert remembered_model(tmp_path / "data") is None
