"""The page in a real Chromium: both views of 10,000 live tokens, a conversation of 5,000 turns, pointing at words, streaming, 20,000 rows of graveyard."""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import sys
import tempfile
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
from playwright.sync_api import Page, sync_playwright

from halo_weave.app import Options, build_weave
from halo_weave.chat import Weave
from halo_weave.core.brightness import Floats
from halo_weave.core.tokens import Chunk, ChunkKey, Role
from halo_weave.core.working_set import LiveChunk
from halo_weave.server.http_server import serve_in_thread
from halo_weave.server.service import Service
from tests.fakes.scripted_engine import ScriptedEngine, Visible

LIVE_TOKENS, ASLEEP_CHUNKS, CHUNK_TOKENS = 10_000, 20_000, 80
CONVERSATION_TURNS = 5_000
STREAMED, PER_SECOND, ROUNDS = 256, 60, 15
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-sync"]
TEXT = (
    "the keeper of the lighthouse wrote down every ship that passed in a green book and when fog came he rang the bell "
    "until his arms were tired and nobody on the island knew who had built the tower"
)
WORDS = TEXT.split()

# Another light on all live tokens, as when the pointer goes to another answer.
RECOLOUR = """async (rounds) => {
  const { store } = app, view = app.views.centre.active, times = [], frames = [];
  const shown = store.attributions.get(store.newestReply);
  for (let round = 0; round < rounds; round++) {
    const grounds = new Map(store.live.chunks.map(({ key, pieces }) => [key, Float32Array.from(pieces, Math.random)]));
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 30)));
    const began = performance.now();
    store.setAttribution(store.newestReply, { grounds, most: 1 });
    view.flush();
    void view.place.scrollHeight; // styles and layout are done when this is known
    times.push(performance.now() - began);
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
    frames.push(performance.now() - began);
  }
  const written = view.last?.written ?? 0;
  store.setAttribution(store.newestReply, shown);
  return { times, frames, written };
}"""

SCROLL = """async () => {
  const place = app.views.centre.active.place, steps = 60, frames = [];
  place.scrollTop = 0;
  await new Promise((done) => setTimeout(done, 200));
  let last = performance.now();
  for (let i = 1; i <= steps; i++) {
    place.scrollTop = (i / steps) * place.scrollHeight;
    await new Promise((done) => requestAnimationFrame(done));
    frames.push(performance.now() - last);
    last = performance.now();
  }
  return frames;
}"""

# From the choice of a window to the frame that shows its last turns.
OPEN = """async ([window, other]) => {
  await app.open(other);
  await new Promise((done) => setTimeout(done, 500));
  const began = performance.now();
  app.open(window);
  const there = () => app.store.current === window && document.querySelector("#conversation .chunk");
  while (!there()) await new Promise((done) => requestAnimationFrame(done));
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - began;
}"""

# Words of the newest answer, one after the other, as the pointer would: until styles and layout are done.
HIGHLIGHT = """async (rounds) => {
  const view = app.views.centre.active, light = app.views.light, times = [];
  await app.attributionOf(app.store.newestReply);
  const answer = [...view.chunks.values()].findLast((one) => one.chunk.turn.turn_id === app.store.newestReply);
  let sources = 0;
  for (let round = 0; round < rounds; round++) {
    const at = Math.floor((round + 0.5) / rounds * answer.chunk.pieces.length);
    await new Promise((done) => requestAnimationFrame(() => setTimeout(done, 30)));
    const began = performance.now();
    light.show({ view: answer, first: at, last: Math.min(at + 2, answer.chunk.pieces.length - 1) });
    void view.place.scrollHeight;
    times.push(performance.now() - began);
    sources += document.querySelectorAll("[data-lit]").length;
  }
  light.clear();
  return { times, sources };
}"""

# The ribbon of the whole window, from its life as the server tells it.
RIBBON = """async (rounds) => {
  const { ribbon } = app.views, began = performance.now();
  await ribbon.load();
  const loaded = performance.now() - began, times = [];
  for (let round = 0; round < rounds; round++) {
    ribbon.draw();
    times.push(ribbon.last);
    await new Promise((done) => requestAnimationFrame(done));
  }
  return { loaded, times, turns: ribbon.timeline.turns.length };
}"""

GRAVEYARD = """async () => {
  app.views.drawer.show("");
  await new Promise((done) => setTimeout(done, 300));
  const began = performance.now();
  [...document.querySelectorAll(".dock-button")].find((one) => one.textContent === "Graveyard").click();
  while (!document.querySelector(".grave")) await new Promise((done) => requestAnimationFrame(done));
  await new Promise((done) => requestAnimationFrame(() => setTimeout(done)));
  return performance.now() - began;
}"""

WATCH = """() => {
  window.longTasks = [];
  new PerformanceObserver((list) => longTasks.push(...list.getEntries().map((one) => one.duration))).observe({ type: "longtask" });
}"""


def fill(weave: Weave) -> str:
    """A window of 10,000 live tokens with 20,000 chunks asleep, written through the store itself."""
    rng = np.random.default_rng(7)
    window = weave.windows.create(
        "Long talk", settings={"max_context_tokens": 0, "resurrection_budget": 0, "max_new_tokens": 2_000}
    ).id

    def turn(
        sizes: list[int], role: Role, turn_id: int, start: int, answers: int | None, asleep: bool
    ) -> int:
        said = []
        for number, size in enumerate(sizes):
            text = " ".join(rng.choice(WORDS, size)) + ". "
            tokens = weave.engine.tokenize(text)
            tokens = tokens.part(0, min(size, len(tokens)))
            chunk = Chunk(ChunkKey(turn_id, number, role), start, tokens, answers)
            brightness = np.minimum(rng.normal(9_000, 600, len(tokens)), 10_000).astype(np.float32)
            said.append(LiveChunk(chunk, brightness))
            start += len(tokens)
        now = datetime.now(UTC)
        weave.runtime.store.append(
            window, said, tokenizer=weave.engine.info.tokenizer, now=now, asleep=asleep
        )
        return start

    def exchange(chunks: int, asleep: bool) -> int:
        ids = weave.runtime.store.reserve((chunks + 1) * CHUNK_TOKENS)
        middle = turn([CHUNK_TOKENS], Role.USER, ids.user_turn, ids.start, None, asleep)
        end = turn([CHUNK_TOKENS] * chunks, Role.ASSISTANT, ids.assistant_turn, middle, ids.user_turn, asleep)
        return end - ids.start

    for _ in range(ASLEEP_CHUNKS // 50):
        exchange(49, asleep=True)
    live = 0
    while live < LIVE_TOKENS:
        live += exchange(3, asleep=False)
    return window


def look(at: Visible) -> Floats:
    """While it answers, at sixteen tokens far above, the most that a word's sources can be."""
    weights = np.full(len(at.ids), 0.001, np.float32)
    if at.text.rsplit("<|turn|>", 1)[-1].startswith("assistant"):
        weights[200:216] = 10.0
    return weights


def talk(weave: Weave) -> str:
    """A window of 5,000 short turns, all asleep but the last."""
    rng = np.random.default_rng(8)
    window = weave.windows.create("Many turns").id
    store, tokenizer = weave.runtime.store, weave.engine.info.tokenizer
    for number in range(CONVERSATION_TURNS // 2):
        ids = store.reserve(200)
        start = ids.start
        for turn_id, role, size, answers in (
            (ids.user_turn, Role.USER, 12, None),
            (ids.assistant_turn, Role.ASSISTANT, 40, ids.user_turn),
        ):
            tokens = weave.engine.tokenize(" ".join(rng.choice(WORDS, size)) + ".")
            chunk = Chunk(ChunkKey(turn_id, 0, role), start, tokens, answers)
            said = [LiveChunk(chunk, np.full(len(tokens), 9_000, np.float32))]
            asleep = number < CONVERSATION_TURNS // 2 - 10
            store.append(window, said, tokenizer=tokenizer, now=datetime.now(UTC), asleep=asleep)
            start += len(tokens)
    return window


def choose(page: Page, view: str) -> None:
    page.evaluate("view => app.preferences.set('view', view)", view)
    page.wait_for_selector(f"#{view} .chunk")
    page.wait_for_timeout(500)


def painted(page: Page, address: str) -> float:
    """From the navigation to the first frame with the context in it, by the page's own clock."""
    page.goto("about:blank")
    page.add_init_script(
        "const look = () => document.querySelector('.chunk') ? setTimeout(() => (window.shownAt = performance.now())) : requestAnimationFrame(look); requestAnimationFrame(look);"
    )
    page.goto(address)
    page.wait_for_function("() => window.shownAt && app.store.live")
    return float(page.evaluate("window.shownAt"))


def measure(page: Page, address: str, windows: tuple[str, str], note: Any) -> dict[str, Any]:
    long, talked = windows
    page.goto(address)
    page.evaluate("localStorage['halo-weave'] = JSON.stringify({view: 'context'})")
    first = [painted(page, f"{address}/#/w/{long}") for _ in range(3)]
    page.wait_for_timeout(500)
    tokens = page.evaluate("app.store.live.tokens")
    note(f"first paint of {tokens} tokens: {min(first):.0f} ms")
    recoloured = page.evaluate(RECOLOUR, ROUNDS)
    note(f"recolour: {statistics.median(recoloured['times']):.1f} ms")
    scrolled = page.evaluate(SCROLL)
    opened = [page.evaluate(GRAVEYARD) for _ in range(5)]
    rows = page.evaluate("document.querySelectorAll('.row').length")
    note(f"graveyard: {statistics.median(opened):.0f} ms, {rows} rows in the page")
    page.evaluate("app.views.drawer.show('')")
    page.evaluate(WATCH)
    box = page.get_by_label("Your message")
    box.fill("Tell me of the lighthouse.")
    box.press("Enter")
    page.wait_for_function("() => app.store.turn.phase === 'idle' && app.store.turn.reason", timeout=180_000)
    page.wait_for_timeout(500)
    long_tasks = page.evaluate("window.longTasks")
    streamed = page.evaluate("app.store.turn.stats.tokens")
    pointed = page.evaluate(HIGHLIGHT, ROUNDS)
    note(f"pointing at a word: {statistics.median(pointed['times']):.1f} ms")
    choose(page, "conversation")
    both = {
        "conversation_recolour_ms": round(statistics.median(page.evaluate(RECOLOUR, ROUNDS)["times"]), 2),
        "conversation_highlight_ms": round(statistics.median(page.evaluate(HIGHLIGHT, ROUNDS)["times"]), 2),
    }
    turned = [page.evaluate(OPEN, [talked, long]) for _ in range(5)]
    note(f"a conversation of {CONVERSATION_TURNS} turns: {statistics.median(turned):.0f} ms")
    ribbon = page.evaluate(RIBBON, ROUNDS)
    note(f"the ribbon of {ribbon['turns']} turns: {statistics.median(ribbon['times']):.1f} ms")
    through = page.evaluate(SCROLL)
    return {
        "conversation_turns": CONVERSATION_TURNS,
        "conversation_open_ms": round(statistics.median(turned), 1),
        "conversation_scroll_frame_ms": round(statistics.median(through), 1),
        "conversation_scroll_longest_frame_ms": round(max(through), 1),
        "ribbon_load_ms": round(ribbon["loaded"], 1),
        "ribbon_draw_ms": round(statistics.median(ribbon["times"]), 2),
        "highlight_ms": round(statistics.median(pointed["times"]), 2),
        "highlight_longest_ms": round(max(pointed["times"]), 2),
        "highlighted_tokens": pointed["sources"],
        **both,
        "live_tokens": tokens,
        "first_paint_ms": round(statistics.median(first), 1),
        "recolour_ms": round(statistics.median(recoloured["times"]), 2),
        "recolour_to_frame_ms": round(statistics.median(recoloured["frames"]), 2),
        "recoloured_tokens": recoloured["written"],
        "scroll_frame_ms": round(statistics.median(scrolled), 1),
        "scroll_longest_frame_ms": round(max(scrolled), 1),
        "graveyard_chunks": ASLEEP_CHUNKS,
        "graveyard_rows": rows,
        "graveyard_open_ms": round(statistics.median(opened), 1),
        "streamed_tokens": streamed,
        "long_tasks": len(long_tasks),  # the browser counts those above 50 ms
        "longest_task_ms": round(max(long_tasks, default=0.0), 1),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", action="store_true", help="one JSON object on stdout")
    asked = parser.parse_args()
    chromium = os.environ.get("HALO_WEAVE_CHROMIUM") or shutil.which("chromium")
    if not chromium:
        sys.exit("Chromium was not found. Install it, or name it with HALO_WEAVE_CHROMIUM.")

    def note(text: str) -> None:
        print(text, file=sys.stderr)

    with tempfile.TemporaryDirectory() as folder:
        parts = build_weave(Options(Path(folder), engine="scripted", embedder="off"))
        engine = ScriptedEngine(
            answer=lambda prompt: " ".join(WORDS * 20)[: 3 * STREAMED],
            pause=lambda: time.sleep(1 / PER_SECOND),
            context=32_768,
            look=look,
        )
        weave = Weave(engine, parts.runtime.store, parts.runtime.memory_search, parts.runtime.toolbox)
        note(f"filling a window with {LIVE_TOKENS} live tokens and {ASLEEP_CHUNKS} chunks asleep")
        windows = fill(weave), talk(weave)
        service = Service(lambda progress: weave)
        service.begin().join()
        with serve_in_thread(service) as address, sync_playwright() as playwright:
            browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS)
            page = browser.new_page(viewport={"width": 1440, "height": 900})
            found = measure(page, address, windows, note)
            found["chromium"] = browser.version
            browser.close()
    if asked.json:
        print(json.dumps(found))
        return
    for name, value in found.items():
        print(f"{name:>24}  {value}")


if __name__ == "__main__":
    main()
