"""What wakes up, by store, index and plan of the product.

The share of questions, LoCoMo's or our own, whose evidence is all inside the woken tokens, and the tokens that small talk wakes.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.database import new_stores
from benchmarks.own_talk import build
from halo_weave.chat.prompt import PromptBuilder
from halo_weave.chat.recall_plan import hit_limit, relevant_hits
from halo_weave.core.resurrection import PairOrder, RecallHit, plan_recall
from halo_weave.core.tokens import ChunkKey, Role
from halo_weave.core.working_set import LiveChunk, chunk_turn
from halo_weave.engines.base import Embedder, Engine, Vectors
from halo_weave.engines.llama.engine import LlamaEngine
from halo_weave.models import catalogue
from halo_weave.paths import related_words_folder
from halo_weave.search.embedding_worker import reindex
from halo_weave.search.llama_embedder import open_embedder
from halo_weave.search.memory_search import MemorySearch
from halo_weave.search.ranking import Weights
from halo_weave.search.related_words import ensure_related_words
from halo_weave.settings import Settings
from halo_weave.store.sql_store import SqlStore

BUDGETS = (512, 1024, 2048)
CATEGORIES = {1: "multi-hop", 2: "temporal", 3: "open-domain", 4: "single-hop", 11: "list", 12: "update"}
PACE = timedelta(seconds=30)  # between turns, of which LoCoMo tells only when the first was said
EVIDENCE = re.compile(r"D:?(\d+):(\d+)")
DEFAULTS = Settings()


@dataclass(frozen=True, slots=True)
class Way:
    """A way to search and to plan. `None` weights: nothing is searched, the last tokens stay."""

    weights: Weights | None
    user_weight: float = 1.0
    pairs: PairOrder = "off"
    mmr_lambda: float | None = None
    floor: float = 0.0


DEFAULT = Way(Weights(), DEFAULTS.user_weight, DEFAULTS.resurrect_pairs, floor=DEFAULTS.relevance_floor)
PLAIN = Weights(akin=0, speaker=0, time=0, leads=0, word_reach=(), context=())
WAYS = {
    "default": DEFAULT,
    "sliding": Way(None),
    "dense": Way(replace(PLAIN, words=0)),
    "words": Way(replace(PLAIN, meaning=0)),
}
ABLATIONS = {
    "words with neighbours": Way(replace(PLAIN, meaning=0, word_reach=Weights().word_reach)),
    "dense with context": Way(replace(PLAIN, words=0, context=Weights().context)),
    "without words": replace(DEFAULT, weights=replace(Weights(), words=0)),
    "without meaning": replace(DEFAULT, weights=replace(Weights(), meaning=0)),
    "without neighbours' words": replace(DEFAULT, weights=replace(Weights(), word_reach=())),
    "without neighbours' meaning": replace(DEFAULT, weights=replace(Weights(), context=())),
    "without asking": replace(DEFAULT, weights=replace(Weights(), asking=0)),
    "without akin words": replace(DEFAULT, weights=replace(Weights(), akin=0)),
    "without leads": replace(DEFAULT, weights=replace(Weights(), leads=0)),
    "without speaker": replace(DEFAULT, weights=replace(Weights(), speaker=0)),
    "without time": replace(DEFAULT, weights=replace(Weights(), time=0)),
    "without floor": replace(DEFAULT, floor=0.0),
    "floor 4": replace(DEFAULT, floor=4.0),
    "floor 5": replace(DEFAULT, floor=5.0),
    "user weight 1": replace(DEFAULT, user_weight=1.0),
    "pairs with": replace(DEFAULT, pairs="with"),
    "pairs off": replace(DEFAULT, pairs="off"),
    "mmr 0.9": replace(DEFAULT, mmr_lambda=0.9),
    "mmr 0.7": replace(DEFAULT, mmr_lambda=0.7),
}

# Messages that speak of nothing in any of the conversations: for them, nothing should wake up.
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
class Question:
    text: str
    category: int
    evidence: tuple[int, ...]  # turn ids
    words: Mapping[int, str]  # of a turn, if only the part with these words is needed


@dataclass(frozen=True, slots=True)
class Conversation:
    name: str
    window: str
    questions: list[Question]
    ended: datetime
    turns: dict[int, list[ChunkKey]]
    texts: dict[ChunkKey, str]

    def needed(self, question: Question) -> Iterator[list[ChunkKey]]:
        """The chunks of each piece of evidence."""
        for turn in question.evidence:
            words = question.words.get(turn, "")
            yield [key for key in self.turns[turn] if words in self.texts[key]] or self.turns[turn]


class Remembering:
    """Gives the same vector for the same text again without computing, if wished also in later runs.

    Without a file only questions are remembered: what is embedded is timed, and the first way to ask.
    """

    def __init__(self, embedder: Embedder, file: Path | None = None) -> None:
        self.inner, self._kept, self.known = embedder, file, dict[str, Vectors]()
        self.name, self.dimension, self.file = embedder.name, embedder.dimension, embedder.file
        if file and file.is_file():
            with np.load(file) as stored:
                self.known = dict(zip(stored["texts"].tolist(), stored["vectors"], strict=True))

    def embed(self, texts: Sequence[str], *, query: bool = False) -> Vectors:
        if not query and not self._kept:
            return self.inner.embed(texts)
        keys = [f"{query}{text}" for text in texts]
        unknown = [text for key, text in zip(keys, texts, strict=True) if key not in self.known]
        if unknown:
            found = self.inner.embed(unknown, query=query)
            self.known.update(zip((f"{query}{text}" for text in unknown), found, strict=True))
        return np.stack([self.known[key] for key in keys])

    def vocabulary(self) -> Sequence[str]:
        return self.inner.vocabulary()

    def save(self) -> None:
        if self._kept:
            np.savez(
                self._kept, texts=np.array(list(self.known)), vectors=np.stack(list(self.known.values()))
            )

    def close(self) -> None:
        pass


def said_turns(file: dict[str, Any], captions: bool) -> Iterator[tuple[str, str, str, datetime]]:
    """(dia_id, speaker, text, when). The caption of a shared image was not said; it can be added."""
    for session in file["sessions"]:
        begun = datetime.strptime(session["date_time"], "%I:%M %p on %d %B, %Y").replace(tzinfo=UTC)
        for i, turn in enumerate(session["turns"]):
            caption = turn.get("blip_caption") if captions else None
            text = f"{turn['text']} [image: {caption}]" if caption else turn["text"]
            yield turn["dia_id"], turn["speaker"], text.strip(), begun + i * PACE


def ingest(path: Path, store: SqlStore, engine: Engine, captions: bool) -> Conversation:
    """The first speaker is the user and the second the assistant; an answer is the turn right after a question."""
    file = json.loads(path.read_text(encoding="utf-8"))
    user, other = file["speakers"]
    turns: dict[int, list[ChunkKey]] = {}
    texts: dict[ChunkKey, str] = {}
    ids: dict[str, int] = {}
    asked: int | None = None
    window = None
    when = datetime.now(UTC)
    for name, speaker, text, when in said_turns(file, captions):
        if window is None:
            window = store.create_window(path.stem, now=when, user_name=user, ai_name=other).id
        tokens = engine.tokenize(text)
        if not len(tokens):
            continue
        reserved = store.reserve(len(tokens))
        role = Role.USER if speaker == user else Role.ASSISTANT
        turn = reserved.user_turn if role is Role.USER else reserved.assistant_turn
        answers = asked if role is Role.ASSISTANT else None
        chunks = chunk_turn(tokens, turn, role, reserved.start, answers)
        live = [LiveChunk(chunk, np.full(len(chunk), 10_000, np.float32)) for chunk in chunks]
        store.append(window, live, tokenizer=engine.info.tokenizer, now=when, asleep=True)
        asked = turn if role is Role.USER else None
        ids[name] = turn
        turns[turn] = [chunk.key for chunk in chunks]
        texts |= {chunk.key: chunk.text for chunk in chunks}
    assert window is not None
    return Conversation(path.stem, window, list(questions(file, ids)), when + timedelta(days=1), turns, texts)


# Answers that know nothing, to questions that were asked before.
UNANSWERED = (
    "I'm not sure.",
    "I don't know. Could you tell me?",
    "Sorry, I don't remember that.",
    "I don't have any information about that.",
    "You haven't told me about it yet.",
    "I have no idea, sorry.",
)


def echo(conversation: Conversation, store: SqlStore, engine: Engine) -> Conversation:
    """Every question is asked once and not answered, the day after the conversation."""
    when = conversation.ended
    for i, question in enumerate(conversation.questions):
        texts = (question.text, UNANSWERED[i % len(UNANSWERED)])
        tokens = [engine.tokenize(text) for text in texts]
        ids = store.reserve(sum(map(len, tokens)))
        asked = chunk_turn(tokens[0], ids.user_turn, Role.USER, ids.start)
        start = ids.start + len(tokens[0])
        told = chunk_turn(tokens[1], ids.assistant_turn, Role.ASSISTANT, start, ids.user_turn)
        for chunks in (asked, told):
            live = [LiveChunk(chunk, np.full(len(chunk), 10_000, np.float32)) for chunk in chunks]
            when += PACE
            store.append(conversation.window, live, tokenizer=engine.info.tokenizer, now=when, asleep=True)
    return replace(conversation, ended=when + timedelta(days=1))


def questions(file: dict[str, Any], ids: dict[str, int]) -> Iterator[Question]:
    """Those of categories 1 to 4 whose evidence exists. An entry of the evidence may hold several ids."""
    for question in file["qa"]:
        found = [f"D{a}:{b}" for entry in question["evidence"] for a, b in EVIDENCE.findall(entry)]
        evidence = tuple(dict.fromkeys(ids[name] for name in found if name in ids))
        if question["category"] in CATEGORIES and evidence:
            words = {ids[name]: text for name, text in question.get("words", {}).items()}
            yield Question(question["question"], question["category"], evidence, words)


def recalled(
    way: Way, question: str, conversation: Conversation, store: SqlStore, recall: MemorySearch
) -> tuple[list[RecallHit], dict[Any, Any]]:
    if way.weights is None:
        keys = [key for keys in conversation.turns.values() for key in keys]
        hits = [RecallHit(key, float(i)) for i, key in enumerate(keys)]
    else:
        recall.weights = way.weights
        found = recall.search(
            question,
            limit=hit_limit(max(BUDGETS)),
            now=conversation.ended,
            user_weight=way.user_weight,
            mmr_lambda=way.mmr_lambda,
        )
        hits = relevant_hits(found, question, way.floor)
    return hits, store.recall_candidates(conversation.window, [hit.key for hit in hits])


def measure(
    folder: Path,
    ways: dict[str, Way],
    engine: Engine,
    embedder: Remembering,
    captions: bool,
    new_store: Callable[[Path], SqlStore],
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, list[int]], list[dict[str, Any]], dict[str, Any]]:
    """For each way, what each question got and what each small message woke.

    Also what each question got after it had been asked in vain; and how long things took.
    """
    frames = PromptBuilder(engine).frame_tokens()
    rows: dict[str, list[dict[str, Any]]] = {name: [] for name in ways}
    woken: dict[str, list[int]] = {name: [] for name in ways}
    echoes: list[dict[str, Any]] = []
    ingest_seconds = embed_seconds = 0.0
    chunks = 0
    times: list[float] = []
    for path in sorted(folder.glob("*.json")):
        with tempfile.TemporaryDirectory() as work, new_store(Path(work)) as store:
            start = time.perf_counter()
            conversation = ingest(path, store, engine, captions)
            ingest_seconds += time.perf_counter() - start
            start = time.perf_counter()
            generation = reindex(store, embedder, now=lambda: datetime.now(UTC))
            embed_seconds += time.perf_counter() - start
            chunks += generation.vectors
            recall = MemorySearch(store, lambda: embedder, akin=related_words_folder())
            recall.settle()
            recall.search("warm up", now=conversation.ended)
            for name, way in ways.items():
                spent = times if name == "default" else []
                rows[name] += [
                    asked(way, question, conversation, store, recall, frames, spent)
                    for question in conversation.questions
                ]
                for message in SMALL_TALK:
                    hits, sleepers = recalled(way, message, conversation, store, recall)
                    plan = plan_recall(hits, sleepers, BUDGETS[0], frame_tokens=frames, pairs=way.pairs)
                    woken[name].append(plan.cost)
            later = echo(conversation, store, engine)
            recall.embed_soon()
            recall.settle()
            echoes += [
                asked(ways["default"], question, later, store, recall, frames, [])
                for question in later.questions
            ]
            recall.close()
        print(f"{path.stem}: {len(conversation.questions)} questions", file=sys.stderr)
    cost = {
        "chunks": chunks,
        "ingest_seconds": round(ingest_seconds, 2),
        "embed_seconds": round(embed_seconds, 2),
        "embed_chunks_per_second": round(chunks / embed_seconds, 1),
        "query_p50_ms": round(1e3 * float(np.percentile(times, 50)), 2),
        "query_p95_ms": round(1e3 * float(np.percentile(times, 95)), 2),
    }
    return rows, woken, echoes, cost


def asked(
    way: Way,
    question: Question,
    conversation: Conversation,
    store: SqlStore,
    recall: MemorySearch,
    frames: Mapping[Role, int],
    times: list[float],
) -> dict[str, Any]:
    """The share of a question's evidence that wakes up at each budget, and the tokens that wake up in all."""
    start = time.perf_counter()
    hits, sleepers = recalled(way, question.text, conversation, store, recall)
    plans = [plan_recall(hits, sleepers, budget, frame_tokens=frames, pairs=way.pairs) for budget in BUDGETS]
    times.append(time.perf_counter() - start)
    found, woken = {}, {}
    for plan in plans:
        awake = set(plan.keys)
        there = [awake.issuperset(keys) for keys in conversation.needed(question)]
        found[plan.room] = sum(there) / len(there)
        woken[plan.room] = plan.cost
    return {
        "conversation": conversation.name,
        "category": question.category,
        "found": found,
        "woken": woken,
    }


def share(values: list[float]) -> float:
    return round(sum(values) / len(values), 4) if values else 0.0


def summed(rows: list[dict[str, Any]]) -> dict[str, Any]:
    def table(some: list[dict[str, Any]], strict: bool) -> dict[str, float]:
        return {
            str(budget): share(
                [float(f == 1) if strict else f for row in some for f in [row["found"][budget]]]
            )
            for budget in BUDGETS
        }

    def grouped(key: str) -> dict[str, Any]:
        values = sorted({row[key] for row in rows})
        return {
            str(CATEGORIES.get(value, value)): {
                "questions": len(some),
                "strict": table(some, True),
                "fractional": table(some, False),
            }
            for value in values
            for some in [[row for row in rows if row[key] == value]]
        }

    return {
        "strict": table(rows, True),
        "fractional": table(rows, False),
        "woken_tokens": {
            str(budget): round(sum(row["woken"][budget] for row in rows) / len(rows), 1) for budget in BUDGETS
        },
        "by_category": grouped("category"),
        "by_conversation": grouped("conversation"),
    }


def small_talk(woken: list[int]) -> dict[str, float]:
    """Tokens that a small message wakes at the smallest budget, and the share of messages that wake nothing."""
    return {
        "tokens": round(sum(woken) / len(woken), 1),
        "nothing": share([float(cost == 0) for cost in woken]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    root = Path(__file__).parents[1]
    parser.add_argument("--data", type=Path, default=root.parent / "shared" / "data" / "locomo")
    parser.add_argument("--own", action="store_true", help="our own made-up year of talk instead of LoCoMo")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--ablations", action="store_true", help="also leave out one part after the other")
    parser.add_argument(
        "--captions", action="store_true", help="add the captions of shared images to the turns"
    )
    parser.add_argument("--store", choices=("sqlite", "postgres"), default="sqlite")
    parser.add_argument(
        "--vectors", type=Path, help="keep vectors in this .npz file: later runs embed nothing twice"
    )
    args = parser.parse_args()
    if args.own:
        with tempfile.TemporaryDirectory() as folder:
            args.data = Path(folder)
            (args.data / "own.json").write_text(json.dumps(build()), encoding="utf-8")
            _run(args)
        return
    if not list(args.data.glob("*.json")):
        print(
            f"Skipped: there are no conversations in {args.data}. Give their folder with --data.",
            file=sys.stderr,
        )
        if args.json:
            print(json.dumps({"skipped": f"no conversations in {args.data}"}))
        return
    _run(args)


def _run(args: argparse.Namespace) -> None:
    ways = {**WAYS, **(ABLATIONS if args.ablations else {})}
    catalogue.ensure(catalogue.DEFAULT_EMBEDDER)
    with (
        LlamaEngine(catalogue.ensure(catalogue.SMOLLM2_135M)) as engine,
        open_embedder() as embedder,
        new_stores(args.store) as new_store,
    ):
        remembering = Remembering(embedder, args.vectors)
        ensure_related_words(related_words_folder(), embedder)
        rows, woken, echoes, cost = measure(args.data, ways, engine, remembering, args.captions, new_store)
        remembering.save()
    result = {name: {**summed(found), "small_talk": small_talk(woken[name])} for name, found in rows.items()}
    result["default"]["echo"] = summed(echoes)
    if args.json:
        told = {"questions": len(rows["default"]), "echo": summed(echoes), "cost": cost}
        print(json.dumps({**result, **told}))
        return
    print(f"{'':28}" + "".join(f"{budget:>16}" for budget in BUDGETS) + f"{'small talk':>16}")
    print(f"{'':28}" + f"{'strict, part %':>16}" * len(BUDGETS) + f"{'tokens, none %':>16}")
    for name, one in result.items():
        cells = [f"{100 * one['strict'][str(b)]:.1f}, {100 * one['fractional'][str(b)]:.1f}" for b in BUDGETS]
        small = one["small_talk"]
        cells.append(f"{small['tokens']:.0f}, {100 * small['nothing']:.0f}")
        print(f"{name:28}" + "".join(f"{cell:>16}" for cell in cells))
    asked_before = result["default"]["echo"]["strict"]
    print(
        f"{'default, asked in vain before':28}"
        + "".join(f"{100 * asked_before[str(b)]:>15.1f}" for b in BUDGETS)
    )
    woken_tokens = result["default"]["woken_tokens"]
    print(f"{'default, tokens woken':28}" + "".join(f"{woken_tokens[str(b)]:>16}" for b in BUDGETS))
    for key, value in cost.items():
        print(f"{key:28}{value:>16}")


if __name__ == "__main__":
    main()
