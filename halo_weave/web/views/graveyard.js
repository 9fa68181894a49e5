// The graveyard: what sleeps in this window, and what was deleted. A click reads a chunk; waking it is a button.

import { debounced, h, iconButton } from "../dom.js";
import { clip, counted, exactly, moment, number, parts, speakerOf } from "../words.js";
import { phrase, Prose } from "./prose.js";
import { Rows } from "./virtual-list.js";

const HEIGHT = 104;
const ROW = 240; // characters of a text in a row
const NONE_FITS = "No sleeping passage matches this filter.";
const NONE_DELETED = "Nothing that was said in this window is deleted.";
const ABOUT = "Passages that the model does not see now. They wake up when you speak of them, or by hand.";
const NONE = "Nothing is asleep here. When the window is over its budget, its dimmest passages come here; " +
  "nothing is ever lost.";

export class GraveyardView {
  title = "Graveyard";

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.sort = select("Sort by", [
      ["pruned", "Fell asleep"], ["peak", "Peak"], ["tokens", "Size"], ["position", "Time said"],
    ]);
    this.order = select("Order", [["desc", ""], ["asc", ""]]);
    this.role = select("Who said it", [["", "All"], ["user", ""], ["assistant", ""]]);
    const label = "Filter by text";
    this.text = h("input", { type: "search", class: "field", placeholder: label, "aria-label": label });
    this.count = h("p", { class: "quiet", role: "status", title: ABOUT });
    this.which = select("Which chunks", [["asleep", "Asleep"], ["deleted", "Deleted by you"]]);
    /** @type {Rows<PrunedItem>} */
    this.rows = new Rows({
      height: HEIGHT, label: "PrunedItem chunks", row: (item) => this.#row(item),
      load: (offset, limit) => this.#load(offset, limit),
      empty: () => h("p", { class: "quiet pad", text: this.#noneWords }),
    });
    this.line = h("div", { class: "filter-line" }, this.sort, this.order, this.role);
    const filters = h("div", { class: "filters" }, this.which, this.text, this.line);
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
    this.which.addEventListener("change", () => {
      this.text.hidden = this.line.hidden = this.#deleted;
      anew();
    });
    for (const one of [this.sort, this.order, this.role]) one.addEventListener("change", anew);
    this.text.addEventListener("input", debounced(anew, 250));
    store.on("graveyard", () => this.node.isConnected && this.rows.reload());
    store.on("window", () => this.node.isConnected && anew());
    for (const topic of ["window", "windows"]) store.on(topic, () => this.#name());
  }

  get #deleted() {
    return this.which.value === "deleted";
  }

  get #noneWords() {
    return this.#deleted ? NONE_DELETED : this.#filtered ? NONE_FITS : NONE;
  }

  get #filtered() {
    return Boolean(this.text.value || this.role.value);
  }

  get #bySleep() {
    return this.sort.value === "pruned";
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
    if (this.#deleted) return this.#loadDeleted(offset, limit);
    const filter = { role: this.role.value, text: this.text.value.trim() };
    const query = { offset, limit, sort: this.sort.value, order: this.order.value, ...filter };
    const page = await this.app.attempt(() => api.graveyard(store.current, query));
    const tokens = this.#filtered ? "" : `, ${counted(store.stats?.pruned_tokens ?? 0, "token")}`;
    const words = this.#filtered ? "found" : "asleep";
    if (page) this.count.textContent = `${counted(page.total, "chunk")}${tokens} ${words}`;
    return page;
  }

  /** @param {number} offset @param {number} limit */
  async #loadDeleted(offset, limit) {
    const { store, api } = this.app;
    const page = await this.app.attempt(() => api.deleted(store.current, { offset, limit }));
    if (page) this.count.textContent = `${counted(page.total, "chunk")} deleted`;
    const items = page?.items.map((one) => ({ ...one, peak: 0, reason: {}, pruned: one.deleted })) ?? [];
    return page && { total: page.total, items };
  }

  /** @param {PrunedItem} item */
  #row(item) {
    const { turn, chunk } = parts(item.key);
    const peak = this.#deleted ? "" : ` · peak ${number(item.peak)}`;
    const about = `${speakerOf(item)} ${turn}.${chunk} · ${counted(item.tokens, "token")}${peak}`;
    const title = `Turn ${turn}, chunk ${chunk}. Read it.`;
    const on = { click: () => this.read(item) };
    const [icon, label, act] = this.#way(item);
    return h("div", { class: `grave ${item.role}` },
      h("button", { type: "button", class: "row-open", title, on },
        h("span", { class: "row-head" }, h("span", { class: "row-about", text: about }), this.#time(item)),
        h("span", { class: "row-text" }, this.#words(item.text))),
      iconButton(icon, label, act, { class: "small writes" }));
  }

  /** @param {string} text */
  #words(text) {
    return this.app.preferences.values.form === "raw" ? [clip(text, ROW)] : phrase(text, ROW);
  }

  /** The way back of a chunk. @param {PrunedItem} item @returns {["undo" | "wake", string, () => void]} */
  #way({ key }) {
    if (this.#deleted) return ["undo", "Undelete", () => this.app.restore([key])];
    return ["wake", "Wake up here, pinned", () => this.app.resurrect(key)];
  }

  /** The whole text, and what can be done with it. @param {PrunedItem} item */
  read(item) {
    const text = h("div", { class: "text why-text" });
    new Prose(text, () => "").show([item.text], { raw: this.app.preferences.values.form === "raw" });
    const [icon, label, act] = this.#way(item);
    const done = (/** @type {() => void} */ then) => () => {
      close();
      then();
    };
    const about = `${speakerOf(item)} · said ${exactly(item.said)} · ${counted(item.tokens, "token")}`;
    const { close } = this.app.dialogs.sheet(this.#deleted ? "Deleted" : "Asleep", "wide",
      h("p", { class: "quiet", text: about }), text,
      h("div", { class: "answers" },
        iconButton("copy", "Copy", () => this.app.copy(item.text), { text: true }),
        ...(this.#deleted ? [] : [iconButton("why", "Why?", done(() => this.app.explain(item.key)), { text: true })]),
        iconButton(icon, label, done(act), { text: true, class: "primary writes" })));
  }

  /** When it fell asleep if the list is sorted by that, else when it was said. @param {PrunedItem} item */
  #time({ pruned, said }) {
    if (!this.#bySleep || this.#deleted) {
      return h("time", { datetime: said, title: `Said ${exactly(said)}`, text: moment(said) });
    }
    const title = `Fell asleep ${exactly(pruned)}, said ${exactly(said)}`;
    return h("time", { datetime: pruned, title, text: `asleep ${moment(pruned)}` });
  }
}

/** @param {string} label @param {[string, string][]} options value and text */
function select(label, options) {
  const nodes = options.map(([value, text]) => h("option", { value, text }));
  return h("select", { class: "field", "aria-label": label }, nodes);
}
