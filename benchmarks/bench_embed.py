"""Chunks embedded per second against sentence-transformers on torch, if it is installed, and how alike the vectors are."""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from halo_weave.engines.llama.model import physical_cores
from halo_weave.models import catalogue
from halo_weave.search.llama_embedder import LlamaEmbedder, default_embedder_file

ROUNDS = 5

# Runs in another process, which may have another Python: torch is never a part of this project.
OTHER = """
import json, sys, time
import numpy as np, torch
from sentence_transformers import SentenceTransformer, models
folder, texts_file, vectors_file, threads = sys.argv[1:]
torch.set_num_threads(int(threads))
word = models.Transformer(folder, max_seq_length=256)
pooling = models.Pooling(word.get_word_embedding_dimension(), pooling_mode="mean")
model = SentenceTransformer(modules=[word, pooling, models.Normalize()], device="cpu")
texts = json.load(open(texts_file))
model.encode(texts[:16], show_progress_bar=False)
print("ready", flush=True)
for line in sys.stdin:
    start = time.perf_counter()
    vectors = model.encode(texts, batch_size=32, show_progress_bar=False)
    took = time.perf_counter() - start
    np.save(vectors_file, vectors)
    print(took, flush=True)
"""


def texts_of(data: Path, count: int) -> list[str]:
    """Turns of real talk if there are any, else sentences of this project's own documents."""
    found: list[str] = []
    for path in sorted(data.glob("*.json")):
        for session in json.loads(path.read_text(encoding="utf-8"))["sessions"]:
            found += [f"{turn['speaker']}: {turn['text']}" for turn in session["turns"]]
    for path in sorted(Path(__file__).parents[1].glob("**/*.md")) if not found else ():
        found += [line for line in path.read_text(encoding="utf-8").split("\n\n") if 40 < len(line) < 400]
    step = max(1, len(found) // count)
    return found[::step][:count]


def other_python() -> str | None:
    """A Python that has sentence-transformers: named by HALO_WEAVE_TORCH_PYTHON, or this one."""
    named = os.environ.get("HALO_WEAVE_TORCH_PYTHON")
    if named:
        return named
    return sys.executable if importlib.util.find_spec("sentence_transformers") else None


def with_tokenizer(folder: Path) -> Path:
    """The published folder has no tokenizer.json here; the vocabulary is enough for a BERT."""
    work = Path(tempfile.mkdtemp(prefix="halo-weave-minilm-"))
    for file in folder.iterdir():
        if file.is_file() and file.suffix != ".gguf":
            (work / file.name).symlink_to(file)
    if not (work / "tokenizer_config.json").exists():
        about = {"tokenizer_class": "BertTokenizer", "do_lower_case": True, "model_max_length": 512}
        (work / "tokenizer_config.json").write_text(json.dumps(about))
    return work


class Other:
    """sentence-transformers, ready to embed the texts again and again."""

    def __init__(self, python: str, folder: Path, texts: list[str], threads: int) -> None:
        self.work = with_tokenizer(folder)
        (self.work / "texts.json").write_text(json.dumps(texts))
        self.vectors_file = self.work / "vectors.npy"
        command = [python, "-c", OTHER, str(self.work), str(self.work / "texts.json"), str(self.vectors_file)]
        self.process = subprocess.Popen(
            [*command, str(threads)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
        )
        self.line("ready")

    def line(self, wanted: str = "") -> str:
        assert self.process.stdout
        line = self.process.stdout.readline().strip()
        if not line or (wanted and line != wanted):
            raise SystemExit(f"sentence-transformers did not start (it said {line!r}).")
        return line

    def seconds(self) -> float:
        assert self.process.stdin
        self.process.stdin.write("go\n")
        self.process.stdin.flush()
        return float(self.line())

    def close(self) -> None:
        assert self.process.stdin
        self.process.stdin.close()
        self.process.wait()


def measure(texts: list[str]) -> dict[str, Any]:
    folder = catalogue.ensure(catalogue.DEFAULT_EMBEDDER).parent
    embedder, llama = (
        LlamaEmbedder(default_embedder_file()),
        LlamaEmbedder(default_embedder_file(), compute="llama", threads=physical_cores()),
    )
    python = other_python()
    other = Other(python, folder, texts, physical_cores()) if python else None
    embedder.embed(texts[:64])
    mine, by_llama, theirs, questions = [], [], [], []
    vectors = np.zeros((0, 0), np.float32)
    for i in range(ROUNDS):
        # Interleaved, so that all meet the same machine.
        start = time.perf_counter()
        vectors = embedder.embed(texts)
        mine.append(time.perf_counter() - start)
        if other:
            theirs.append(other.seconds())
        start = time.perf_counter()
        llama.embed(texts)
        by_llama.append(time.perf_counter() - start)
        for text in texts[i::20]:
            start = time.perf_counter()
            embedder.embed([text], query=True)
            questions.append(time.perf_counter() - start)
        print(f"round {i + 1} of {ROUNDS}", file=sys.stderr)
    count = len(texts)
    result: dict[str, Any] = {
        "texts": count,
        "threads": physical_cores(),
        "chunks_per_second": round(count / float(np.median(mine)), 1),
        "llama_chunks_per_second": round(count / float(np.median(by_llama)), 1),
        "question_p50_ms": round(1e3 * float(np.percentile(questions, 50)), 2),
        "question_p95_ms": round(1e3 * float(np.percentile(questions, 95)), 2),
    }
    if other:
        likeness = (vectors * np.load(other.vectors_file)).sum(axis=1)
        result |= {
            "torch_chunks_per_second": round(count / float(np.median(theirs)), 1),
            "ratio": round(float(np.median(np.array(theirs) / np.array(mine))), 3),
            "cosine_min": round(float(likeness.min()), 6),
            "cosine_mean": round(float(likeness.mean()), 6),
        }
        other.close()
    else:
        result["skipped"] = (
            "sentence-transformers is not installed; HALO_WEAVE_TORCH_PYTHON may name a Python that has it"
        )
    embedder.close()
    llama.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    root = Path(__file__).parents[1]
    parser.add_argument("--data", type=Path, default=root.parent / "shared" / "data" / "locomo")
    parser.add_argument("--texts", type=int, default=500)
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    result = measure(texts_of(asked.data, asked.texts))
    if asked.json:
        print(json.dumps(result))
        return
    for name, value in result.items():
        print(f"{name:28}{value:>16}" if not isinstance(value, str) else f"{name}: {value}")


if __name__ == "__main__":
    main()
