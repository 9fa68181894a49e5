// The graveyard: what sleeps in this window. A click wakes a chunk up at its place, pinned.

import { debounced, fill, h, iconButton } from "../dom.js";
import { clip, counted, exactly, moment, number, parts, speakerOf } from "../words.js";
import { Rows } from "./rows.js";

const HEIGHT = 104;

export class GraveyardView {
  title = "Graveyard";

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.sort = h("select", { class: "field", "aria-label": "Sort by" },
      option("slept", "Fell asleep"), option("peak", "Peak"), option("tokens", "Size"), option("position", "Time said"));
    this.order = h("select", { class: "field", "aria-label": "Order" }, option("desc", ""), option("asc", ""));
    this.role = h("select", { class: "field", "aria-label": "Who said it" }, option("", "All"), option("user", ""), option("assistant", ""));
    this.text = h("input", { type: "search", class: "field", placeholder: "Filter by text", "aria-label": "Filter by text" });
    this.count = h("p", { class: "quiet", role: "status" });
    /** @type {Rows<Sleeping>} */
    this.rows = new Rows({
      height: HEIGHT, label: "Sleeping chunks", load: (offset, limit) => this.#load(offset, limit), row: (item) => this.#row(item),
      empty: () => h("p", { class: "quiet pad", text: this.text.value || this.role.value ? "Nothing that sleeps fits this filter." : "Nothing sleeps here. When the window is over its budget, the dimmest chunks come here; nothing is ever lost." }),
    });
    this.node = h("div", { class: "drawer-body fixed" }, h("div", { class: "filters" }, this.text, h("div", { class: "filter-line" }, this.sort, this.order, this.role)), this.count, this.rows.node);
    const reload = () => {
      this.rows.node.scrollTop = 0;
      this.rows.reload();
    };
    this.sort.addEventListener("change", () => this.#name());
    for (const one of [this.sort, this.order, this.role]) one.addEventListener("change", reload);
    this.text.addEventListener("input", debounced(reload, 250));
    for (const topic of ["graveyard", "done"]) app.store.on(topic, () => this.node.isConnected && this.rows.reload());
    app.store.on("window", () => this.node.isConnected && reload());
    for (const topic of ["window", "windows"]) app.store.on(topic, () => this.#name());
    this.#name();
  }

  get #bySleep() {
    return this.sort.value === "slept";
  }

  /** The order in the words of what is sorted, and who speaks in this window. */
  #name() {
    const { store } = this.app;
    const orders = this.#bySleep || this.sort.value === "position" ? ["Newest first", "Oldest first"] : ["High to low", "Low to high"];
    orders.forEach((text, i) => (this.order.options[i].text = text));
    [store.nameOf("user"), store.nameOf("assistant")].forEach((text, i) => (this.role.options[i + 1].text = clip(text, 40)));
  }

  shown() {
    this.rows.reload();
  }

  /** @param {number} offset @param {number} limit */
  async #load(offset, limit) {
    const { store, api } = this.app;
    if (!store.current) return { total: 0, items: [] };
    const page = await this.app.attempt(() => api.graveyard(store.current, { offset, limit, sort: this.sort.value, order: this.order.value, role: this.role.value, text: this.text.value.trim() }));
    if (page) this.count.textContent = `${counted(page.total, "chunk")} ${this.text.value || this.role.value ? "found" : "asleep"}`;
    return page;
  }

  /** @param {Sleeping} item */
  #row(item) {
    const { turn, chunk } = parts(item.key);
    const about = `${speakerOf(item)} ${turn}.${chunk} · ${counted(item.tokens, "token")} · peak ${number(item.peak)}`;
    const long = `Turn ${turn}, chunk ${chunk}. Wake it up at its place, pinned.`;
    const time = this.#bySleep
      ? h("time", { datetime: item.slept, title: `Fell asleep ${exactly(item.slept)}, said ${exactly(item.said)}`, text: `asleep ${moment(item.slept)}` })
      : h("time", { datetime: item.said, title: `Said ${exactly(item.said)}`, text: moment(item.said) });
    const wake = h("button", { type: "button", class: "row-open", title: long, on: { click: () => this.app.wake(item.key) } },
      h("span", { class: "row-head" }, h("span", { class: "row-about", text: about }), time),
      h("span", { class: "row-text", text: clip(item.text, 220) }));
    const node = h("div", { class: `grave ${item.role}` });
    fill(node, wake, iconButton("why", "Why?", () => this.app.why(item.key), { class: "small" }));
    return node;
  }
}

/** @param {string} value @param {string} text */
function option(value, text) {
  return h("option", { value, text });
}
