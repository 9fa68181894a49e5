// Replay: a slider over the turns of a window. Chunks dim, fall asleep and come back, as they did or would have.

import { fill, h, iconButton } from "../dom.js";
import { LIVE, PINNED, UNSAID, Timeline } from "../timeline.js";
import { plainOf } from "../markdown.js";
import { Captured, Recorded, sums } from "../replays.js";
import { clip, counted, label, moment, number, parts, speakerOf } from "../words.js";

const STEP = 450; // milliseconds of a turn while it plays
const TALLEST = 190; // pixels of the field
const LISTED = 6; // chunks named at a turn
const PAGE = 24; // turns whose texts are asked for at once
const WITHOUT = "The brightness of chunks is known only for captured turns: see Capture below.";

/** @typedef {import("../replays.js").Scene} Scene */

export class ReplayView {
  /** @type {Timeline | null} */
  timeline = null;
  /** @type {Recorded | Captured | null} */
  source = null;
  /** What is watched: "" is what happened. */
  #strategy = "";
  #window = "";
  #asked = 0;
  #playing = 0;
  #cell = 10;
  #columns = 1;
  /** @type {Map<string, SaidTurn>} */
  #said = new Map();

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.slider = h("input", {
      type: "range", min: "1", max: "1", value: "1", class: "replay-slider", "aria-label": "Turn",
      on: { input: () => this.show() },
    });
    this.play = iconButton("further", "Play", () => this.#toggle(), { text: true, class: "small" });
    this.from = h("p", { class: "quiet" });
    this.back = iconButton("undo", "As it happened", () => this.watch(), { text: true, class: "small" });
    this.field = h("canvas", { class: "replay-field", role: "img", "aria-label": "" });
    this.head = h("p", { class: "replay-head", role: "status" });
    this.changes = h("div", { class: "replay-changes" });
    this.note = h("p", { class: "quiet" });
    this.none = h("p", { class: "quiet", text: "Nothing was said in this window yet.", hidden: true });
    this.body = h("div", { class: "replay" }, this.from,
      h("div", { class: "replay-line" }, this.slider, this.play, this.back),
      this.field, this.head, this.changes, this.note);
    this.node = h("section", { class: "group" }, h("h3", { text: "Replay" }), this.none, this.body);
    this.field.addEventListener("click", (event) => this.#go(event));
    app.store.on("window", () => this.#stop());
    new ResizeObserver(() => this.node.isConnected && this.show()).observe(this.node);
  }

  /** Loads the window's timeline anew; the place of the slider stays, at the end if it was there. */
  async load() {
    const { api, store } = this.app;
    const { current } = store;
    const mine = ++this.#asked;
    const another = this.#window !== current;
    const wire = current ? await this.app.attempt(() => api.timeline(current)) : undefined;
    if (mine !== this.#asked || current !== store.current) return;
    this.#window = current;
    this.timeline = wire ? new Timeline(wire) : null;
    if (another) this.#strategy = "";
    this.#said.clear();
    if (!this.#strategy) this.#adopt(this.timeline && new Recorded(this.timeline), another);
  }

  /** Watches a strategy on a capture; without one, what happened. @param {string} [strategy] @param {object} [query] */
  async watch(strategy = "", query = {}) {
    const { api, store } = this.app;
    this.#stop();
    const replay = strategy
      ? await this.app.attempt(() => api.replay(store.current, { strategy, ...query })) : undefined;
    if (strategy && !replay) return;
    this.#strategy = strategy;
    if (!this.timeline) return;
    this.#adopt(replay ? new Captured(this.timeline, replay) : new Recorded(this.timeline), true);
    if (!strategy) return;
    if (this.node.parentElement) this.node.parentElement.scrollTop = 0;
    this.slider.focus({ preventScroll: true });
  }

  /** @param {Recorded | Captured | null} source @param {boolean} anew */
  #adopt(source, anew) {
    const atEnd = anew || this.slider.value === this.slider.max;
    this.source = source;
    const steps = source?.steps ?? 0;
    this.none.hidden = steps > 0;
    this.body.hidden = !steps;
    this.slider.max = String(Math.max(1, steps));
    if (atEnd || Number(this.slider.value) > steps) this.slider.value = String(steps);
    const would = `What ${label(this.#strategy).toLowerCase()} would have done, on the capture`;
    this.from.textContent = this.#strategy ? would : "As it happened, from the record";
    this.back.hidden = !this.#strategy;
    this.note.textContent = this.#strategy ? "" : WITHOUT;
    this.note.hidden = Boolean(this.#strategy);
    this.show();
  }

  // Playing

  #toggle() {
    if (this.#playing) return this.#stop();
    if (this.slider.value === this.slider.max) this.slider.value = "1";
    this.show();
    this.#playing = window.setInterval(() => {
      if (!this.node.isConnected || this.slider.value === this.slider.max) return this.#stop();
      this.slider.value = String(Number(this.slider.value) + 1);
      this.show();
    }, STEP);
    this.#namePlay();
  }

  #stop() {
    clearInterval(this.#playing);
    this.#playing = 0;
    this.#namePlay();
  }

  #namePlay() {
    const text = this.play.querySelector("span");
    if (text) text.textContent = this.#playing ? "Pause" : "Play";
  }

  // Showing

  show() {
    const { timeline, source } = this;
    if (!timeline || !source?.steps || this.body.hidden) return;
    const step = Number(this.slider.value) - 1;
    const scene = source.at(step);
    this.#paint(timeline, scene);
    const { live, liveTokens, pruned } = sums(timeline, scene.states);
    const figures = `${counted(live, "chunk")} live (${counted(liveTokens, "token")}), ${number(pruned)} asleep`;
    this.field.setAttribute("aria-label", `After this turn: ${figures}`);
    this.#tell(step, scene, figures);
  }

  /** @param {number} step @param {Scene} scene @param {string} figures */
  async #tell(step, scene, figures) {
    const place = `Turn ${number(step + 1)} of ${number(this.source?.steps)}`;
    const turn = this.#said.get(scene.turn);
    const told = turn ? ` · ${speakerOf(turn)}, ${moment(turn.said)}: “${clip(textOf(turn), 120)}”` : "";
    this.head.textContent = `${place}${told} · ${figures}`;
    this.slider.setAttribute("aria-valuetext", `${place}${told}, ${figures}`);
    fill(this.changes, this.#list("Woke up", scene.resurrected), this.#list("Fell asleep", scene.pruned));
    const listed = [...scene.resurrected, ...scene.pruned].slice(0, 2 * LISTED);
    const missing = [scene.turn, ...listed.map((key) => parts(key).turn)]
      .find((id) => !this.#said.has(id) && this.timeline?.turns.includes(id));
    if (!missing || !(await this.#texts(missing))) return;
    if (Number(this.slider.value) - 1 === step) this.#tell(step, scene, figures);
  }

  /** @param {string} title @param {string[]} keys */
  #list(title, keys) {
    if (!keys.length) return null;
    const more = keys.length > LISTED ? h("li", { class: "quiet", text: `… and ${keys.length - LISTED} more` }) : null;
    const items = keys.slice(0, LISTED).map((key) => {
      const on = { click: () => this.app.store.tell("goto", key) };
      return h("li", {}, h("button", { type: "button", class: "match", on },
        h("span", { class: "row-text", text: this.#textOf(key) })));
    });
    return h("div", {}, h("h4", { text: `${title}: ${keys.length}` }), h("ul", { class: "matches" }, items, more));
  }

  /** @param {string} key */
  #textOf(key) {
    const chunk = this.#said.get(parts(key).turn)?.chunks.find((one) => one.key === key);
    const live = this.app.store.live?.find(key);
    const text = chunk?.text_pieces.join("") ?? live?.pieces.join("");
    if (text) return clip(plainOf(text), 120);
    return this.timeline?.turns.includes(parts(key).turn) ? "…" : "Something that was said in another window";
  }

  /** @param {string} turnId */
  async #texts(turnId) {
    const { api, store } = this.app;
    const { current } = store;
    const page = await this.app.attempt(() => api.turns(current, { around: turnId, limit: PAGE }));
    if (!page || current !== this.#window) return false;
    for (const turn of page.turns) this.#said.set(turn.turn_id, turn);
    return this.#said.has(turnId);
  }

  /** @param {Timeline} timeline @param {Scene} scene */
  #paint(timeline, { states, light, resurrected, pruned }) {
    const { field } = this;
    const width = field.clientWidth || 300;
    const count = Math.max(1, timeline.chunks.length);
    let cell = 18;
    while (cell > 2 && Math.ceil(count / Math.floor(width / cell)) * cell > TALLEST) cell -= 1;
    this.#cell = cell;
    this.#columns = Math.floor(width / cell);
    const height = Math.ceil(count / this.#columns) * cell;
    const ratio = devicePixelRatio || 1;
    field.style.height = `${height}px`;
    field.width = Math.round(width * ratio);
    field.height = Math.round(height * ratio);
    const ink = field.getContext("2d");
    if (!ink) return;
    ink.setTransform(ratio, 0, 0, ratio, 0, 0);
    const style = getComputedStyle(field);
    const colour = (/** @type {string} */ name) => style.getPropertyValue(name).trim();
    const [asleep, live, pinned, spark, gone] =
      ["--ribbon-asleep", "--ribbon-live", "--part-pinned", "--ribbon-spark", "--ink-soft"].map(colour);
    const came = new Set(resurrected), went = new Set(pruned);
    const side = cell > 4 ? cell - 2 : cell - 0.5;
    timeline.chunks.forEach(({ key, foreign }, i) => {
      const state = states[i];
      if (state === UNSAID || (foreign && state < LIVE && !went.has(key))) return;
      const [x, y] = [(i % this.#columns) * cell, Math.floor(i / this.#columns) * cell];
      ink.globalAlpha = state >= LIVE && light ? 0.3 + 0.7 * light[i] : 1;
      ink.fillStyle = state === PINNED ? pinned : state >= LIVE ? live : asleep;
      const inset = state >= LIVE ? 0 : side / 4;
      ink.fillRect(x + inset, y + inset, side - 2 * inset, side - 2 * inset);
      ink.globalAlpha = 1;
      if (!came.has(key) && !went.has(key)) return;
      ink.strokeStyle = came.has(key) ? spark : gone;
      ink.lineWidth = came.has(key) ? 2 : 1;
      ink.strokeRect(x + 0.5, y + 0.5, side - 1, side - 1);
    });
  }

  /** @param {MouseEvent} event */
  #go(event) {
    const box = this.field.getBoundingClientRect();
    const column = Math.floor((event.clientX - box.left) / this.#cell);
    const row = Math.floor((event.clientY - box.top) / this.#cell);
    const chunk = column < this.#columns ? this.timeline?.chunks[row * this.#columns + column] : undefined;
    if (chunk) this.app.store.tell("goto", chunk.key);
  }
}

/** @param {SaidTurn} turn */
function textOf(turn) {
  return plainOf(turn.chunks.filter((one) => !one.thought).flatMap((one) => one.text_pieces).join(""));
}
