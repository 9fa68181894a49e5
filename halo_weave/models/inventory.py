"""Finds the GGUF models on this machine, gives them readable names, and resolves a name to a file."""

from __future__ import annotations

import json
import logging
import os
import re
import sys
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from difflib import get_close_matches
from functools import lru_cache
from pathlib import Path
from typing import Literal

from halo_weave.errors import BadInput, HaloWeaveError, ModelNotFound
from halo_weave.models import catalogue
from halo_weave.models.catalogue import CatalogueEntry, HubModel
from halo_weave.models.download import Progress, no_progress
from halo_weave.models.gguf_header import GgufHeader, read_header
from halo_weave.models.hub import (
    QUANT,
    SCHEME,
    SHARD,
    SIDE_FILES,
    HubReference,
    pull_from_hub,
    pulled_from_hub,
    quant_of,
)
from halo_weave.models.memory_estimate import (
    MemoryEstimate,
    estimate_memory,
    machine_cores,
    machine_memory,
)
from halo_weave.paths import models_folder

SIZE = re.compile(r"(?i)(\d+x)?e?\d+(\.\d+)?[bmk](-a\d+(\.\d+)?b)?")
CACHE_PREFIX = re.compile(r"(?i)[-_]gguf_")  # llama.cpp's cache puts the repository before the file name
NOISE = {"gguf", "ggml", "awq", "gptq", "imatrix", "i1", "hf", "model", "ud", "bnb", "4bit", "8bit", "mlx"}
SPELLINGS = {
    "ai": "AI",
    "deepseek": "DeepSeek",
    "gpt": "GPT",
    "glm": "GLM",
    "it": "it",
    "lfm2": "LFM2",
    "minilm": "MiniLM",
    "olmo": "OLMo",
    "oss": "OSS",
    "qwq": "QwQ",
    "smollm": "SmolLM",
    "smollm2": "SmolLM2",
    "smollm3": "SmolLM3",
    "tinyllama": "TinyLlama",
    "vl": "VL",
}


def human_name(path: Path, header: GgufHeader | None = None) -> str:
    """The name of a model: from the catalogue, else from the file name, else from the header.

    The header often has the name of a training run; file names with a size are written for people.
    """
    for entry in catalogue.ENTRIES:
        if path.name == entry.files[0].name:
            return entry.title
    own = CACHE_PREFIX.split(path.name.removesuffix(".gguf"))[-1]
    from_file = _readable_words(own, SHARD.search(path.name) is not None)
    values = header.values if header else {}
    from_header = str(values.get("general.name") or "")
    if not from_header:
        from_header = " ".join(
            str(values.get(f"general.{key}") or "") for key in ("basename", "size_label", "finetune")
        )
    if any(SIZE.fullmatch(word) for word in from_file.split()) or not from_header.strip():
        return from_file or path.name
    return _readable_words(from_header) or from_file or path.name


def _readable_words(text: str, shard: bool = False) -> str:
    """Words with capitals, without those about quantization."""
    if shard:
        text = SHARD.sub("", text + ".gguf")
    for quant in QUANT.findall(text):
        text = re.sub(rf"(?:^|[-._/]){re.escape(quant)}(?=[-._/]|$)", "", text)
    words = [
        word
        for word in re.split(r"[\s_/-]+|\.(?!\d)", text[:200])
        if word and word.lower() not in NOISE and word.isprintable()
    ]
    return " ".join(_word(word) for word in words)


def _word(word: str) -> str:
    if word.lower() in SPELLINGS:
        return SPELLINGS[word.lower()]
    if SIZE.fullmatch(word):
        return word.upper().replace("X", "x")
    return word[0].upper() + word[1:] if word.islower() or not word.isalpha() else word


logger = logging.getLogger(__name__)
DEFAULT = "default"  # a name for the general model that suits this machine
MAX_MANIFEST_BYTES = 1 << 20  # bytes
OLLAMA_PARTS = ("vision", "audio", "mm")  # keys in Ollama's file of a text model
OLLAMA_BLOB = re.compile("sha256-[0-9a-f]{64}")
OLLAMA_WEIGHTS = "application/vnd.ollama.image.model"


@dataclass(frozen=True, slots=True)
class LocalModel:
    name: str  # as it is typed
    path: Path
    source: str  # the program that put it there

    @property
    def size(self) -> int:
        """Bytes of all shards."""
        shard = SHARD.search(self.path.name)
        pattern = f"{self.path.name[: shard.start()]}-*-of-{shard[2]}.gguf" if shard else ""
        files = list(self.path.parent.glob(pattern)) if shard else [self.path]
        return sum(file.stat().st_size for file in files)

    def described(self) -> tuple[str, GgufHeader | None, str]:
        """Its readable name, its header, and why it cannot be used, if so."""
        try:
            stat = self.path.stat()
            header = _header(self.path, stat.st_size, stat.st_mtime_ns)
        except OSError as error:
            return self.name, None, f"It cannot be read: {error.strerror or error}."
        except HaloWeaveError as error:
            return self.name, None, str(error)
        if self.source == "Ollama":
            name = self.name.rpartition("/")[2].removesuffix(":latest").replace(":", "-")
            ollama_only = any(
                f"{header.architecture}.{part}." in key for key in header.values for part in OLLAMA_PARTS
            )
            problem = "Made for Ollama's own engine; llama.cpp may not load it." if ollama_only else ""
            return human_name(Path(f"{name}.gguf"), header), header, problem
        return human_name(self.path, header), header, ""


@lru_cache(256)
def _header(path: Path, size: int, changed: int) -> GgufHeader:
    """The header, cached as long as the file does not change."""
    return read_header(path)


def local_models(environment: Mapping[str, str] | None = None, home: Path | None = None) -> list[LocalModel]:
    """Every model file once: those in our own folder first, then those of other programs."""
    environment = os.environ if environment is None else environment
    home = home or Path.home()
    models: dict[Path, LocalModel] = {}
    for model in _all_models(environment, home):
        try:
            resolved = model.path.resolve(strict=True)
        except OSError:  # a broken link
            continue
        models.setdefault(resolved, model)
    return list(models.values())


@dataclass(frozen=True, slots=True)
class ListedModel:
    """A model that can be used or downloaded, with what it needs."""

    name: str  # as it is typed
    title: str
    kind: Literal["chat", "text", "embedder"] | None  # None: unknown
    size: int  # bytes of its files
    needs: int | None  # bytes of memory; None: unknown
    fits: bool | None
    where: str  # "pulled", "to pull", or the program whose folder it is in
    source: str
    path: str | None
    license: str
    problem: str  # why it cannot be used, if so
    note: str  # a note for the user


def listed_models(memory: int) -> list[ListedModel]:
    """The catalogue, the models on this machine, then the hub's models that fit and the next larger one."""
    listed = [_listed_catalogue_entry(entry, memory) for entry in catalogue.ENTRIES]
    known = {entry.path for entry in catalogue.ENTRIES if entry.present}
    for model in local_models():
        if model.path not in known:
            with suppress(OSError):  # it was deleted meanwhile
                listed.append(_listed_file(model, memory))
    names = {model.name.lower() for model in listed}
    larger = [model for model in catalogue.RECOMMENDED if not model.memory_estimate.fits(memory)][:1]
    for recommended in (*reversed(catalogue.recommended(memory)), *larger):
        if recommended.name.lower() not in names:
            listed.append(_listed_hub_model(recommended, memory))
    return listed


def _listed_hub_model(model: HubModel, memory: int) -> ListedModel:
    needs = model.memory_estimate
    return ListedModel(
        model.name,
        model.title,
        "chat",
        model.size,
        needs.total,
        needs.fits(memory),
        "to pull",
        "hub",
        None,
        model.license,
        "",
        "",
    )


def _listed_catalogue_entry(entry: CatalogueEntry, memory: int) -> ListedModel:
    needs = replace(entry.memory_estimate, cache=0) if entry.kind == "embedder" else entry.memory_estimate
    return ListedModel(
        entry.name,
        entry.title,
        entry.kind,
        entry.size,
        needs.total,
        needs.fits(memory),
        "pulled" if entry.present else "to pull",
        "catalogue",
        str(entry.path) if entry.present else None,
        entry.license,
        "",
        entry.note,
    )


def _listed_file(model: LocalModel, memory: int) -> ListedModel:
    title, header, problem = model.described()
    size = model.size
    needs: MemoryEstimate | None = None
    if header:
        needs = MemoryEstimate(size, 0) if header.is_embedder else estimate_memory(header, size)
    return ListedModel(
        model.name,
        title,
        None if header is None else "embedder" if header.is_embedder else "chat",
        size,
        needs.total if needs else None,
        needs.fits(memory) if needs else None,
        model.source,
        model.source,
        str(model.path),
        str(header.values.get("general.license") or "") if header else "",
        problem,
        catalogue.note_of(model.path),
    )


def title_of(path: Path) -> str:
    """The name of a model whose file name is a hash, as with Ollama."""
    if not OLLAMA_BLOB.fullmatch(path.name):
        return ""
    return next((model.described()[0] for model in _ollama(path.parents[1]) if model.path == path), "")


def find_model(name: str, *, any_path: bool = True) -> Path | CatalogueEntry | HubReference:
    """Find a model by its file, its name in the catalogue or on the hub, or its name on this machine.

    Without `any_path`, a path must be one that `local_models` lists; whether other files exist is not revealed.
    """
    if name.startswith(SCHEME):
        return HubReference.read(name)
    path = _expanded(name)
    if not any_path and len(path.parts) > 1:
        listed = {str(model.path): model.path for model in local_models()}
        if str(path) not in listed:
            raise ModelNotFound(
                f"{name!r} is not one of the listed models. Put a model into {models_folder()}, or name it "
                "when the server is started: halo-weave serve --model FILE"
            )
        return listed[str(path)]
    if any_path and _is_file(path):
        return path
    lower_name = name.strip().lower()
    if lower_name == DEFAULT:
        memory, cores = machine_memory(), machine_cores()
        return catalogue.general_model(memory, cores) or catalogue.default_model(memory, cores)[0]
    for entry in catalogue.ENTRIES:
        if lower_name in (entry.name, entry.title.lower()):
            return entry
    local = local_models()
    by_name = [
        model
        for model in local
        if lower_name in (model.name.lower(), model.path.name.lower(), model.path.stem.lower())
    ]
    matches = by_name or [model for model in local if model.described()[0].lower() == lower_name]
    if len(matches) == 1:
        return matches[0].path
    if matches:
        paths = "; ".join(f"{model.path} ({model.source})" for model in matches)
        raise BadInput(f"{name!r} is the name of several models. Give the path of one: {paths}.")
    if len(path.parts) > 1 or path.suffix == ".gguf":
        raise ModelNotFound(
            f"There is no model at {path}. Give the path of a GGUF file, or a name that this lists: halo-weave models"
        )
    near = get_close_matches(
        lower_name, [*(entry.name for entry in catalogue.ENTRIES), *(model.name for model in local)], 1
    )
    suggestion = f" Did you mean {near[0]}?" if near else ""
    raise ModelNotFound(f"No model is named {name!r}.{suggestion} To see all: halo-weave models")


def _expanded(name: str) -> Path:
    try:
        return Path(name).expanduser()
    except RuntimeError:  # the home of an unknown user
        return Path(name)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # too long, or in a folder without permission
        return False


def local_path(model: Path | CatalogueEntry | HubReference) -> Path | None:
    """The path of the model, if it is on this machine."""
    if isinstance(model, CatalogueEntry):
        return model.path if model.present else None
    if isinstance(model, HubReference):
        return pulled_from_hub(model, models_folder()) or _cached_by_another_program(model)
    return model


def resolve(name: str | Path, progress: Progress = no_progress) -> Path:
    """The file for a path, a name or an `hf:` reference, downloaded if it is missing."""
    model = find_model(str(name))
    path = local_path(model)
    if path is None and not isinstance(model, Path):
        return pull_model(model, progress)
    return path or Path(name)


def chosen_weights(model: str | Path | None, progress: Progress = no_progress) -> Path:
    """The file of the named chat model, else of the default one."""
    if model:
        return resolve(model, progress)
    path, sentence = catalogue.ensure_default(machine_memory(), machine_cores(), progress)
    if sentence:
        logger.warning(sentence)
    return path


def name_of(path: Path) -> str:
    """The name in the catalogue of a model file; else the name of the file."""
    return next((entry.name for entry in catalogue.ENTRIES if entry.path == path), path.stem)


def pull_model(model: CatalogueEntry | HubReference, progress: Progress = no_progress) -> Path:
    """Download a model into the models folder, or check the one that is there."""
    if isinstance(model, CatalogueEntry):
        return catalogue.pull(model, progress)
    folder = models_folder()
    try:
        return pull_from_hub(model, folder, progress)
    except OSError as error:
        raise ModelNotFound(
            f"{model} could not be stored in {folder}: {error.strerror or error}. What arrived is kept. "
            f"Make room there or name another folder with HALO_WEAVE_MODELS, then try again: halo-weave pull {model}"
        ) from error


def _cached_by_another_program(reference: HubReference) -> Path | None:
    """A model of the hub that another program has downloaded."""
    names = {str(reference).lower()} | (
        set() if reference.quant else {f"{reference}:{quant}".lower() for quant in ("q4_k_m", "q8_0")}
    )
    return next((model.path for model in local_models() if model.name.lower() in names), None)


def _all_models(environment: Mapping[str, str], home: Path) -> Iterator[LocalModel]:
    own = models_folder()
    known = {entry.files[0].name: entry.name for entry in catalogue.ENTRIES}
    for file in _weights(own):
        inside = file.relative_to(own)
        if file.parent == catalogue.DEFAULT_EMBEDDER.path.parent:
            continue  # converted from a downloaded file
        if inside.as_posix() in known:
            yield LocalModel(known[inside.as_posix()], file, "Halo Weave")
        elif len(inside.parts) > 2:
            yield LocalModel(_hub_name("/".join(inside.parts[:2]), file), file, "Halo Weave")
        else:
            yield LocalModel(file.stem, file, "Halo Weave")
    for root in _folders(
        environment.get("OLLAMA_MODELS"), home / ".ollama/models", "/usr/share/ollama/.ollama/models"
    ):
        yield from _ollama(root)
    for root in _folders(home / ".lmstudio/models", home / ".cache/lm-studio/models"):
        yield from (LocalModel(file.stem, file, "LM Studio") for file in _weights(root))
    for root in _folders(*_application_data(environment, home, "Jan/data"), home / "jan"):
        yield from _jan(root)
    for root in _folders(*_application_data(environment, home, "nomic.ai/GPT4All")):
        yield from (LocalModel(file.stem, file, "GPT4All") for file in _weights(root))
    for root in _folders(
        environment.get("HF_HUB_CACHE"),
        environment.get("HF_HOME") and Path(environment["HF_HOME"]) / "hub",
        environment.get("XDG_CACHE_HOME") and Path(environment["XDG_CACHE_HOME"]) / "huggingface/hub",
        home / ".cache/huggingface/hub",
        environment.get("LLAMA_CACHE"),
    ):
        yield from _hub_cache(root)
    for root in _folders(
        environment.get("LLAMA_CACHE"),
        environment.get("XDG_CACHE_HOME") and Path(environment["XDG_CACHE_HOME"]) / "llama.cpp",
        home / ".cache/llama.cpp",
        home / "Library/Caches/llama.cpp",
        environment.get("LOCALAPPDATA") and Path(environment["LOCALAPPDATA"]) / "llama.cpp",
    ):
        yield from (
            LocalModel(file.stem, file, "llama.cpp")
            for file in _weights(root)
            if "snapshots" not in file.parts
        )


def _ollama(root: Path) -> Iterator[LocalModel]:
    manifests = root / "manifests"
    for file in _files(manifests):
        parts = file.relative_to(manifests).parts
        try:
            if len(parts) != 4 or file.stat().st_size > MAX_MANIFEST_BYTES:
                continue
            layers = json.loads(file.read_bytes())["layers"]
            (digest,) = [str(layer["digest"]) for layer in layers if layer["mediaType"] == OLLAMA_WEIGHTS]
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            continue  # not a manifest, or of a model in another format
        if re.fullmatch(r"sha256:[0-9a-f]{64}", digest):
            registry, namespace, model, tag = parts
            whole = f"{registry}/{namespace}/{model}:{tag}"
            name = whole.removeprefix("registry.ollama.ai/").removeprefix("library/")
            yield LocalModel(name, root / "blobs" / digest.replace(":", "-"), "Ollama")


def _jan(root: Path) -> Iterator[LocalModel]:
    models = root / "llamacpp" / "models"
    for file in _files(models):
        if file.name == "model.yml":
            try:
                match = re.search(
                    r"(?m)^model_path:\s*[\"']?(.+?)[\"']?\s*$", file.read_text(errors="replace")
                )
            except OSError:
                continue
            path = root / match[1] if match else file.parent / "model.gguf"
            yield LocalModel(file.parent.relative_to(models).as_posix(), path, "Jan")
    yield from (LocalModel(file.stem, file, "Jan") for file in _weights(root / "models"))


def _hub_cache(root: Path) -> Iterator[LocalModel]:
    for folder in sorted(root.glob("models--*--*")):
        _, owner, repository = folder.name.split("--", 2)
        yield from (
            LocalModel(_hub_name(f"{owner}/{repository}", file), file, "hub cache")
            for file in _weights(folder / "snapshots")
        )


def _hub_name(repository: str, file: Path) -> str:
    return str(HubReference(repository, quant_of(file.name) or file.name))


def _weights(root: Path) -> Iterator[Path]:
    """The model files in a folder; of a model in shards, the first."""
    for file in _files(root):
        shard = SHARD.search(file.name)
        if (
            file.suffix.lower() == ".gguf"
            and not SIDE_FILES.search(file.name)
            and (not shard or int(shard[1]) == 1)
        ):
            yield file


def _files(root: Path) -> Iterator[Path]:
    """All files in a folder that are not hidden, sorted; unreadable ones are skipped."""
    for folder, folders, names in os.walk(root):
        folders.sort()
        yield from (Path(folder) / name for name in sorted(names) if not name.startswith("."))


def _folders(*candidates: str | Path | None) -> list[Path]:
    return [path for folder in candidates if folder and (path := Path(folder).expanduser()).is_dir()]


def _application_data(environment: Mapping[str, str], home: Path, name: str) -> list[Path]:
    """Where programs keep their data, on each system."""
    roots = [home / ".local/share", home / ".config", home / "Library/Application Support"]
    if sys.platform == "win32":
        roots = [Path(environment[key]) for key in ("LOCALAPPDATA", "APPDATA") if environment.get(key)]
    return [root / name for root in roots]
