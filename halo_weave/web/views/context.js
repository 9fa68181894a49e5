// The centre: exactly what the model sees, in time order, lit by what it looks at.

import { fill, h, hold, iconButton } from "../dom.js";
import { openFence } from "../markdown.js";
import { compareIds, moment, parts, speakerOf } from "../words.js";
import { ChunkTools } from "./chunk-tools.js";
import { ChunkView } from "./chunk.js";
import { GapView } from "./gap.js";
import { RememberedView } from "./remembered.js";
import { SituationView } from "./situation.js";

const NEAR = 120; // pixels from the end within which the page follows the reply

/** @typedef {{node: HTMLElement, head: HTMLElement, body: HTMLElement, remembered: RememberedView}} TurnView */

export class ContextView {
  /** @type {Map<string, ChunkView>} */
  chunks = new Map();
  /** @type {Map<string, TurnView>} */
  turns = new Map();
  /** @type {Map<string, GapView>} */
  gaps = new Map();
  #frame = 0;
  #stale = { live: false, token: false, brightness: false };
  #following = true;
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
    this.situation = new SituationView(app, place);
    place.append(this.situation.node, this.list);
    this.jump = iconButton("down", "Newest", () => this.toEnd(), { text: true, class: "jump" });
    this.jump.hidden = true;
    more.append(this.jump);
    this.tools = new ChunkTools(app, place, this.list);
    place.addEventListener("scroll", () => this.#scrolled(), { passive: true });
    new ResizeObserver(() => this.#following && this.toEnd()).observe(place);
    const { store } = app;
    store.on("window", () => this.#clear());
    store.on("live", () => this.#soon("live"));
    store.on("token", () => this.#soon("token"));
    for (const topic of ["brightness", "light"]) store.on(topic, () => this.#soon("brightness"));
    app.preferences.addEventListener("change", () => this.#soon("live"));
    this.list.addEventListener("recolour-code", (event) => this.#reshow(/** @type {Element} */ (event.target)));
    this.list.addEventListener("click", (event) => codeAct(app, /** @type {Element} */ (event.target)));
    store.on("goto", (key) => requestAnimationFrame(() => this.goto(key)));
    store.on("woke", (key) => requestAnimationFrame(() => this.goto(key, true)));
    store.on("heard", () => (this.#following = true));
    store.on("windows", () => this.#nameTurns());
  }

  /** @param {"live" | "token" | "brightness"} what */
  #soon(what) {
    this.#stale[what] = true;
    this.#frame ||= requestAnimationFrame(() => this.flush());
  }

  /** Brings the page up to the store, now. */
  flush() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    const stale = this.#stale;
    this.#stale = { live: false, token: false, brightness: false };
    const { live } = this.app.store;
    if (!live || this.place.hidden) return;
    if (stale.live && this.#following) this.#arrange(live);
    else if (stale.live) hold(this.place, ".chunk", () => this.#arrange(live));
    if (stale.token) this.chunks.get("draft")?.grow();
    if (stale.live || stale.brightness) this.recolour();
    if (stale.live && !this.app.store.busy) this.app.lightOf(this.app.store.newestReply);
    if (stale.live) this.situation.show();
    if (this.#following && (stale.live || stale.token)) this.toEnd();
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

  /** Nodes that are there already stay. @param {import("../live.js").Live} live */
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

  /** Which nodes stand in which, in order. @param {import("../live.js").Live} live */
  #layOut(live) {
    /** @type {Node[]} */
    const top = [];
    /** @type {Map<HTMLElement, Node[]>} */
    const wanted = new Map([[this.list, top]]);
    let before = /** @type {LiveChunk | null} */ (null);
    let fence = ""; // that the chunk before left open
    for (const chunk of live.all) {
      const { node, body } = this.#turn(chunk.turn);
      const inside = wanted.get(body) ?? [];
      const opens = before?.turn.turn_id !== chunk.turn.turn_id;
      fence = opens || chunk.gap || !before ? "" : openFence(before.pieces.join(""), fence);
      if (chunk.gap) (opens ? top : inside).push(this.#gap(chunk.key, chunk.gap, before, chunk));
      if (opens && !wanted.has(body)) top.push(node);
      wanted.set(body, inside);
      inside.push(this.#chunk(chunk, fence).node);
      before = chunk;
    }
    if (live.tailGap) top.push(this.#gap("tail", live.tailGap, before, null));
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
    const how = { raw: this.app.preferences.values.form === "raw", fence };
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
    if (!view) {
      const head = h("header", { class: "turn-head" });
      const body = h("div", { class: "turn-body" });
      const remembered = new RememberedView(this.app);
      const about = { class: `turn ${turn.role}`, data: { turn: turn.turn_id } };
      const node = h("section", about, head, body, remembered.node);
      view = { node, head, body, remembered };
      this.turns.set(turn.turn_id, view);
    }
    this.#nameTurn(view, turn);
    view.remembered.show(turn);
    return view;
  }

  /** Who spoke, when and where. @param {TurnView} view @param {Turn} turn */
  #nameTurn({ node, head }, turn) {
    const { store } = this.app;
    const speaker = speakerOf(turn);
    const elsewhere = turn.window !== "" && turn.window !== store.current;
    const known = store.windows.some((one) => one.id === turn.window);
    const state = JSON.stringify([speaker, turn.said, elsewhere && turn.window_name, known, turn.cut]);
    if (head.dataset.state === state) return;
    head.dataset.state = state;
    node.setAttribute("aria-label", `${speaker}, ${moment(turn.said)}`);
    const time = { datetime: turn.said, title: new Date(turn.said).toLocaleString(), text: moment(turn.said) };
    const cut = "The program ended before this reply did. What was stored of it is here.";
    fill(head,
      h("span", { class: "speaker", text: speaker }), h("time", time),
      elsewhere && (known ? this.#wayTo(turn) : from(turn.window_name)),
      turn.cut && h("span", { class: "badge", text: "cut off", title: cut }));
  }

  /** Where a chunk was said, if that is another window. @param {Turn} turn */
  #wayTo({ window, window_name }) {
    return h("button", {
      type: "button", class: "badge origin", text: `from “${window_name || "another window"}”`,
      title: "Open the window where this was said", on: { click: () => this.app.open(window) },
    });
  }

  /** One of the windows may be gone, or be called otherwise. */
  #nameTurns() {
    for (const { turn } of this.app.store.live?.all ?? []) {
      const view = this.turns.get(turn.turn_id);
      if (view) this.#nameTurn(view, turn);
    }
  }

  /** @param {string} key @param {Gap} gap @param {LiveChunk | null} after @param {LiveChunk | null} before */
  #gap(key, gap, after, before) {
    let view = this.gaps.get(key);
    if (!view) this.gaps.set(key, (view = new GapView(this.app)));
    return view.adopt(gap, after?.start ?? null, before?.start ?? null, before?.thoughts ?? 0).node;
  }

  #clear() {
    this.chunks.clear();
    this.turns.clear();
    this.gaps.clear();
    if (this.list.contains(document.activeElement)) this.place.focus({ preventScroll: true });
    this.list.replaceChildren();
    this.#following = true;
    this.situation.show();
  }

  // Where the page is scrolled to

  #scrolled() {
    const left = this.place.scrollHeight - this.place.scrollTop - this.place.clientHeight;
    this.#following = left < NEAR;
    this.jump.hidden = left < 2 * NEAR;
  }

  toEnd() {
    this.#following = true;
    this.place.scrollTop = this.place.scrollHeight;
  }

  /** @param {string} key @param {boolean} [glow] */
  goto(key, glow = false) {
    this.flush();
    const node = this.chunks.get(key)?.node;
    if (!node && glow) return;
    this.#following = false;
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
    if (!there && store.current === current) this.app.why(key);
  }
}

/** @param {string} name of a window that does not exist any more */
function from(name) {
  const text = name ? `from “${name}”` : "from a deleted window";
  return h("span", { class: "badge origin", text, title: "The window where this was said does not exist any more" });
}

/** The buttons of a block of code. @param {import("../app.js").App} app @param {Element} target */
function codeAct(app, target) {
  const block = target.closest(".code");
  if (target.closest(".code-copy")) app.copy(block?.querySelector("code")?.textContent ?? "");
  if (target.closest(".code-wrap")) block?.classList.toggle("wrapped");
}

/** Gives a place these children; those that stay are not touched. @param {HTMLElement} place @param {Node[]} nodes */
function settle(place, nodes) {
  const staying = new Set(nodes);
  for (const node of [...place.childNodes]) if (!staying.has(node)) node.remove();
  let at = place.firstChild;
  for (const node of nodes) {
    if (at === node) at = at.nextSibling;
    else place.insertBefore(node, at);
  }
}
