// Point at a word of an answer, and its sources light up, with threads to them and chips for those out of sight.

import { fill, h, icon } from "../dom.js";
import { clip, moment, percent, speakerOf } from "../words.js";

const SVG = "http://www.w3.org/2000/svg";
const THREADS = 3; // to the strongest
const CHIPS = 4;
const STAY = 500; // milliseconds that the light stays when the pointer has left

/** @typedef {import("./chunk.js").ChunkView} ChunkView */
/** @typedef {{place: HTMLElement, chunks: Map<string, ChunkView>}} Centre what shows chunks now */
/** @typedef {import("../reply-attribution.js").Source} Source */
/** @typedef {{view: ChunkView, first: number, last: number}} Word */

export class AttributionView {
  /** @type {Word | null} */
  #word = null;
  /** @type {Element[]} */
  #lit = [];
  #leaving = 0;
  /** @type {Element | null} */
  #put = null;
  /** Where the pointer is. */
  #at = "";
  /** A chip led elsewhere: what is scrolled under the pointer there is not pointed at until the pointer moves. */
  #resting = false;
  /** How long the last pointing took. */
  last = 0;

  /**
   * @param {import("../app.js").App} app @param {HTMLElement} over what the threads lie over
   * @param {() => Centre} centre
   */
  constructor(app, over, centre) {
    this.app = app;
    this.over = over;
    this.centre = centre;
    this.threads = document.createElementNS(SVG, "svg");
    this.threads.setAttribute("class", "threads");
    this.threads.setAttribute("aria-hidden", "true");
    this.chips = h("div", { class: "chips", role: "group", "aria-label": "Where this word came from", hidden: true });
    this.told = h("p", { class: "sr", role: "status" });
    over.append(this.threads, this.chips, this.told);
    this.#listen();
  }

  #listen() {
    const { over, app } = this;
    over.addEventListener("pointerover", (event) => {
      if (event.pointerType === "mouse" && !this.#rests(event)) this.#over(/** @type {Element} */ (event.target));
    });
    over.addEventListener("pointermove", (event) => this.#rests(event), { passive: true });
    over.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.#leave());
    // What is under a finger may move when the chunk gets the focus: what counts is where it was put down.
    over.addEventListener("pointerdown", (event) => (this.#put = /** @type {Element} */ (event.target)));
    over.addEventListener("click", (event) => {
      const target = /** @type {Element} */ (event.target);
      this.#tap(this.#put && target.contains(this.#put) ? this.#put : target);
    });
    over.addEventListener("keydown", (event) => this.#key(event));
    over.addEventListener("focusout", (event) => {
      const to = /** @type {Node | null} */ (event.relatedTarget);
      if (this.#word && !this.chips.contains(to) && to !== this.#word.view.node) this.#leave();
    });
    for (const topic of ["window", "message-stored"]) app.store.on(topic, () => this.clear());
    over.addEventListener("scroll", () => this.#word && this.#draw(), { capture: true, passive: true });
    addEventListener("resize", () => this.#word && this.#draw());
  }

  /** @param {PointerEvent} event */
  #rests(event) {
    const at = `${event.clientX} ${event.clientY}`;
    if (at !== this.#at) this.#resting = false;
    this.#at = at;
    return this.#resting;
  }

  /** @param {Element} target */
  #over(target) {
    if (this.chips.contains(target)) return clearTimeout(this.#leaving);
    const word = this.#wordAt(target);
    if (!word) return this.#word ? this.#leave() : undefined;
    clearTimeout(this.#leaving);
    this.point(word);
  }

  #leave() {
    clearTimeout(this.#leaving);
    this.#leaving = window.setTimeout(() => this.clear(), STAY);
  }

  /** A finger has no hover. @param {Element} target */
  #tap(target) {
    if (this.chips.contains(target)) return;
    const word = this.#wordAt(target);
    if (word) this.point(word);
    else if (this.#word) this.clear();
  }

  /** The arrows left and right step through the words of an answer that has the focus. @param {KeyboardEvent} event */
  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const article = /** @type {HTMLElement} */ (event.target).closest("article.chunk");
    const view = this.centre().chunks.get(/** @type {HTMLElement | null} */ (article)?.dataset.key ?? "");
    if (event.key === "Escape" && this.#word) {
      event.preventDefault();
      this.clear();
      return;
    }
    if (!view || event.target !== article || !["ArrowLeft", "ArrowRight"].includes(event.key)) return;
    if (view.chunk.turn.role !== "assistant" || view.chunk.draft) return;
    event.preventDefault();
    const word = this.#step(view, event.key === "ArrowRight" ? 1 : -1);
    if (word) this.point(word, true);
  }

  /** @param {ChunkView} view @param {1 | -1} step @returns {Word | null} */
  #step(view, step) {
    const here = this.#word?.view === view ? this.#word : null;
    let at = here ? (step > 0 ? here.last + 1 : here.first - 1) : step > 0 ? 0 : view.chunk.pieces.length - 1;
    const { pieces } = view.chunk;
    while (at >= 0 && at < pieces.length) {
      const word = wordAround(view, at);
      if (/[\p{L}\p{N}]/u.test(pieces.slice(word.first, word.last + 1).join(""))) return word;
      at = step > 0 ? word.last + 1 : word.first - 1;
    }
    return null;
  }

  /** @param {Element} target @returns {Word | null} */
  #wordAt(target) {
    const article = /** @type {HTMLElement | null} */ (target.closest("article.chunk"));
    const { at } = /** @type {import("./prose.js").Part} */ (target);
    const view = this.centre().chunks.get(article?.dataset.key ?? "");
    if (!view || typeof at !== "number" || !view.text.contains(target)) return null;
    if (view.chunk.turn.role !== "assistant" || view.chunk.draft) return null;
    return wordAround(view, at);
  }

  /** @param {Word} word @param {boolean} [aloud] */
  async point(word, aloud = false) {
    const same = this.#word?.view === word.view && this.#word.first === word.first;
    if (same && !aloud) return;
    this.#word = word;
    const { turn_id } = word.view.chunk.turn;
    if (!this.app.store.attributions.get(turn_id)) await this.app.attributionOf(turn_id);
    if (this.#word !== word) return;
    this.show(word, aloud);
  }

  /** Lights what a word came from, as far as that is known here. @param {Word} word @param {boolean} [aloud] */
  show(word, aloud = false) {
    const began = performance.now();
    const { turn_id } = word.view.chunk.turn;
    const light = this.app.store.attributions.get(turn_id);
    this.#unlight();
    this.#word = word;
    const sources = light?.sources(word.view.chunk.start, word.first, word.last) ?? [];
    this.app.store.point(turn_id === this.app.store.newestReply ? "" : turn_id);
    for (const part of word.view.prose.parts) {
      if (part.at >= word.first && part.at <= word.last) this.#mark(part, "word");
    }
    const strongest = sources[0]?.share ?? 1;
    for (const source of sources) this.#lightUp(source, strongest);
    document.documentElement.classList.add("pointing");
    this.#draw(sources);
    this.#chips(word, sources, Boolean(light));
    if (aloud) this.told.textContent = this.#sentence(word, sources);
    this.last = performance.now() - began;
  }

  /** @param {Source} source @param {number} strongest */
  #lightUp({ key, tokens, share }, strongest) {
    const view = this.centre().chunks.get(key);
    if (!view) return;
    this.#mark(view.node, share > strongest / 2 ? "strong" : "weak");
    const most = Math.max(...tokens.values());
    for (const part of view.prose.parts) {
      const own = tokens.get(part.at);
      if (own) this.#mark(part, own > most / 2 ? "strong" : "weak");
    }
  }

  /** @param {Element} node @param {string} how */
  #mark(node, how) {
    /** @type {HTMLElement} */ (node).dataset.lit = how;
    this.#lit.push(node);
  }

  #unlight() {
    for (const node of this.#lit) delete (/** @type {HTMLElement} */ (node).dataset.lit);
    this.#lit = [];
  }

  clear() {
    clearTimeout(this.#leaving);
    if (!this.#word) return;
    this.#word = null;
    this.#sources = [];
    this.#unlight();
    this.threads.replaceChildren();
    this.chips.hidden = true;
    this.chips.replaceChildren();
    this.told.textContent = "";
    document.documentElement.classList.remove("pointing");
    this.app.store.point("");
  }

  /** @type {Source[]} */
  #sources = [];

  /** Threads from the word to the strongest that can be seen. @param {Source[]} [sources] */
  #draw(sources = this.#sources) {
    this.#sources = sources;
    const word = this.#lit.find((node) => /** @type {HTMLElement} */ (node).dataset.lit === "word");
    if (!word) return;
    const frame = this.over.getBoundingClientRect();
    const from = word.getBoundingClientRect();
    const lines = sources.slice(0, THREADS).map((source) => {
      const to = this.#spot(source);
      if (!to || to.bottom < frame.top || to.top > frame.bottom) return null;
      const [x1, y1] = [from.left + from.width / 2 - frame.left, from.top - frame.top];
      const [x2, y2] = [to.left + to.width / 2 - frame.left, to.bottom - frame.top];
      const path = document.createElementNS(SVG, "path");
      const bend = Math.max(24, Math.abs(y1 - y2) / 3);
      path.setAttribute("d", `M${x1},${y1} C${x1},${y1 - bend} ${x2},${y2 + bend} ${x2},${y2}`);
      path.setAttribute("stroke-width", (1 + 3 * source.share).toFixed(2));
      return path;
    });
    this.threads.replaceChildren(...lines.filter((line) => line !== null));
  }

  /** Where the strongest token of a source stands. @param {Source} source */
  #spot({ key, tokens }) {
    const view = this.centre().chunks.get(key);
    if (!view?.node.isConnected) return null;
    const [strongest] = [...tokens].sort((a, b) => b[1] - a[1])[0] ?? [0];
    return (view.partsAt(strongest)[0] ?? view.node).getBoundingClientRect();
  }

  /** @param {Word} word @param {Source[]} sources @param {boolean} known */
  #chips(word, sources, known) {
    const frame = this.over.getBoundingClientRect();
    const hidden = sources.slice(0, CHIPS).filter((source) => {
      const spot = this.#spot(source);
      return !spot || spot.bottom < frame.top || spot.top > frame.bottom;
    });
    const nothing = !known ? "Where this answer came from is not known."
      : "This word has no particular source: it came from the question, the answer, or the model itself.";
    this.chips.hidden = !hidden.length && sources.length > 0;
    fill(this.chips, sources.length ? hidden.map((one) => this.#chip(word, one)) : h("p", { text: nothing }));
  }

  /** @param {Word} word @param {Source} source */
  #chip(word, { key, share }) {
    const { text, about, live } = this.#about(word, key);
    const words = h("span", { text: `${percent(share)} ${about}: “${clip(text, 70)}”` });
    const title = live ? "Go there" : "It is asleep: show it";
    const click = () => {
      this.clear();
      this.#resting = true;
      this.app.store.tell("goto", key);
    };
    return h("button", { type: "button", class: "chip", title, on: { click } }, icon(live ? "search" : "sleep"), words);
  }

  /** @param {Word} word @param {string} key */
  #about(word, key) {
    const live = this.app.store.live?.find(key);
    const known = word.view.chunk.turn.sources?.find((one) => one.key === key);
    const shown = this.centre().chunks.get(key)?.chunk;
    const said = live ?? shown;
    const text = said?.pieces.join("") ?? known?.text ?? "a chunk that is asleep now";
    const speaker = said ? speakerOf(said.turn) : (known?.speaker ?? "");
    const when = said?.turn.said ?? known?.said ?? "";
    return { text, about: [speaker, when && moment(when)].filter(Boolean).join(", "), live: Boolean(live) };
  }

  /** @param {Word} word @param {Source[]} sources */
  #sentence(word, sources) {
    const { pieces } = word.view.chunk;
    const said = pieces.slice(word.first, word.last + 1).join("").trim();
    if (!sources.length) return `“${said}”: no particular source.`;
    const from = sources.slice(0, THREADS).map((one) => {
      const { text, about } = this.#about(word, one.key);
      return `${percent(one.share)} from ${about}: ${clip(text, 120)}`;
    });
    return `“${said}”: ${from.join("; ")}`;
  }
}

/** The word that a token is part of: up to the next blank on both sides. @param {ChunkView} view @param {number} at */
export function wordAround(view, at) {
  const { pieces } = view.chunk;
  let first = at, last = at;
  while (first > 0 && !/^\s/.test(pieces[first]) && !/\s$/.test(pieces[first - 1])) first--;
  while (last + 1 < pieces.length && !/^\s/.test(pieces[last + 1]) && !/\s$/.test(pieces[last])) last++;
  return { view, first, last };
}
