// The graveyard: what sleeps in this window. A click wakes a chunk up at its place, pinned.

import { debounced, h, iconButton } from "../dom.js";
import { clip, counted, exactly, moment, number, parts, speakerOf } from "../words.js";
import { Rows } from "./rows.js";

const HEIGHT = 104;
const NONE_FITS = "Nothing that sleeps fits this filter.";
const NONE = "Nothing sleeps here. When the window is over its budget, the dimmest chunks come here; " +
  "nothing is ever lost.";

export class GraveyardView {
  title = "Graveyard";

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.sort = select("Sort by", [
      ["slept", "Fell asleep"], ["peak", "Peak"], ["tokens", "Size"], ["position", "Time said"],
    ]);
    this.order = select("Order", [["desc", ""], ["asc", ""]]);
    this.role = select("Who said it", [["", "All"], ["user", ""], ["assistant", ""]]);
    const label = "Filter by text";
    this.text = h("input", { type: "search", class: "field", placeholder: label, "aria-label": label });
    this.count = h("p", { class: "quiet", role: "status" });
    /** @type {Rows<Sleeping>} */
    this.rows = new Rows({
      height: HEIGHT, label: "Sleeping chunks", row: (item) => this.#row(item),
      load: (offset, limit) => this.#load(offset, limit),
      empty: () => h("p", { class: "quiet pad", text: this.#filtered ? NONE_FITS : NONE }),
    });
    const line = h("div", { class: "filter-line" }, this.sort, this.order, this.role);
    const filters = h("div", { class: "filters" }, this.text, line);
    this.node = h("div", { class: "drawer-body fixed" }, filters, this.count, this.rows.node);
    this.#listen();
    this.#name();
  }

  #listen() {
    const { store } = this.app;
    const anew = () => {
      this.rows.node.scrollTop = 0;
      this.rows.reload();
    };
    this.sort.addEventListener("change", () => this.#name());
    for (const one of [this.sort, this.order, this.role]) one.addEventListener("change", anew);
    this.text.addEventListener("input", debounced(anew, 250));
    store.on("graveyard", () => this.node.isConnected && this.rows.reload());
    store.on("window", () => this.node.isConnected && anew());
    for (const topic of ["window", "windows"]) store.on(topic, () => this.#name());
  }

  get #filtered() {
    return Boolean(this.text.value || this.role.value);
  }

  get #bySleep() {
    return this.sort.value === "slept";
  }

  /** The order in the words of what is sorted, and who speaks in this window. */
  #name() {
    const { store } = this.app;
    const byTime = this.#bySleep || this.sort.value === "position";
    const orders = byTime ? ["Newest first", "Oldest first"] : ["High to low", "Low to high"];
    orders.forEach((text, i) => (this.order.options[i].text = text));
    const speakers = [store.nameOf("user"), store.nameOf("assistant")];
    speakers.forEach((text, i) => (this.role.options[i + 1].text = clip(text, 40)));
  }

  shown() {
    this.rows.reload();
  }

  /** @param {number} offset @param {number} limit */
  async #load(offset, limit) {
    const { store, api } = this.app;
    if (!store.current) return { total: 0, items: [] };
    const filter = { role: this.role.value, text: this.text.value.trim() };
    const query = { offset, limit, sort: this.sort.value, order: this.order.value, ...filter };
    const page = await this.app.attempt(() => api.graveyard(store.current, query));
    if (page) this.count.textContent = `${counted(page.total, "chunk")} ${this.#filtered ? "found" : "asleep"}`;
    return page;
  }

  /** @param {Sleeping} item */
  #row(item) {
    const { turn, chunk } = parts(item.key);
    const about = `${speakerOf(item)} ${turn}.${chunk} · ${counted(item.tokens, "token")} · peak ${number(item.peak)}`;
    const title = `Turn ${turn}, chunk ${chunk}. Wake it up at its place, pinned.`;
    const on = { click: () => this.app.wake(item.key) };
    return h("div", { class: `grave ${item.role}` },
      h("button", { type: "button", class: "row-open", title, on },
        h("span", { class: "row-head" }, h("span", { class: "row-about", text: about }), this.#time(item)),
        h("span", { class: "row-text", text: clip(item.text, 220) })),
      iconButton("why", "Why?", () => this.app.why(item.key), { class: "small" }));
  }

  /** When it fell asleep if the list is sorted by that, else when it was said. @param {Sleeping} item */
  #time({ slept, said }) {
    if (!this.#bySleep) return h("time", { datetime: said, title: `Said ${exactly(said)}`, text: moment(said) });
    const title = `Fell asleep ${exactly(slept)}, said ${exactly(said)}`;
    return h("time", { datetime: slept, title, text: `asleep ${moment(slept)}` });
  }
}

/** @param {string} label @param {[string, string][]} options value and text */
function select(label, options) {
  const nodes = options.map(([value, text]) => h("option", { value, text }));
  return h("select", { class: "field", "aria-label": label }, nodes);
}
