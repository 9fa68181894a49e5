// The lab: how brightness is spread, who is dimmest, and what the last turn cost.

import { histogram } from "../colour.js";
import { fill, h } from "../dom.js";
import { clip, counted, number, parts, percent, size, speakerOf } from "../words.js";

const BINS = 24;

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
    this.node = h("div", { class: "drawer-body" },
      h("section", { class: "group" }, h("h3", { text: "Brightness of the live tokens" }), this.bars, this.scale,
        h("p", { class: "lab-legend quiet" }, h("span", { text: "dim" }), h("span", { class: "ramp" }), h("span", { text: "bright" }), h("span", { class: "legend-hot hot6", text: "top 20 %" }), h("span", { class: "legend-tool tool", text: "tool" }))),
      h("section", { class: "group" }, h("h3", { text: "Dimmest chunks" }), h("p", { class: "quiet", text: "Unpinned, dimmest first: the first to fall asleep when the window is over its budget. A turn's opening stays as long as the rest of its exchange." }), this.dim),
      h("section", { class: "group" }, h("h3", { text: "Last turn" }), this.turn),
      h("section", { class: "group" }, h("h3", { text: "Model" }), this.model));
    const later = () => {
      if (this.node.isConnected) this.#soon ||= window.setTimeout(() => { this.#soon = 0; this.shown(); }, 300);
    };
    for (const topic of ["brightness", "live", "turn", "status"]) app.store.on(topic, later);
  }

  shown() {
    const { store } = this.app;
    const live = store.live;
    const bins = live ? histogram(live.all.map((chunk) => chunk.brightness), live.low, live.high, BINS) : [];
    const most = Math.max(1, ...bins);
    [...this.bars.children].forEach((bar, i) => {
      const node = /** @type {HTMLElement} */ (bar);
      node.style.height = `${bins[i] ? Math.max(3, (100 * Math.log1p(bins[i])) / Math.log1p(most)) : 0}%`;
      node.style.setProperty("--heat", String(i / (BINS - 1)));
      node.title = counted(bins[i] ?? 0, "token");
    });
    this.bars.setAttribute("aria-label", live ? `${counted(live.tokens, "token")} between ${number(live.low)} and ${number(live.high)}` : "Nothing live");
    fill(this.scale, h("span", { text: live ? number(live.low) : "" }), h("span", { text: "tokens, on a logarithmic scale" }), h("span", { text: live ? number(live.high) : "" }));
    const dim = live ? live.chunks.filter((chunk) => !chunk.pinned).sort((a, b) => a.peak - b.peak).slice(0, 8) : [];
    fill(this.dim, dim.map((chunk) => h("li", {}, h("button", { type: "button", class: "match", on: { click: () => store.tell("goto", chunk.key) } },
      h("span", { class: "quiet", text: `peak ${number(chunk.peak)} · mean ${number(chunk.mean)} · ${speakerOf(chunk.turn)}, turn ${parts(chunk.key).turn} · ${counted(chunk.pieces.length, "token")}` }),
      h("span", { class: "row-text", text: clip(chunk.pieces.join(""), 120) })))));
    if (!dim.length) fill(this.dim, h("li", { class: "quiet", text: "No chunks yet." }));
    this.#facts(this.turn, Object.entries(store.turn.stats).filter(([, value]) => typeof value === "number").map(([name, value]) => [name.replaceAll("_", " "), Number.isInteger(value) ? number(value) : value.toFixed(2)]));
    const model = store.status?.model;
    this.#facts(this.model, model ? [
      ["name", model.name || "none"], ["architecture", String(model.architecture ?? "")], ["layers", number(model.layers)], ["heads", number(model.heads)],
      ["context", counted(model.context, "token")], ["size", size(Number(model.size_bytes ?? 0))], ["KV cache", String(model.kv ?? "")], ["KV reuse", percent(store.stats?.kv_reuse)],
    ] : []);
  }

  /** @param {HTMLElement} place @param {[string, string][]} facts */
  #facts(place, facts) {
    const known = facts.filter(([, value]) => value);
    fill(place, known.map(([name, value]) => h("div", {}, h("dt", { text: name }), h("dd", { text: value }))));
    if (!known.length) fill(place, h("div", {}, h("dt", { text: "Nothing yet" }), h("dd", {})));
  }
}
