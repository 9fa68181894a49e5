// The lab: the window watched turn by turn, strategies compared, a digest; how brightness is spread, and figures.

import { histogram } from "../colour.js";
import { fill, h } from "../dom.js";
import { clip, counted, number, parts, percent, size, speakerOf } from "../words.js";
import { DigestView } from "./digest.js";
import { ReplayView } from "./replay.js";
import { StrategiesView } from "./strategies.js";

const BINS = 24;
const DIMMEST = "Unpinned, dimmest first: the first to fall asleep when the window is over its budget. " +
  "A turn's opening stays as long as the rest of its exchange.";

export class LabView {
  title = "Lab";
  #soon = 0;

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.bars = h("div", { class: "histogram", role: "img" });
    for (let i = 0; i < BINS; i++) this.bars.append(h("span", {}));
    this.scale = h("p", { class: "scale quiet" });
    this.dim = h("ol", { class: "dimmest" });
    this.turn = h("dl", { class: "facts" });
    this.model = h("dl", { class: "facts" });
    const legend = h("p", { class: "lab-legend quiet" },
      h("span", { text: "dim" }), h("span", { class: "ramp" }), h("span", { text: "bright" }),
      h("span", { class: "legend-hot hot6", text: "top 20 %" }),
      h("span", { class: "legend-tool tool", text: "tool" }));
    this.replay = new ReplayView(app);
    this.strategies = new StrategiesView(app, (strategy, query) => this.replay.watch(strategy, query));
    this.digest = new DigestView(app);
    this.node = h("div", { class: "drawer-body" },
      this.replay.node, this.strategies.node, this.digest.node,
      group("Brightness of the live tokens", this.bars, this.scale, legend),
      group("Dimmest chunks", h("p", { class: "quiet", text: DIMMEST }), this.dim),
      group("Last turn", this.turn),
      group("Model", this.model));
    for (const topic of ["brightness", "live", "turn", "status"]) app.store.on(topic, () => this.#showSoon());
    for (const topic of ["window", "done", "graveyard"]) app.store.on(topic, () => this.#load());
  }

  /** What happened since, if somebody looks. */
  #load() {
    if (!this.node.isConnected) return;
    this.replay.load();
    this.strategies.load();
  }

  #showSoon() {
    if (!this.node.isConnected) return;
    this.#soon ||= window.setTimeout(() => {
      this.#soon = 0;
      this.#figures();
    }, 300);
  }

  shown() {
    this.#load();
    this.#figures();
  }

  #figures() {
    const { turn, status, stats } = this.app.store;
    this.#showSpread();
    this.#showDimmest();
    facts(this.turn, Object.entries(turn.stats).map(([name, value]) => {
      const told = Number(value); // true is 1
      return [name.replaceAll("_", " "), Number.isInteger(told) ? number(told) : told.toFixed(2)];
    }));
    const model = status?.model;
    facts(this.model, model ? [
      ["name", model.name || "none"], ["architecture", model.architecture], ["layers", number(model.layers)],
      ["heads", number(model.heads)], ["context", counted(model.context, "token")], ["size", size(model.size_bytes)],
      ["KV cache", model.kv_mode], ["KV reuse", percent(stats?.kv_reuse)],
    ] : []);
  }

  #showSpread() {
    const { live } = this.app.store;
    const [low, high] = live ? [number(live.low), number(live.high)] : ["", ""];
    const bins = live ? histogram(live.all.map((chunk) => chunk.brightness), live.low, live.high, BINS) : [];
    const most = Math.max(1, ...bins);
    [...this.bars.children].forEach((bar, i) => {
      const node = /** @type {HTMLElement} */ (bar);
      const share = Math.log1p(bins[i] ?? 0) / Math.log1p(most);
      node.style.height = `${share ? Math.max(3, 100 * share) : 0}%`;
      node.style.setProperty("--heat", String(i / (BINS - 1)));
      node.title = counted(bins[i] ?? 0, "token");
    });
    const words = live ? `${counted(live.tokens, "token")} between ${low} and ${high}` : "Nothing live";
    this.bars.setAttribute("aria-label", words);
    fill(this.scale, [low, "tokens, on a logarithmic scale", high].map((text) => h("span", { text })));
  }

  #showDimmest() {
    const { store } = this.app;
    const unpinned = store.live?.chunks.filter((chunk) => !chunk.pinned) ?? [];
    const dimmest = unpinned.sort((a, b) => a.peak - b.peak).slice(0, 8);
    fill(this.dim, dimmest.map((chunk) => {
      const on = { click: () => store.tell("goto", chunk.key) };
      return h("li", {}, h("button", { type: "button", class: "match", on },
        h("span", { class: "quiet", text: aboutChunk(chunk) }),
        h("span", { class: "row-text", text: clip(chunk.pieces.join(""), 120) })));
    }));
    if (!dimmest.length) fill(this.dim, h("li", { class: "quiet", text: "No chunks yet." }));
  }
}

/** @param {string} title @param {...Node} nodes */
function group(title, ...nodes) {
  return h("section", { class: "group" }, h("h3", { text: title }), ...nodes);
}

/** @param {LiveChunk} chunk */
function aboutChunk({ key, turn, peak, mean, pieces }) {
  const speaker = `${speakerOf(turn)}, turn ${parts(key).turn}`;
  return `peak ${number(peak)} · mean ${number(mean)} · ${speaker} · ${counted(pieces.length, "token")}`;
}

/** @param {HTMLElement} place @param {string[][]} facts name and value */
function facts(place, facts) {
  const known = facts.filter(([, value]) => value);
  const shown = known.length ? known : [["Nothing yet", ""]];
  fill(place, shown.map(([name, value]) => h("div", {}, h("dt", { text: name }), h("dd", { text: value }))));
}
