// The centre: exactly what the model sees, in time order, lit by what it looks at.

import { h, hold } from "../dom.js";
import { openFence } from "../markdown.js";
import { compareIds, counted, isPlainFile, parts } from "../words.js";
import { ChunkTools } from "./chunk-tools.js";
import { ChunkView } from "./chunk.js";
import { PrunedGapView } from "./pruned-gap.js";
import { ScrollPlace } from "./scroll.js";
import { TurnTools } from "./turn-tools.js";
import { TurnView } from "./turn.js";

export class ContextView {
  /** @type {Map<string, ChunkView>} */
  chunks = new Map();
  /** @type {Map<string, TurnView>} */
  turns = new Map();
  /** @type {Map<string, PrunedGapView>} */
  gaps = new Map();
  #frame = 0;
  #stale = { live: false, token: false, brightness: false };
  /** How long the last recolouring took, and how many nodes it wrote. */
  last = { recolour: 0, written: 0 };

  /**
   * @param {import("../app.js").App} app @param {HTMLElement} place the scrolling part
   * @param {HTMLElement} more where the jump button stands
   */
  constructor(app, place, more) {
    this.app = app;
    this.place = place;
    this.list = h("div", { class: "turns" });
    this.system = h("pre", { class: "system-text" });
    this.systemLine = h("summary", {});
    this.fold = h("details", { class: "system-fold", hidden: true }, this.systemLine, this.system);
    place.append(this.fold, this.list);
    this.scroll = new ScrollPlace(place, more);
    this.tools = new ChunkTools(app, place, this.list);
    this.turnTools = new TurnTools(app, this.list, (id) => this.#own(id));
    const { store } = app;
    store.on("window", () => this.#clear());
    store.on("context", (wire) => this.#showSystem(wire));
    store.on("live", () => this.#soon("live"));
    store.on("token", () => this.#soon("token"));
    for (const topic of ["brightness", "attribution"]) store.on(topic, () => this.#soon("brightness"));
    app.preferences.addEventListener("change", () => this.#soon("live"));
    this.list.addEventListener("recolour-code", (event) => this.#reshow(/** @type {Element} */ (event.target)));
    this.list.addEventListener("click", (event) => codeAct(app, /** @type {Element} */ (event.target)));
    store.on("follow", () => (this.scroll.following = true));
    for (const topic of ["windows", "turn"]) store.on(topic, () => this.#nameTurns());
  }

  /** @param {"live" | "token" | "brightness"} what */
  #soon(what) {
    this.#stale[what] = true;
    this.#frame ||= requestAnimationFrame(() => this.flush());
  }

  /** A turn that was said in this window. @param {string} turnId */
  #own(turnId) {
    const turn = this.turns.get(turnId)?.turn;
    return turn?.window === this.app.store.current ? turn : undefined;
  }

  /** The system prompt, with what is added to it, as the model reads it. @param {WireContext} wire */
  #showSystem({ system_text: text, system_tokens: tokens }) {
    this.fold.hidden = !text;
    this.systemLine.textContent = `System prompt, with what is added to it: ${counted(tokens, "token")}`;
    if (this.system.textContent !== text) this.system.textContent = text;
  }

  /** Brings all of it up to the store, now: it was hidden. */
  refresh() {
    this.#stale = { live: true, token: true, brightness: true };
    this.flush();
  }

  /** Brings the page up to the store, now. */
  flush() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    const { live } = this.app.store;
    if (!live || this.place.hidden) return;
    const stale = this.#stale;
    this.#stale = { live: false, token: false, brightness: false };
    if (stale.live && this.scroll.following) this.#arrange(live);
    else if (stale.live) hold(this.place, ".chunk", () => this.#arrange(live));
    if (stale.token) this.chunks.get("draft")?.grow();
    if (stale.live || stale.brightness) this.recolour();
    if (stale.live && !this.app.store.busy) this.app.attributionOf(this.app.store.newestReply);
    if (this.scroll.following && (stale.live || stale.token)) this.scroll.toEnd();
  }

  recolour() {
    const { live, window } = this.app.store;
    if (!live) return;
    const began = performance.now();
    const newest = live.all.at(-1)?.turn;
    // The newest reply has not been looked back at yet: all its tokens are as bright as they were born.
    const unproven = newest?.role === "assistant" && !window?.effective.score_current_turn ? newest.turn_id : "";
    const original = this.app.preferences.values.heat === "original";
    const look = { original, low: live.low, high: live.high, unproven, ...this.app.store.lit };
    let written = 0;
    for (const chunk of live.all) {
      const view = this.chunks.get(chunk.key);
      if (!view) continue;
      view.chunk = chunk;
      written += view.recolour(look);
    }
    this.last = { recolour: performance.now() - began, written };
  }

  // Every chunk at its place

  /** Nodes that are there already stay. @param {import("../live-chunks.js").LiveChunks} live */
  #arrange(live) {
    const wanted = this.#layOut(live);
    const focused = this.list.contains(document.activeElement) ? document.activeElement?.closest("article") : null;
    const articles = focused ? [...this.list.querySelectorAll("article")] : [];
    for (const [place, nodes] of wanted) settle(place, nodes);
    if (focused && !this.list.contains(document.activeElement)) this.#refocus(focused, articles);
    this.tools.arranged();
    for (const views of [this.chunks, this.turns, this.gaps]) {
      for (const [key, view] of views) if (!view.node.isConnected) views.delete(key);
    }
    const reachable = this.list.querySelector("article[tabindex='0']");
    if (!reachable) this.list.querySelector("article:last-of-type")?.setAttribute("tabindex", "0");
  }

  /** Which nodes stand in which, in order. @param {import("../live-chunks.js").LiveChunks} live */
  #layOut(live) {
    /** @type {Node[]} */
    const top = [];
    /** @type {Map<HTMLElement, Node[]>} */
    const wanted = new Map([[this.list, top]]);
    let before = /** @type {LiveChunk | null} */ (null);
    let fence = ""; // that the chunk before left open
    const { all } = live;
    const beside = new Map(all.map((chunk, i) => [chunk, all[i - 1] ?? null])); // by position, as what sleeps is found
    for (const chunk of inTime(all, this.app.store.current)) {
      const { node, body } = this.#turn(chunk.turn);
      const inside = wanted.get(body) ?? [];
      const opens = before?.turn.turn_id !== chunk.turn.turn_id;
      fence = opens || chunk.prunedBefore || !before ? "" : openFence(before.pieces.join(""), fence);
      const gap = chunk.prunedBefore;
      if (gap) (opens ? top : inside).push(this.#gap(chunk.key, gap, beside.get(chunk) ?? null, chunk));
      if (opens && !wanted.has(body)) top.push(node);
      wanted.set(body, inside);
      inside.push(this.#chunk(chunk, fence).node);
      before = chunk;
    }
    if (live.prunedAfter) top.push(this.#gap("tail", live.prunedAfter, all.at(-1) ?? null, null));
    return wanted;
  }

  /**
   * The chunk that had the focus is gone: it goes to the same chunk anew, else to the one before, else after.
   * @param {HTMLElement} gone @param {HTMLElement[]} before all, as they stood
   */
  #refocus(gone, before) {
    const at = before.indexOf(gone);
    const nearest = [gone, ...before.slice(0, at).reverse(), ...before.slice(at + 1)];
    const nodes = nearest.map((one) => this.chunks.get(one.dataset.key ?? "")?.node);
    (nodes.find((node) => node?.isConnected) ?? this.place).focus({ preventScroll: true });
  }

  /** @param {LiveChunk} chunk @param {string} fence */
  #chunk(chunk, fence) {
    const how = { raw: this.app.preferences.values.form === "raw" || isPlainFile(chunk.turn), fence };
    let view = this.chunks.get(chunk.key);
    if (view?.goesOnWith(chunk) || view?.shows(chunk)) {
      view.adopt(chunk, how);
      view.grow();
    } else view = (!chunk.draft && !view && this.#ofDraft(chunk)) || new ChunkView(chunk, how);
    this.chunks.set(chunk.key, view);
    return view;
  }

  /** Code has its colours now. @param {Element} text */
  #reshow(text) {
    this.chunks.get(/** @type {HTMLElement | null} */ (text.closest("article"))?.dataset.key ?? "")?.reshow();
    this.#soon("brightness");
  }

  /** A reply of one chunk keeps the nodes it was written into. @param {LiveChunk} chunk */
  #ofDraft(chunk) {
    const draft = this.chunks.get("draft");
    if (!draft || this.app.store.live?.draft || !draft.becomes(chunk)) return undefined;
    this.chunks.delete("draft");
    return draft;
  }

  /** @param {Turn} turn */
  #turn(turn) {
    let view = this.turns.get(turn.turn_id);
    if (view) view.show(turn);
    else this.turns.set(turn.turn_id, (view = new TurnView(this.app, turn)));
    return view;
  }

  /** One of the windows may be gone, or be called otherwise. */
  #nameTurns() {
    for (const { turn } of this.app.store.live?.all ?? []) {
      this.turns.get(turn.turn_id)?.show(turn);
    }
  }

  /** @param {string} key @param {PrunedGap} gap @param {LiveChunk | null} after @param {LiveChunk | null} before */
  #gap(key, gap, after, before) {
    let view = this.gaps.get(key);
    if (!view) this.gaps.set(key, (view = new PrunedGapView(this.app)));
    return view.adopt(gap, after?.start ?? null, before?.start ?? null, before?.prunedThoughts ?? 0).node;
  }

  #clear() {
    this.chunks.clear();
    this.turns.clear();
    this.gaps.clear();
    if (this.list.contains(document.activeElement)) this.place.focus({ preventScroll: true });
    this.list.replaceChildren();
    this.scroll.following = true;
  }

  // Where the page is scrolled to

  /** @param {string} key @param {boolean} [glow] */
  goto(key, glow = false) {
    this.flush();
    const node = this.chunks.get(key)?.node;
    if (!node && glow) return;
    this.scroll.following = false;
    if (!node) {
      this.#reveal(key);
      return;
    }
    node.scrollIntoView({ block: "center" });
    node.focus({ preventScroll: true });
    node.classList.remove("glow", "found");
    void node.offsetWidth; // the glow starts anew
    node.classList.add(glow ? "glow" : "found");
  }

  /** A chunk that sleeps is shown at its place; if it has none here, the Why sheet is. @param {string} key */
  async #reveal(key) {
    const { store } = this.app;
    const { current } = store;
    const { turn, chunk } = parts(key);
    const next = store.live?.chunks.find((one) => {
      const other = parts(one.key);
      return (compareIds(other.turn, turn) || compareIds(other.chunk, chunk)) > 0;
    });
    const there = await this.gaps.get(next?.key ?? "tail")?.reveal(key);
    if (!there && store.current === current) this.app.explain(key);
  }
}

/** The buttons of a block of code. @param {import("../app.js").App} app @param {Element} target */
export function codeAct(app, target) {
  const block = target.closest(".code");
  if (target.closest(".code-copy")) app.copy(block?.querySelector("code")?.textContent ?? "");
  if (target.closest(".code-wrap")) block?.classList.toggle("wrapped");
}

/** Gives a place these children; those that stay are not touched. @param {HTMLElement} place @param {Node[]} nodes */
export function settle(place, nodes) {
  const staying = new Set(nodes);
  for (const node of [...place.childNodes]) if (!staying.has(node)) node.remove();
  let at = place.firstChild;
  for (const node of nodes) {
    if (at === node) at = at.nextSibling;
    else place.insertBefore(node, at);
  }
}

/**
 * Chunks as the model reads them: those of this window by position, those of others by when they were said. These stand
 * before the first message of the user's here that was said later.
 * @param {LiveChunk[]} chunks by position @param {string} window @returns {LiveChunk[]}
 */
export function inTime(chunks, window) {
  const earlier = (/** @type {LiveChunk} */ a, /** @type {LiveChunk} */ b) =>
    Date.parse(a.turn.said) - Date.parse(b.turn.said) || compareIds(a.start, b.start);
  const others = chunks.filter(({ turn }) => turn.window !== window).sort(earlier);
  /** @type {LiveChunk[]} */
  const ordered = [];
  for (const chunk of chunks) {
    if (chunk.turn.window !== window) continue;
    while (others.length && chunk.turn.role === "user" && earlier(others[0], chunk) < 0) {
      ordered.push(/** @type {LiveChunk} */ (others.shift()));
    }
    ordered.push(chunk);
  }
  return [...ordered, ...others];
}
