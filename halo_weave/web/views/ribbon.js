// The ribbon: the timeline of the whole window, beside the scroll bar. A click goes there, brushing over it reads.

import { h } from "../dom.js";
import { Timeline } from "../timeline.js";
import { clip, moment, number, parts, speakerOf } from "../words.js";
import { Prose } from "./prose.js";

const SLIGHT = 2; // pixels that something live has at least
const SPARK = 2.2; // pixels, radius
const PAGE = 24; // turns whose texts are asked for at once
const MOVED = 6; // pixels from which on a press is no click
const READ = 900; // characters of a text
/** @type {Record<string, number>} */
const STEPS = { ArrowUp: -1, ArrowDown: 1, ArrowLeft: -1, ArrowRight: 1, PageUp: -10, PageDown: 10 };
const HELP = "Everything said here, from the beginning to now. Gold: live. Faint: asleep. Violet: pinned. " +
  "A spark: something woke up. Click to go there, brush over it to read.";

/** @typedef {{place: HTMLElement, list: HTMLElement}} Centre what shows chunks now */

export class RibbonView {
  /** @type {Timeline | null} */
  timeline = null;
  /** Where each chunk of this window ends, in tokens from the beginning; those of others take no room. */
  #ends = new Float64Array(0);
  #frame = 0;
  #asked = 0;
  #waiting = 0;
  /** The turn that the keyboard or the pointer is at, -1: none. */
  #at = -1;
  #brushed = -1;
  /** @type {{y: number, moved: boolean} | null} */
  #press = null;
  /** @type {Map<string, SaidTurn>} */
  #said = new Map();
  /** How long the last drawing took. */
  last = 0;

  /** @param {import("../app.js").App} app @param {HTMLElement} place @param {() => Centre} centre */
  constructor(app, place, centre) {
    this.app = app;
    this.node = place;
    this.centre = centre;
    this.canvas = h("canvas", { "aria-hidden": "true" });
    this.head = h("p", { class: "quiet" });
    this.text = h("div", { class: "text" });
    this.card = h("div", { class: "ribbon-card", hidden: true, "aria-hidden": "true" }, this.head, this.text);
    place.append(this.canvas);
    place.after(this.card);
    place.title = HELP;
    this.#listen();
  }

  #listen() {
    const { node, app } = this;
    const { store, preferences } = app;
    store.on("window", () => this.#forget());
    store.on("context", () => this.#loadSoon());
    for (const topic of ["live", "turn"]) store.on(topic, () => this.#soon());
    preferences.addEventListener("change", () => this.#soon());
    matchMedia("(prefers-color-scheme: light)").addEventListener("change", () => this.#soon());
    new ResizeObserver(() => this.#soon()).observe(node);
    node.parentElement?.addEventListener("scroll", () => this.#soon(), { capture: true, passive: true });
    node.addEventListener("pointerdown", (event) => {
      this.#press = { y: event.clientY, moved: false };
      node.setPointerCapture(event.pointerId);
      this.#brush(event);
    });
    node.addEventListener("pointermove", (event) => {
      if (this.#press && Math.abs(event.clientY - this.#press.y) > MOVED) this.#press.moved = true;
      this.#brush(event);
    });
    node.addEventListener("pointerup", () => {
      const press = this.#press;
      this.#press = null;
      if (press && !press.moved) this.#go(this.#brushed);
      if (press) this.#leave();
    });
    node.addEventListener("pointercancel", () => this.#leave());
    node.addEventListener("pointerleave", () => !this.#press && this.#leave());
    node.addEventListener("keydown", (event) => this.#key(event));
    node.addEventListener("focus", () => this.#step(this.#here));
    node.addEventListener("blur", () => this.#leave());
  }

  // What is known

  #forget() {
    this.timeline = null;
    this.#asked += 1;
    this.#at = this.#brushed = -1;
    this.#said.clear();
    this.card.hidden = true;
    this.#soon();
  }

  /** After what the reader waits for. */
  #loadSoon() {
    clearTimeout(this.#waiting);
    this.#waiting = window.setTimeout(() => this.load(), 250);
  }

  async load() {
    const { api, store } = this.app;
    const { current } = store;
    if (!current) return;
    const mine = ++this.#asked;
    try {
      const wire = await api.timeline(current);
      if (mine !== this.#asked || current !== store.current) return;
      this.timeline = new Timeline(wire);
      this.#said.clear();
      this.#soon();
    } catch {
      if (mine === this.#asked) this.timeline = null; // the page works without it; the next change asks again
    }
  }

  /** The place of the turn that is read now. */
  get #here() {
    const { timeline } = this;
    const [first] = this.#visible();
    return first === undefined ? (timeline?.turns.length ?? 1) - 1 : (timeline?.chunks[first].turn ?? 0);
  }

  /** The chunks of the ribbon at the upper and the lower edge of the view, by their places. @returns {number[]} */
  #visible() {
    const { timeline } = this;
    const { place, list } = this.centre();
    const nodes = /** @type {HTMLCollectionOf<HTMLElement>} */ (list.getElementsByClassName("chunk"));
    if (!timeline || place.hidden || !nodes.length) return [];
    const { top, bottom } = place.getBoundingClientRect();
    const from = firstWhere(nodes.length, (i) => nodes[i].getBoundingClientRect().bottom > top + 1);
    const to = firstWhere(nodes.length, (i) => nodes[i].getBoundingClientRect().top >= bottom - 1) - 1;
    const known = (/** @type {number} */ at, /** @type {number} */ way) => {
      for (let i = at; i >= 0 && i < nodes.length; i += way) {
        const found = timeline.places.get(nodes[i].dataset.key ?? "");
        if (found !== undefined && !timeline.chunks[found].foreign) return found;
      }
      return undefined;
    };
    const first = known(Math.min(from, nodes.length - 1), 1) ?? known(from, -1);
    const last = known(Math.max(to, 0), -1) ?? first;
    return first === undefined || last === undefined ? [] : [first, Math.max(first, last)];
  }

  // Drawing

  #soon() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.draw();
    });
  }

  draw() {
    const began = performance.now();
    const { timeline, canvas, node } = this;
    const { store } = this.app;
    if (timeline && store.live) timeline.grow(store.live.chunks, store.current);
    const empty = !timeline?.turns.length;
    node.classList.toggle("bare", empty);
    this.#describe();
    const ratio = devicePixelRatio || 1;
    const [width, height] = [node.clientWidth, node.clientHeight];
    if (canvas.width !== Math.round(width * ratio) || canvas.height !== Math.round(height * ratio)) {
      canvas.width = Math.round(width * ratio);
      canvas.height = Math.round(height * ratio);
    }
    const ink = canvas.getContext("2d");
    if (!ink) return;
    ink.setTransform(ratio, 0, 0, ratio, 0, 0);
    ink.clearRect(0, 0, width, height);
    if (timeline && !empty) this.#paint(ink, timeline, width, height);
    this.last = performance.now() - began;
  }

  /** @param {CanvasRenderingContext2D} ink @param {Timeline} timeline @param {number} width @param {number} height */
  #paint(ink, timeline, width, height) {
    const style = getComputedStyle(this.node);
    const colour = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
    this.#ends = ends(timeline);
    const scale = height / (this.#ends.at(-1) || 1);
    const { live } = this.app.store;
    const known = new Map(live?.chunks.map((chunk) => [chunk.key, chunk]));
    const { own, lent } = timeline.sparks;
    const top = (/** @type {number} */ i) => (i ? this.#ends[i - 1] : 0) * scale;
    const wide = (/** @type {number} */ i) => (timeline.chunks[i].key.endsWith("user") ? width - 5 : (width - 5) * 0.6);
    // One colour after the other: what sleeps first, so that little that is live is not covered by it.
    /** @type {[string, (i: number) => boolean][]} */
    const layers = [
      [colour("--ribbon-asleep"), (i) => !known.has(timeline.chunks[i].key)],
      [colour("--ribbon-live"), (i) => known.has(timeline.chunks[i].key)],
      [colour("--part-pinned"), (i) => Boolean(known.get(timeline.chunks[i].key)?.pinned)],
    ];
    // Between chunks, if they are large.
    const gap = scale * (this.#ends.at(-1) ?? 0) / timeline.chunks.length > 5 ? 1 : 0;
    layers.forEach(([fill, wanted], layer) => {
      ink.fillStyle = fill;
      for (let i = 0; i < timeline.chunks.length; i++) {
        if (timeline.chunks[i].foreign || !wanted(i)) continue;
        const y = top(i);
        const tall = this.#ends[i] * scale - y - gap;
        ink.fillRect(0, y, wide(i), layer ? Math.max(SLIGHT, tall) : Math.max(0.4, tall));
      }
    });
    ink.fillStyle = colour("--ribbon-spark");
    const spark = (/** @type {number} */ y) => {
      ink.beginPath();
      ink.arc(width - SPARK - 0.5, Math.max(SPARK, Math.min(height - SPARK, y)), SPARK, 0, 2 * Math.PI);
      ink.fill();
    };
    const opens = (/** @type {number} */ i) => !i || timeline.chunks[i - 1].turn !== timeline.chunks[i].turn;
    timeline.chunks.forEach(({ key, turn, foreign }, i) => {
      const woke = own.has(i) || Boolean(known.get(key)?.resurrected) || (lent.has(turn) && opens(i));
      if (woke && !foreign) spark((top(i) + this.#ends[i] * scale) / 2);
    });
    const [first, last] = this.#visible();
    if (first === undefined) return;
    ink.strokeStyle = colour("--ink");
    ink.lineWidth = 1;
    const tall = Math.max(4, this.#ends[last] * scale - top(first));
    ink.strokeRect(0.5, Math.min(height - tall, top(first)) + 0.5, width - 1, tall - 1);
    if (this.#at >= 0) {
      const marked = timeline.chunks.findIndex((chunk) => chunk.turn === this.#at);
      ink.fillStyle = colour("--ink");
      if (marked >= 0) ink.fillRect(0, top(marked), width, 2);
    }
  }

  #describe() {
    const { node, timeline } = this;
    const turns = timeline?.turns.length ?? 0;
    node.setAttribute("aria-valuemax", String(Math.max(1, turns)));
    if (document.activeElement !== node) {
      const at = turns ? Math.max(0, this.#here) + 1 : 1;
      node.setAttribute("aria-valuenow", String(at));
      node.setAttribute("aria-valuetext", turns ? `Turn ${at} of ${number(turns)}` : "Nothing was said here yet");
    }
  }

  // Reading and going there

  /** @param {PointerEvent} event */
  #brush(event) {
    const { timeline } = this;
    if (!timeline?.turns.length || !this.#ends.length) return;
    const box = this.node.getBoundingClientRect();
    const share = Math.max(0, Math.min(1, (event.clientY - box.top) / box.height));
    const wanted = share * this.#ends[this.#ends.length - 1];
    const found = firstWhere(this.#ends.length, (i) => this.#ends[i] > wanted);
    this.#brushed = Math.min(found, this.#ends.length - 1);
    this.#read(this.#brushed, event.clientY - box.top);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const turns = this.timeline?.turns.length ?? 0;
    if (!turns || event.ctrlKey || event.metaKey || event.altKey) return;
    const ends = { Home: 0, End: turns - 1 }[event.key];
    const step = STEPS[event.key];
    if (event.key === "Enter" || event.key === " ") this.#go(this.#brushed);
    else if (event.key === "Escape") this.#leave();
    else if (step !== undefined || ends !== undefined) this.#step(ends ?? this.#at + step);
    else return;
    event.preventDefault();
    event.stopPropagation();
  }

  /** @param {number} turn its place */
  #step(turn) {
    const { timeline } = this;
    if (!timeline?.turns.length) return;
    this.#at = Math.max(0, Math.min(timeline.turns.length - 1, turn));
    this.#brushed = timeline.chunks.findIndex((chunk) => chunk.turn === this.#at);
    this.#soon();
    const y = this.#brushed > 0 ? this.#ends[this.#brushed - 1] / (this.#ends.at(-1) || 1) : 0;
    if (this.#brushed >= 0) this.#read(this.#brushed, y * this.node.clientHeight);
  }

  /** Shows what stands at a place of the ribbon. @param {number} at the chunk @param {number} y */
  async #read(at, y) {
    const { timeline, node, card } = this;
    const chunk = timeline?.chunks[at];
    if (!timeline || !chunk) return;
    const turnId = parts(chunk.key).turn;
    const said = this.#said.get(turnId) ?? (await this.#textsAround(turnId));
    if (this.#brushed !== at || this.timeline !== timeline) return; // elsewhere by now
    const one = said?.chunks.find((other) => other.key === chunk.key);
    if (!said || !one) return;
    const text = one.text_pieces.join("");
    const live = this.app.store.live?.find(chunk.key);
    const state = live ? (live.pinned ? "pinned" : "live") : "asleep";
    const about = `${speakerOf(said)}, ${moment(said.said)} · turn ${number(chunk.turn + 1)} of ` +
      `${number(timeline.turns.length)} · ${state}`;
    node.setAttribute("aria-valuenow", String(chunk.turn + 1));
    node.setAttribute("aria-valuetext", `${about}: ${clip(text, 200)}`);
    this.head.textContent = about;
    const raw = this.app.preferences.values.form === "raw";
    const shown = text.length > READ ? `${text.slice(0, READ)}…` : text;
    this.text.replaceChildren();
    new Prose(this.text, () => "").show([shown], { raw });
    card.hidden = false;
    const most = node.clientHeight - card.offsetHeight - 8;
    card.style.top = `${Math.max(8, Math.min(most, y - card.offsetHeight / 2))}px`;
  }

  /** @param {string} turnId */
  async #textsAround(turnId) {
    const { api, store } = this.app;
    const { current } = store;
    try {
      const page = await api.turns(current, { around: turnId, limit: PAGE });
      if (current !== store.current) return undefined;
      for (const turn of page.turns) this.#said.set(turn.turn_id, turn);
    } catch {
      return undefined; // the ribbon is there without its texts
    }
    return this.#said.get(turnId);
  }

  #leave() {
    this.#press = null;
    this.#at = -1;
    this.card.hidden = true;
    this.#soon();
  }

  /** @param {number} at the chunk */
  #go(at) {
    const key = this.timeline?.chunks[at]?.key;
    if (key) this.app.store.tell("goto", key);
  }
}

/** Where each chunk ends. @param {Timeline} timeline */
function ends(timeline) {
  let sum = 0;
  return Float64Array.from(timeline.chunks, ({ tokens, foreign }) => (sum += foreign ? 0 : Math.max(1, tokens)));
}

/** The first of so many for which something holds, as it does for all after it. */
function firstWhere(/** @type {number} */ count, /** @type {(i: number) => boolean} */ holds) {
  let low = 0, high = count;
  while (low < high) {
    const middle = (low + high) >> 1;
    if (holds(middle)) high = middle;
    else low = middle + 1;
  }
  return low;
}
