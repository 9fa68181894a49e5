"""Models of other programs are found where they lie, and a name means one file or a sentence."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from halo_weave.errors import BadInput, ModelNotFound
from halo_weave.models import catalogue
from halo_weave.models.inventory import find_model, local_models, local_path, resolve, title_of
from tests.models.test_gguf_header import write


def gguf(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    return write(path, "llama")


@pytest.fixture
def home(folder: Path, tmp_path: Path) -> Path:
    return tmp_path / "home"


def found(home: Path, **environment: str) -> dict[str, tuple[str, Path]]:
    return {model.name: (model.source, model.path) for model in local_models(environment, home)}


def ollama(root: Path, where: str, blob: str = "1" * 64) -> Path:
    manifest = root / "manifests" / where
    manifest.parent.mkdir(parents=True, exist_ok=True)
    layers = [
        {"mediaType": "application/vnd.ollama.image.template", "digest": "sha256:" + "2" * 64},
        {"mediaType": "application/vnd.ollama.image.model", "digest": f"sha256:{blob}"},
    ]
    manifest.write_text(json.dumps({"schemaVersion": 2, "layers": layers}))
    return gguf(root / "blobs" / f"sha256-{blob}")


def test_ollama_models_are_found_by_their_manifests(home: Path) -> None:
    blob = ollama(home / ".ollama/models", "registry.ollama.ai/library/llama3.2/1b")
    other = ollama(home / ".ollama/models", "hf.co/owner/repo/Q4_K_M", "3" * 64)
    assert found(home) == {
        "llama3.2:1b": ("Ollama", blob),
        "hf.co/owner/repo:Q4_K_M": ("Ollama", other),
    }
    (model,) = [one for one in local_models({}, home) if one.name == "llama3.2:1b"]
    assert model.described()[0] == title_of(model.path) == "Llama3.2 1B"
    assert title_of(home / "somewhere.gguf") == ""


def test_a_model_for_ollamas_own_engine_is_marked(home: Path) -> None:
    blob = ollama(home / ".ollama/models", "registry.ollama.ai/library/gemma3/4b")
    write(blob, "gemma3", {"vision.block_count": 2})
    (model,) = local_models({}, home)
    assert model.described()[2] == "Made for Ollama's own engine; llama.cpp may not load it."


def test_ollama_lies_where_its_variable_says(home: Path, tmp_path: Path) -> None:
    blob = ollama(tmp_path / "elsewhere", "registry.ollama.ai/library/phi3/latest")
    assert found(home, OLLAMA_MODELS=str(tmp_path / "elsewhere")) == {"phi3:latest": ("Ollama", blob)}


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"[]",
        b"\xff",
        b'{"layers": 3}',
        b'{"layers": [{"digest": "sha256:../../etc", "mediaType": "application/vnd.ollama.image.model"}]}',
    ],
)
def test_a_manifest_that_is_none_is_passed_over(home: Path, content: bytes) -> None:
    path = home / ".ollama/models/manifests/registry.ollama.ai/library/a/b"
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    assert found(home) == {}


def test_models_of_the_other_programs_are_found(home: Path, tmp_path: Path) -> None:
    studio = gguf(home / ".lmstudio/models/publisher/repo/Qwen3-4B-Q4_K_M.gguf")
    gguf(home / ".lmstudio/models/publisher/repo/mmproj-Qwen3-4B.gguf")
    jan = gguf(home / ".local/share/Jan/data/llamacpp/models/org/tiny/model.gguf")
    jan.with_name("model.yml").write_text("model_path: llamacpp/models/org/tiny/model.gguf\nname: tiny\n")
    gpt4all = gguf(home / ".local/share/nomic.ai/GPT4All/Phi-3-mini.Q4_0.gguf")
    llama = gguf(home / ".cache/llama.cpp/owner_repo_some-7B-Q4_K_M.gguf")
    cached = gguf(tmp_path / "cache/models--owner--repo/snapshots/abc/Some-1B-Q8_0.gguf")
    assert found(home, HF_HUB_CACHE=str(tmp_path / "cache")) == {
        "Qwen3-4B-Q4_K_M": ("LM Studio", studio),
        "org/tiny": ("Jan", jan),
        "Phi-3-mini.Q4_0": ("GPT4All", gpt4all),
        "owner_repo_some-7B-Q4_K_M": ("llama.cpp", llama),
        "hf:owner/repo:Q8_0": ("hub cache", cached),
    }


def test_one_file_under_two_names_is_listed_once_and_shards_as_one(home: Path) -> None:
    blob = gguf(home / ".cache/huggingface/hub/models--a--b/blobs/0123")
    for commit in ("old", "new"):
        link = home / f".cache/huggingface/hub/models--a--b/snapshots/{commit}/x-Q8_0.gguf"
        link.parent.mkdir(parents=True)
        link.symlink_to(blob)
    first = gguf(home / ".lmstudio/models/p/r/y-00001-of-00002.gguf")
    second = gguf(home / ".lmstudio/models/p/r/y-00002-of-00002.gguf")
    models = local_models({}, home)
    assert [model.name for model in models] == ["y-00001-of-00002", "hf:a/b:Q8_0"]
    assert models[0].size == first.stat().st_size + second.stat().st_size


def test_a_link_to_what_is_gone_and_a_damaged_file_do_no_harm(home: Path) -> None:
    folder = home / ".lmstudio/models/p/r"
    folder.mkdir(parents=True)
    (folder / "gone.gguf").symlink_to(folder / "nowhere")
    (folder / "bad.gguf").write_bytes(b"GGUF\x03")
    (model,) = local_models({}, home)
    assert model.name == "bad"
    assert "truncated" in model.described()[2]


# What a name means


def test_a_path_a_catalogue_name_and_a_local_name_are_resolved(home: Path, folder: Path) -> None:
    own = gguf(folder / "mine.gguf")
    studio = gguf(home / ".lmstudio/models/p/r/Qwen3-4B-Q4_K_M.gguf")
    assert resolve(str(own)) == resolve("mine") == resolve("MINE.gguf") == own
    assert resolve("qwen3-4b-q4_k_m") == resolve("Qwen3 4B") == studio
    assert find_model("smollm2-135m") is find_model("SmolLM2 135M Instruct") is catalogue.SMOLLM2_135M
    assert local_path(catalogue.SMOLLM2_135M) is None


def test_a_name_of_several_models_asks_for_one_with_all_paths(home: Path) -> None:
    one = gguf(home / ".lmstudio/models/p/r/x-1B.gguf")
    two = gguf(home / ".local/share/nomic.ai/GPT4All/x-1B.gguf")
    with pytest.raises(BadInput, match="several models") as error:
        resolve("x-1B")
    assert str(one) in str(error.value)
    assert str(two) in str(error.value)


def test_what_is_missing_is_told_with_what_may_be_meant(home: Path, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound, match=r"No model is named 'smolm2-135m'\. Did you mean smollm2-135m\?"):
        resolve("smolm2-135m")
    with pytest.raises(ModelNotFound, match="halo-weave models"):
        resolve("gpt-9")
    with pytest.raises(ModelNotFound, match=r"no model at .*none\.gguf"):
        resolve(str(tmp_path / "none.gguf"))


def test_a_model_of_the_hub_in_another_programs_cache_is_not_pulled_again(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    cached = gguf(home / ".cache/huggingface/hub/models--owner--repo/snapshots/abc/Some-1B-Q4_K_M.gguf")
    assert resolve("hf:owner/repo") == resolve("hf:owner/repo:q4_k_m") == cached


def test_only_what_is_listed_is_found_for_others(home: Path, folder: Path, tmp_path: Path) -> None:
    here, secret = gguf(folder / "here.gguf"), gguf(tmp_path / "secret.gguf")
    assert find_model(str(here), any_path=False) == here
    assert find_model("here", any_path=False) == here
    assert find_model(str(secret)) == secret
    told = set()
    for path in (secret, tmp_path / "none.gguf", Path("/etc/passwd"), Path("~nobody-at-all/x.gguf")):
        with pytest.raises(ModelNotFound) as refused:
            find_model(str(path), any_path=False)
        told.add(str(refused.value).replace(str(path), ""))
    assert len(told) == 1


@pytest.mark.parametrize("name", ["x" * 5000, "~nobody-at-all/x.gguf", "a\0b", "/" + "y" * 300])
def test_a_name_that_no_file_can_have_is_a_sentence(home: Path, name: str) -> None:
    with pytest.raises(ModelNotFound):
        find_model(name)
