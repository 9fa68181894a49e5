"""What is resurrected for messages, by store, search and plan of the product, on sets of conversations.

The share of evidence that comes back, the tokens that it takes, and the tokens that messages resurrect which need nothing.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from benchmarks.database import new_stores
from benchmarks.own_talk import build
from benchmarks.recall_data import (
    CATEGORIES,
    UNANSWERABLE,
    KeptVectors,
    Query,
    Talk,
    Written,
    read_talk,
)
from benchmarks.recall_fit import Examples, fit, gather, judge
from halo_weave.chat.prompt import PromptBuilder
from halo_weave.chat.recall_plan import search_and_plan_recall
from halo_weave.core.resurrection import RecallHit, plan_recall
from halo_weave.core.tokens import Role
from halo_weave.engines.base import Engine
from halo_weave.engines.llama.engine import LlamaEngine
from halo_weave.models import catalogue
from halo_weave.search.embedding_worker import reindex
from halo_weave.search.llama_embedder import open_embedder
from halo_weave.search.memory_search import MemorySearch
from halo_weave.search.ranking import WITH_VECTORS, RecallModel
from halo_weave.settings import Settings
from halo_weave.store.sql_store import SqlStore

BUDGETS = (512, 1024, 2048)
SETS = ("locomo", "realtalk", "beam", "realmem")
BY_TURN = ("beam", "realmem")  # sets of long turns: a piece of evidence is there if one chunk of its turn is
SAMPLED = 3  # of the messages in the flow that are no queries, one in so many is asked
DEPTH = 10  # turns of which recall is measured

# Messages that speak of nothing in any of the conversations: for them, nothing should be resurrected.
SMALL_TALK = tuple(
    """thanks | Thank you! | ok | Okay, go on. | hello | Hi there! | Good morning. | yes | no | sure | lol |
haha that's funny | Tell me more. | Continue. | What do you think? | I see. | Great! | hmm |
Can you explain that again? | That makes sense. | Interesting. | Why? | How so? | Really? | wow |
Please go on. | nice | Sounds good to me. | I don't understand. | Could you repeat that? | bye |
good night | see you tomorrow | Are you there? | What? | I agree. | Let's continue. | Never mind. |
yes please | no thanks | Write a haiku about the ocean. | What is the capital of Mongolia? |
Translate 'cheese' into Finnish. | How do I reverse a list in Python? | Why is the sky blue? |
Explain how a transistor works. | What is 17 times 23? | Give me a recipe for rye bread. |
Who wrote War and Peace? | Summarise the theory of plate tectonics.""".replace("\n", " ").split(" | ")
)


@dataclass(frozen=True, slots=True)
class Way:
    """A way to search and to plan. `fill`: without the decision what is worth its tokens, as far as the room goes."""

    model: RecallModel = WITH_VECTORS
    settings: Settings = field(default_factory=Settings)
    fill: bool = False


def without(*names: str) -> Way:
    """Ranked without some features. No decision: their weights were fitted together with the intercept."""
    ranking = replace(WITH_VECTORS.ranking, **dict.fromkeys(names, 0.0))
    return Way(replace(WITH_VECTORS, ranking=ranking), fill=True)


WAYS = {
    "default": Way(),
    "all that fits": Way(fill=True),
    "dense": without("with_neighbours", "term_coverage", "bm25", "speaker", "time", "uninformative"),
    "words": without("best_passage", "with_neighbours", "speaker", "time", "uninformative"),
}
ABLATIONS = {
    **{
        f"without {name}": without(name)
        for name in (
            "best_passage",
            "with_neighbours",
            "term_coverage",
            "bm25",
            "speaker",
            "time",
            "uninformative",
        )
    },
    "user weight 1": Way(settings=Settings(user_weight=1.0), fill=True),
    "pairs off": Way(settings=Settings(resurrect_pairs="off")),
    "least probability 0.1": Way(settings=Settings(min_probability=0.1)),
    "least probability 0.2": Way(settings=Settings(min_probability=0.2)),
}


@dataclass(slots=True)
class Asked:
    """What came of one message, by budget."""

    category: int
    kind: str  # query, needless, unanswerable
    strict: dict[int, float] = field(default_factory=dict)  # all evidence, chunk by chunk
    turns: dict[int, float] = field(default_factory=dict)  # all evidence, turn by turn
    part: dict[int, float] = field(default_factory=dict)  # the share of evidence turns
    tokens: dict[int, int] = field(default_factory=dict)
    useful: dict[int, int] = field(default_factory=dict)  # tokens that belong to evidence or its questions
    first_turns: float = 0.0  # share of the evidence among the first turns
    small: bool = False


def ask(
    query: Query,
    kind: str,
    way: Way,
    written: Written,
    store: SqlStore,
    recall: MemorySearch,
    frames: Mapping[Role, int],
    now: datetime,
    times: list[float],
) -> Asked:
    found: dict[tuple[str, int], Sequence[RecallHit]] = {}

    def search(text: str, *, limit: int, **more: Any) -> Sequence[RecallHit]:
        if (text, limit) not in found:
            found[text, limit] = recall.search(text, limit=limit, **more)
        return found[text, limit]

    recall.model = way.model
    asked = Asked(query.category, kind)
    for budget in BUDGETS:
        start = time.perf_counter()
        if way.fill:
            hits = search(query.text, limit=200, now=now, user_weight=way.settings.user_weight)
            candidates = store.recall_candidates(written.window, [hit.key for hit in hits])
            plan = plan_recall(hits, candidates, budget, frame_tokens=frames, pairs="off")
        else:
            plan = search_and_plan_recall(
                query.text,
                budget,
                way.settings,
                store=store,
                search=search,
                now=now,
                window_id=written.window,
                frame_tokens=frames,
            ).plan
        times.append(time.perf_counter() - start)
        awake = set(plan.keys)
        pieces = list(written.needed(query))
        right = {name for name, _ in pieces} | {written.questions.get(name, "") for name, _ in pieces}
        asked.tokens[budget] = plan.cost
        asked.useful[budget] = sum(one.cost for one in plan.chunks if written.names[one.key.turn_id] in right)
        if pieces:
            there = [any(key in awake for key in keys) for _, keys in pieces]
            asked.strict[budget] = float(all(awake.issuperset(keys) for _, keys in pieces))
            asked.turns[budget], asked.part[budget] = float(all(there)), sum(there) / len(there)
    if query.evidence:
        hits = search(query.text, limit=200, now=now, user_weight=way.settings.user_weight)
        best = list(dict.fromkeys(written.names[hit.key.turn_id] for hit in hits))[:DEPTH]
        asked.first_turns = sum(name in best for name in query.evidence) / len(query.evidence)
    return asked


def measure(
    path: Path,
    ways: Mapping[str, Way],
    engine: Engine,
    embedder: KeptVectors,
    captions: bool,
    new_store: Callable[[Path], SqlStore],
    times: list[float],
) -> dict[str, list[Asked]]:
    """For each way, what came of each message of one talk."""
    talk, rows = read_talk(path, captions), defaultdict[str, list[Asked]](list)
    frames = PromptBuilder(engine).frame_tokens()
    with tempfile.TemporaryDirectory() as work, new_store(Path(work)) as store:
        written, recall = Written(), None

        def ask_all(queries: Sequence[tuple[Query, str]], now: datetime) -> Iterator[Asked]:
            assert recall is not None
            for name, way in ways.items():
                spent = times if name == "default" else []
                for query, kind in queries:
                    one = ask(query, kind, way, written, store, recall, frames, now, spent)
                    rows[name].append(one)
                    yield one

        for number, turns in enumerate(talk.sessions):
            if talk.flows and recall is not None:
                list(ask_all(list(_in_flow(talk, number)), turns[0].said))
            written.add(talk, turns, store, engine)
            if recall is None and talk.flows:
                reindex(store, embedder, now=lambda: datetime.now(UTC))
                recall = MemorySearch(store, lambda: embedder)
            if recall is not None:
                recall.embed_soon()
                recall.settle()
        if recall is None:
            reindex(store, embedder, now=lambda: datetime.now(UTC))
            recall = MemorySearch(store, lambda: embedder)
            recall.settle()
        now = written.last + timedelta(days=1)
        kinds = [(one, "unanswerable" if one.category in UNANSWERABLE else "query") for one in talk.asked]
        list(ask_all(kinds, now))
        for one in ask_all([(Query(text, 0, (), {}), "needless") for text in SMALL_TALK], now):
            one.small = True
        recall.close()
    return rows


def _in_flow(talk: Talk, session: int) -> Iterator[tuple[Query, str]]:
    for i, query in enumerate(talk.in_flow[session]):
        if query.evidence:
            yield query, "query"
        elif query.category or i % SAMPLED == 0:
            yield query, "needless"


def mean(values: Sequence[float], digits: int = 4) -> float:
    return round(sum(values) / len(values), digits) if values else 0.0


def summed(rows: Sequence[Asked]) -> dict[str, Any]:
    queries = [row for row in rows if row.kind == "query" and row.strict]

    def evidence(some: Sequence[Asked]) -> dict[str, Any]:
        return {
            "questions": len(some),
            "strict": {str(b): mean([row.strict[b] for row in some]) for b in BUDGETS},
            "strict_turns": {str(b): mean([row.turns[b] for row in some]) for b in BUDGETS},
            "fractional_turns": {str(b): mean([row.part[b] for row in some]) for b in BUDGETS},
            "recall_at_10": mean([row.first_turns for row in some]),
        }

    def tokens(some: Sequence[Asked]) -> dict[str, float]:
        return {str(b): mean([row.tokens[b] for row in some], 1) for b in BUDGETS}

    categories = {CATEGORIES.get(row.category, str(row.category)) for row in queries}
    return {
        **evidence(queries),
        "tokens": tokens(queries),
        "precision": {
            str(b): mean(
                [sum(row.useful[b] for row in queries) / max(1, sum(row.tokens[b] for row in queries))]
            )
            for b in BUDGETS
        },
        "needless": tokens([row for row in rows if row.kind == "needless" and row.small]),
        "needless_in_flow": tokens([row for row in rows if row.kind == "needless" and not row.small]),
        "unanswerable": tokens([row for row in rows if row.kind == "unanswerable"]),
        "nothing_for_unanswerable": mean(
            [float(row.tokens[BUDGETS[0]] == 0) for row in rows if row.kind == "unanswerable"]
        ),
        "by_category": {
            name: evidence(
                [row for row in queries if CATEGORIES.get(row.category, str(row.category)) == name]
            )
            for name in sorted(categories)
        },
    }


def print_table(name: str, ways: Mapping[str, dict[str, Any]]) -> None:
    strict = "strict_turns" if name in BY_TURN else "strict"
    print(f"\n{name}: {next(iter(ways.values()))['questions']} questions")
    head = ("strict", "part", "R@10", "tokens", "precision", "small talk", "in the flow")
    print(f"{'':26}" + "".join(f"{one:>18}" for one in head))

    def shares(one: Mapping[str, float]) -> str:
        return " ".join(f"{100 * one[str(b)]:.1f}" for b in BUDGETS)

    def counts(one: Mapping[str, float]) -> str:
        return " ".join(f"{one[str(b)]:.0f}" for b in BUDGETS)

    for way, one in ways.items():
        cells = [shares(one[strict]), shares(one["fractional_turns"]), f"{100 * one['recall_at_10']:.1f}"]
        cells += [counts(one["tokens"]), shares(one["precision"])]
        cells += [counts(one["needless"]), counts(one["needless_in_flow"])]
        print(f"{way:26}" + "".join(f"{cell:>18}" for cell in cells))


def run(
    folder: Path, args: argparse.Namespace, engine: Engine, embedder: Any, new_store: Any
) -> dict[str, Any]:
    ways = WAYS | (ABLATIONS if args.ablations else {})
    rows, times = defaultdict[str, list[Asked]](list), list[float]()
    for path in sorted(folder.glob("*.json"))[: args.talks]:
        kept = KeptVectors(embedder, args.vectors and args.vectors / f"{folder.name}_{path.stem}.npz")
        found = measure(path, ways, engine, kept, args.captions, new_store, times)
        kept.save()
        for name, some in found.items():
            rows[name] += some
        print(f"{folder.name} {path.stem}", file=sys.stderr)
    times.sort()
    result: dict[str, Any] = {name: summed(some) for name, some in rows.items()}
    if times:
        result["query_p50_ms"] = round(1e3 * times[len(times) // 2], 1)
    return result


def print_fit(sets: dict[str, Examples]) -> None:
    """The model fitted on all sets, and how well each set is decided by a model fitted on the others."""
    print(fit(list(sets.values())))
    print("without vectors:", fit(list(sets.values()), vectors=False))
    for name, examples in sets.items():
        others = fit([one for other, one in sets.items() if other != name])
        print(name, judge(others, examples, Settings().min_probability))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    root = Path(__file__).parents[1].parent / "shared" / "data"
    parser.add_argument("--data", type=Path, default=root / "locomo", help="a folder of conversations")
    parser.add_argument("--all", action="store_true", help=f"{', '.join(SETS)} beside the folder of --data")
    parser.add_argument("--own", action="store_true", help="our own made-up year of talk instead")
    parser.add_argument("--json", action="store_true")
    parser.add_argument(
        "--fit",
        action="store_true",
        help="fit the weights on these sets and the scripted days, and print them",
    )
    parser.add_argument("--ablations", action="store_true", help="also leave out one feature after the other")
    parser.add_argument(
        "--captions", action="store_true", help="add the captions of shared images to the turns"
    )
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument("--talks", type=int, help="only the first so many conversations of each set")
    parser.add_argument(
        "--vectors", type=Path, help="keep vectors in this folder: later runs embed nothing twice"
    )
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as made:
        folders = [args.data.parent / name for name in SETS] if args.all else [args.data]
        if args.own:
            folders = [Path(made) / "own"]
            folders[0].mkdir()
            (folders[0] / "own.json").write_text(json.dumps(build()), encoding="utf-8")
        missing = [str(folder) for folder in folders if not list(folder.glob("*.json"))]
        if missing:
            print(
                f"Skipped: there are no conversations in {', '.join(missing)}. Use --data.", file=sys.stderr
            )
            if args.json:
                print(json.dumps({"skipped": f"no conversations in {', '.join(missing)}"}))
            return
        if args.vectors:
            args.vectors.mkdir(parents=True, exist_ok=True)
        catalogue.ensure(catalogue.DEFAULT_EMBEDDER)
        with (
            LlamaEngine(catalogue.ensure(catalogue.SMOLLM2_135M)) as engine,
            open_embedder() as embedder,
            new_stores(args.store) as new_store,
        ):
            if args.fit:
                print_fit(gather(folders, engine, embedder, new_store, args.vectors, SMALL_TALK, args.talks))
                return
            found = {folder.name: run(folder, args, engine, embedder, new_store) for folder in folders}
    if args.json:
        print(json.dumps(found if args.all else next(iter(found.values()))))
        return
    for name, ways in found.items():
        print_table(name, {way: one for way, one in ways.items() if isinstance(one, dict)})


if __name__ == "__main__":
    main()
