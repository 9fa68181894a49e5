"""Whether brightness tells what an answer came from, and keeps what will be asked about: on LoCoMo, by every strategy."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from contextlib import closing
from pathlib import Path

from benchmarks import evaluation
from benchmarks.evaluation import CachingEmbedder, Workload, measure_whole, measure_windows
from halo_weave.app import Options, calibrate_engine, open_engine
from halo_weave.lab.conversations import read_dialogues
from halo_weave.search.llama_embedder import open_embedder
from halo_weave.settings import Settings

PARTS = ("windows", "whole")  # attribution and keeping; end to end
DEFAULT = Workload()


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(one) for one in text.split(","))


def _names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, required=True, help="A folder with conversations of LoCoMo.")
    parser.add_argument("--model", default="smollm2-135m", help="A GGUF file or a name of the catalogue.")
    parser.add_argument("--only", choices=PARTS, help="windows: attribution and keeping; whole: end to end.")
    parser.add_argument("--conversations", type=int, default=None, help="At most so many.")
    parser.add_argument("--windows", type=int, default=DEFAULT.windows, help="Of each conversation.")
    parser.add_argument("--questions", type=int, default=DEFAULT.questions, help="Of each window, at most.")
    parser.add_argument("--tokens", type=int, default=DEFAULT.tokens, help="Of each window, about.")
    parser.add_argument("--budgets", type=_numbers, default=DEFAULT.budgets, help="End to end, with commas.")
    parser.add_argument(
        "--strategies", type=_names, default=DEFAULT.strategies, help="End to end, with commas."
    )
    parser.add_argument("--exchanges", type=int, default=None, help="End to end, of each conversation.")
    parser.add_argument("--captions", action="store_true", help="Captions of shared pictures count as said.")
    parser.add_argument(
        "--into", type=Path, help="Keeps what was measured in this file, and goes on from there next time."
    )
    parser.add_argument("--minutes", type=float, help="Begin nothing more after so long; go on with --into.")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    extent = Workload(
        asked.windows, asked.questions, asked.tokens, asked.budgets, asked.strategies, asked.exchanges
    )
    began = time.monotonic()

    def time_left() -> bool:
        return asked.minutes is None or time.monotonic() - began < 60 * asked.minutes

    def say(line: str) -> None:
        print(f"{time.monotonic() - began:5.0f} s  {line}", file=sys.stderr, flush=True)

    talks = read_dialogues(asked.data, asked.conversations, captions=asked.captions)
    with tempfile.TemporaryDirectory() as folder:
        options = Options(Path(folder), model=asked.model, embedder="off", context=8192)
        with closing(open_engine(options)) as engine:
            calibration = calibrate_engine(options, engine)
            records = evaluation.Records(
                asked.into,
                model=engine.info.name,
                heads=[list(pair) for pair in calibration.pairs],
                captions=asked.captions,
                **{name: getattr(extent, name) for name in ("windows", "questions", "tokens", "exchanges")},
            )
            complete = True
            if asked.only != "whole":
                complete = measure_windows(talks, engine, calibration, extent, records, say, time_left)
            if asked.only != "windows" and complete:
                with closing(open_embedder()) as embedder:
                    vectors = CachingEmbedder(embedder)
                    complete = measure_whole(
                        talks, engine, calibration, vectors, extent, records, say, time_left
                    )
            name = engine.info.name
    windows = records.of("window")
    told = {
        "model": name,
        "heads": [list(pair) for pair in calibration.pairs],
        "complete": complete,  # false: --minutes were over before all was measured
        "conversations": [one.name for one in talks],
        "windows": len(windows),
        "strategy": Settings().strategy,
        "attribution": evaluation.attribution(windows),
        "keeping": evaluation.kept_shares(windows),
        "against": evaluation.compare_to_others(windows, Settings().strategy) if windows else {},
        "end_to_end": evaluation.end_to_end(records.of("whole")),
    }
    print(json.dumps(told, indent=None if asked.json else 2))


if __name__ == "__main__":
    main()
