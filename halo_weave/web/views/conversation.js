// The centre as a conversation: all that was said in this window, in order. Only turns near the view exist.

import { h, hold } from "../dom.js";
import { toolTokens } from "../live-chunks.js";
import { openFence } from "../markdown.js";
import { compareIds, isPlainFile, parts } from "../words.js";
import { ChunkTools } from "./chunk-tools.js";
import { ChunkView } from "./chunk.js";
import { codeAct, settle } from "./context.js";
import { ScrollPlace } from "./scroll.js";
import { TurnTools } from "./turn-tools.js";
import { TurnView } from "./turn.js";

const FIRST = 12; // turns asked for before it is known how long they are
const PAGE = 30; // turns asked for at once, fewer if they are long
const MOST = 90; // turns that exist at once
const TOKENS = 6000; // of a page
const AHEAD = 1200; // pixels beyond the view that are loaded
const GUESS = 150; // pixels of a turn, until some were measured

/** @typedef {{turn: Turn, chunks: LiveChunk[]}} Shown a turn with its chunks as they were said */

export class ConversationView {
  /** @type {Map<string, ChunkView>} */
  chunks = new Map();
  /** @type {Map<string, TurnView>} */
  turns = new Map();
  /** The turns that exist, in order. @type {Shown[]} */
  #slice = [];
  /** How many turns there are in all, and before the slice. */
  #total = 0;
  #offset = 0;
  #height = GUESS;
  #frame = 0;
  #stale = { live: false, token: false, light: false };
  /** Counts what was asked for: an answer that comes late is dropped. */
  #asked = 0;
  #loading = false;
  #loaded = "";
  /** Another window is shown, and its context has not come yet. */
  #first = false;
  /** The context was loaded anew, and nothing was said since. */
  #doubt = false;

  /** @param {import("../app.js").App} app @param {HTMLElement} place that scrolls @param {HTMLElement} over */
  constructor(app, place, over) {
    this.app = app;
    this.place = place;
    this.before = h("div", { class: "space" });
    this.after = h("div", { class: "space" });
    this.list = h("div", { class: "turns" });
    place.append(this.before, this.list, this.after);
    this.scroll = new ScrollPlace(place, over);
    this.scroll.more = () => this.#end < this.#total;
    this.scroll.jump.addEventListener("click", () => this.scroll.more() && this.load());
    this.tools = new ChunkTools(app, place, this.list);
    this.turnTools = new TurnTools(app, this.list, (id) => this.turns.get(id)?.turn);
    this.#listen();
  }

  #listen() {
    const { store, preferences } = this.app;
    store.on("window", () => this.#clear());
    store.on("context", () => {
      const first = this.#first;
      this.#first = false;
      if (first) { // its turns were asked for when it was shown
        this.flush(true);
        return this.#near();
      }
      this.#doubt = this.#loaded === store.current;
      this.#reload();
    });
    store.on("live", () => this.#soon("live"));
    store.on("token", () => this.#soon("token"));
    for (const topic of ["brightness", "attribution"]) store.on(topic, () => this.#soon("light"));
    for (const topic of ["windows", "turn"]) store.on(topic, () => this.#soon("live"));
    store.on("follow", () => (this.scroll.following = true));
    // Something changed: what is said now may take the place of what was loaded.
    store.on("message-stored", () => this.#doubt && this.#reload());
    store.on("done", () => {
      if (this.#doubt) this.#reload();
      this.#doubt = false;
    });
    preferences.addEventListener("change", () => this.#soon("live"));
    this.place.addEventListener("scroll", () => this.#near(), { passive: true });
    this.list.addEventListener("click", (event) => codeAct(this.app, /** @type {Element} */ (event.target)));
    this.list.addEventListener("recolour-code", (event) => {
      const article = /** @type {HTMLElement | null} */ (/** @type {Element} */ (event.target).closest("article"));
      this.chunks.get(article?.dataset.key ?? "")?.reshow();
      this.#soon("light");
    });
  }

  get #end() {
    return this.#offset + this.#slice.length;
  }

  /** How many turns are a page, by how long those are that exist. */
  get #page() {
    const chunks = this.#slice.flatMap((one) => one.chunks);
    const tokens = chunks.reduce((sum, chunk) => sum + chunk.pieces.length, 0);
    if (!tokens) return FIRST;
    return Math.max(4, Math.min(PAGE, Math.round((TOKENS * this.#slice.length) / tokens)));
  }

  // Loading

  /** What changed on the server changes here; the place stays. */
  #reload() {
    const near = this.#loaded === this.app.store.current && !this.scroll.following;
    if (near) this.load({ offset: this.#offset, limit: Math.max(this.#page, this.#slice.length) });
    else this.load();
  }

  /** @param {{offset?: number, around?: string, limit?: number}} [which] nothing: the last turns */
  async load(which = {}) {
    const { store, api } = this.app;
    const { current } = store;
    if (!current || this.place.hidden) return;
    const mine = ++this.#asked;
    const page = await this.app.attempt(() => api.turns(current, { limit: this.#page, ...which }));
    if (!page || mine !== this.#asked || current !== store.current) return;
    this.#loaded = current;
    this.#adopt(page);
    const following = which.offset === undefined && which.around === undefined;
    if (following) this.scroll.following = true;
    this.flush(true);
    this.#near(); // a few short turns may leave room
  }

  /** @param {Said} page */
  #adopt(page) {
    this.#total = page.total;
    this.#offset = page.offset;
    this.#slice = page.turns.map(shownTurn);
  }

  /** Another window is shown. */
  #clear() {
    this.#asked += 1;
    this.#first = !this.place.hidden;
    this.#loaded = "";
    this.#slice = [];
    this.#total = this.#offset = 0;
    this.chunks.clear();
    this.turns.clear();
    this.list.replaceChildren();
    this.before.style.height = this.after.style.height = "0";
    this.scroll.following = true;
    this.load();
  }

  /** Loads what comes near, and what was jumped to. */
  #near() {
    const { place } = this;
    if (place.hidden || this.#loading || !this.#loaded || !this.app.store.live) return;
    const top = place.scrollTop - this.before.offsetHeight;
    const bottom = this.before.offsetHeight + this.list.offsetHeight - place.scrollTop - place.clientHeight;
    if (top < -place.clientHeight || bottom < -place.clientHeight) this.#jump();
    else if (top < AHEAD && this.#offset > 0) this.#extend(-1);
    else if (bottom < AHEAD && this.#end < this.#total) this.#extend(1);
  }

  /** Far from what exists: the turns there take its place. */
  async #jump() {
    this.#loading = true;
    await new Promise((done) => setTimeout(done, 80)); // the bar may still be dragged
    const at = Math.min(Math.floor(this.place.scrollTop / this.#height), this.#total - 1);
    await this.load({ offset: Math.max(0, at - Math.round(this.#page / 3)) });
    const node = this.turns.get(this.#slice[Math.min(at - this.#offset, this.#slice.length - 1)]?.turn.turn_id)?.node;
    if (node) this.place.scrollTop = node.offsetTop;
    this.#loading = false;
    this.#near();
  }

  /** @param {1 | -1} way further on, or back */
  async #extend(way) {
    const { store, api } = this.app;
    const { current } = store;
    this.#loading = true;
    const mine = this.#asked;
    const size = this.#page;
    const offset = way > 0 ? this.#end : Math.max(0, this.#offset - size);
    const limit = way > 0 ? size : this.#offset - offset;
    const page = await this.app.attempt(() => api.turns(current, { offset, limit }));
    this.#loading = false;
    if (!page || mine !== this.#asked || current !== store.current) return;
    const more = page.turns.map(shownTurn);
    const most = Math.min(MOST, 3 * Math.max(size, limit));
    this.#total = page.total;
    if (way > 0) {
      this.#slice.push(...more);
      const over = Math.max(0, this.#slice.length - most);
      this.#slice.splice(0, over);
      this.#offset += over;
    } else {
      this.#slice.unshift(...more);
      this.#offset = page.offset;
      this.#slice.length = Math.min(this.#slice.length, most);
    }
    this.flush(true);
    this.#near();
  }

  // Showing

  /** @param {"live" | "token" | "light"} what */
  #soon(what) {
    this.#stale[what] = true;
    this.#frame ||= requestAnimationFrame(() => this.flush());
  }

  /** Brings the page up to the store, now. @param {boolean} [all] */
  flush(all = false) {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    const { store } = this.app;
    if (this.place.hidden || !store.live || this.#loaded !== store.current) return;
    const stale = this.#stale;
    this.#stale = { live: false, token: false, light: false };
    if (stale.live || all) {
      this.#follow();
      if (this.scroll.following) this.#arrange();
      else hold(this.place, ".chunk", () => this.#arrange());
    }
    if (stale.token) this.chunks.get("draft")?.grow();
    if (stale.live || stale.light || all) this.recolour();
    if ((stale.live || all) && !store.busy) this.app.attributionOf(store.newestReply);
    if (this.scroll.following && (stale.live || stale.token || all)) this.scroll.toEnd();
    if (stale.live || all) this.#layOut();
  }

  /** Once chunks have been laid out, those out of sight need not be again. The browser remembers how tall they are. */
  #layOut() {
    const shown = [...this.chunks.values()];
    const fresh = shown.filter(({ node, chunk }) => !chunk.draft && !node.classList.contains("laid"));
    if (!fresh.length) return;
    requestAnimationFrame(() => requestAnimationFrame(() => {
      if (this.place.hidden) return; // it was not laid out meanwhile
      for (const { node } of fresh) node.classList.add("laid");
    }));
  }

  /** What was said since the slice was loaded, if it reaches to the end. */
  #follow() {
    const { live, current } = this.app.store;
    const last = this.#slice.at(-1)?.turn.turn_id ?? "0";
    const whole = this.#end >= this.#total;
    /** @type {Map<string, Shown>} */
    const fresh = new Map();
    for (const chunk of live?.chunks ?? []) {
      const { turn } = chunk;
      if (turn.window !== current || compareIds(turn.turn_id, last) <= 0) continue;
      const shown = fresh.get(turn.turn_id) ?? { turn, chunks: [] };
      shown.chunks.push(chunk);
      fresh.set(turn.turn_id, shown);
    }
    this.#total = Math.max(this.#total, this.#end + fresh.size);
    if (whole) this.#slice.push(...fresh.values());
  }

  #arrange() {
    const { store, preferences } = this.app;
    const raw = preferences.values.form === "raw";
    const draft = this.#end >= this.#total ? store.live?.draft : null;
    const { regenerating } = store.turn; // what follows it makes place for the reply
    const staying = draft && regenerating
      ? this.#slice.filter(({ turn }) => compareIds(turn.turn_id, regenerating) <= 0) : this.#slice;
    const all = draft ? [...staying, { turn: draft.turn, chunks: [draft] }] : this.#slice;
    /** @type {Map<HTMLElement, Node[]>} */
    const wanted = new Map([[this.list, []]]);
    for (const { turn, chunks } of all) {
      const view = this.#turn(turn);
      wanted.get(this.list)?.push(view.node);
      let fence = "";
      const nodes = chunks.map((said) => {
        const live = said.draft ? said : store.live?.find(said.key);
        const node = this.#chunk(live ?? pruned(said), { raw: raw || isPlainFile(turn), fence }).node;
        fence = openFence(said.pieces.join(""), fence);
        return node;
      });
      wanted.set(view.body, nodes);
    }
    for (const [place, nodes] of wanted) settle(place, nodes);
    this.tools.arranged();
    for (const views of [this.chunks, this.turns]) {
      for (const [key, view] of views) if (!view.node.isConnected) views.delete(key);
    }
    const reachable = this.list.querySelector("article[tabindex='0']");
    if (!reachable) this.list.querySelector("section:last-of-type article")?.setAttribute("tabindex", "0");
    this.#measure();
  }

  /** What is not there takes as much room as it is guessed to. */
  #measure() {
    if (this.#slice.length > 4) this.#height = Math.max(40, this.list.offsetHeight / this.#slice.length);
    this.before.style.height = `${Math.round(this.#offset * this.#height)}px`;
    this.after.style.height = `${Math.round(Math.max(0, this.#total - this.#end) * this.#height)}px`;
  }

  /** @param {Turn} turn */
  #turn(turn) {
    let view = this.turns.get(turn.turn_id);
    if (view) view.show(turn);
    else this.turns.set(turn.turn_id, (view = new TurnView(this.app, turn)));
    return view;
  }

  /** @param {LiveChunk} chunk @param {{raw: boolean, fence: string}} how */
  #chunk(chunk, how) {
    const before = this.chunks.get(chunk.key);
    if (before?.goesOnWith(chunk) || before?.shows(chunk)) {
      before.adopt(chunk, how);
      before.grow();
      return before;
    }
    const view = new ChunkView(chunk, how);
    this.chunks.set(chunk.key, view);
    return view;
  }

  recolour() {
    const { live, lit } = this.app.store;
    if (!live) return;
    const original = this.app.preferences.values.heat === "original";
    const look = { original, low: live.low, high: live.high, unproven: "", ...lit };
    for (const view of this.chunks.values()) view.recolour(look);
  }

  /** Goes to a chunk; false if it was not said in this window. @param {string} key @param {boolean} [glow] */
  async goto(key, glow = false) {
    this.scroll.following = false;
    if (!this.chunks.has(key)) await this.load({ around: parts(key).turn });
    this.scroll.following = false;
    const node = this.chunks.get(key)?.node;
    if (!node) return false;
    node.scrollIntoView({ block: "center" });
    node.focus({ preventScroll: true });
    node.classList.remove("glow", "found");
    void node.offsetWidth; // the glow starts anew
    node.classList.add(glow ? "glow" : "found");
    return true;
  }
}

/** A turn as the server tells it, with its chunks as if they slept. @param {SaidTurn} said @returns {Shown} */
function shownTurn({ chunks, ...turn }) {
  return {
    turn,
    chunks: chunks.map((one) => ({
      key: one.key, turn, start: one.start, pinned: false, pieces: one.text_pieces, brightness: new Float32Array(0),
      peak: 0, mean: 0, resurrected: null, tool: one.tool, thought: one.thought, prunedBefore: null,
      prunedThoughts: 0, fresh: false, draft: false, rank: 0, pruned: true,
      tools: one.tool ? toolTokens(one.text_pieces) : [], thinking: [],
    })),
  };
}

/** A chunk that is not live, also if it was when it was said. @param {LiveChunk} said @returns {LiveChunk} */
function pruned(said) {
  if (said.pruned) return said;
  return {
    ...said, pruned: true, pinned: false, resurrected: null, prunedBefore: null, fresh: false, rank: 0,
    brightness: new Float32Array(0), peak: 0, mean: 0,
  };
}
