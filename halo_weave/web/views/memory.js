// The structured memory: a tree that the model and the user keep together, and questions to it.

import { fill, h, icon, iconButton, onSubmit } from "../dom.js";
import { clip, percent, similarity } from "../words.js";
import { EntryView } from "./entry.js";

const ABOUT = "What the model has saved for itself, under headings. You can read and change all of it.";
const NONE = "Nothing is saved yet. The model saves what it wants to remember; you can add an entry, too.";

export class MemoryView {
  title = "Memory";
  /** Headings below the first level that were opened. @type {Set<string>} */
  #open = new Set();
  /** Headings of the first level are open unless they were closed. @type {Set<string>} */
  #closed = new Set();
  /** The entry that is shown below the tree. */
  #path = "";
  #stale = true;
  #loading = false;

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.entry = new EntryView(app, this);
    const label = "Ask this memory";
    this.query = h("input", { type: "search", class: "field", placeholder: label, "aria-label": label });
    this.form = h("form", { class: "filters", on: onSubmit(() => this.#ask()) }, this.query,
      iconButton("plus", "New entry", () => this.entry.edit(null), { text: true, class: "small" }));
    this.tree = h("div", { class: "tree" });
    const about = h("p", { class: "quiet", text: ABOUT });
    this.node = h("div", { class: "drawer-body" }, about, this.form, this.tree, this.entry.node);
    this.query.addEventListener("search", () => !this.query.value && this.load());
    app.store.on("memory", () => this.node.isConnected && this.load());
    for (const topic of ["connection", "status"]) app.store.on(topic, () => this.#catchUp());
  }

  shown() {
    this.#stale = true;
    this.load();
  }

  /** Loads what could not be loaded before. */
  #catchUp() {
    if (this.node.isConnected && this.#stale && !this.#loading && this.app.reachable) this.load();
  }

  async load() {
    this.#loading = true;
    const root = await this.app.attempt(() => this.app.api.memory());
    this.#loading = false;
    if (!root) return;
    this.#stale = false;
    const focused = /** @type {HTMLElement | null} */ (this.tree.querySelector(":focus"))?.dataset.path;
    const rows = root.children.map((child) => this.#branch(child, 1));
    fill(this.tree, rows.length
      ? h("ul", { role: "tree", "aria-label": "Structured memory" }, rows)
      : h("p", { class: "quiet pad", text: NONE }));
    this.#choose();
    if (focused !== undefined) this.focus(focused);
  }

  get #rows() {
    return /** @type {HTMLElement[]} */ ([...this.tree.querySelectorAll(".branch")]);
  }

  get #visible() {
    return this.#rows.filter((row) => row.offsetParent);
  }

  /** The row of an entry; if it is not to be seen, the next best place. @param {string} path */
  focus(path) {
    const rows = this.#visible;
    (rows.find((row) => row.dataset.path === path) ?? rows.find((row) => row.tabIndex === 0) ?? this.query).focus();
  }

  /** An entry is shown below the tree: its row is marked, and Tab comes to it. @param {string} path "" for none */
  chosen(path) {
    this.#path = path;
    this.#choose();
  }

  #choose() {
    const rows = this.#rows;
    const reachable = rows.find((row) => row.dataset.path === this.#path) ?? rows[0];
    for (const row of rows) {
      const is = row.dataset.path === this.#path;
      row.classList.toggle("chosen", is);
      row.setAttribute("aria-selected", String(is));
      row.tabIndex = row === reachable ? 0 : -1;
    }
  }

  /** @param {Branch} branch @param {number} level @returns {HTMLElement} */
  #branch(branch, level) {
    const open = level === 1 ? !this.#closed.has(branch.path) : this.#open.has(branch.path);
    const row = this.#row(branch, level, open);
    const inner = branch.children.map((child) => this.#branch(child, level + 1));
    const children = inner.length ? h("ul", { role: "group", hidden: !open }, inner) : null;
    const toggle = (/** @type {boolean} */ to) => {
      if (!children) return;
      children.hidden = !to;
      row.setAttribute("aria-expanded", String(to));
      this.#open[to ? "add" : "delete"](branch.path);
      this.#closed[to ? "delete" : "add"](branch.path);
    };
    this.#listen(row, branch, toggle, () => Boolean(children?.hidden));
    return h("li", { role: "none" }, row, children);
  }

  /** @param {Branch} branch @param {number} level @param {boolean} open */
  #row({ heading, path, version, children }, level, open) {
    const leaf = !children.length;
    const about = { role: "treeitem", "aria-level": level, "aria-expanded": leaf ? null : String(open) };
    const row = h("div", { class: version === null ? "branch bare-heading" : "branch", data: { path }, ...about },
      leaf ? h("span", { class: "leaf", "aria-hidden": "true" }) : icon("chevron"),
      h("span", { class: "heading", text: heading }),
      version !== null && version > 1 && h("span", { class: "badge", text: `v${version}` }),
      !leaf && h("span", { class: "quiet", text: String(children.length) }));
    row.style.paddingInlineStart = `${0.4 + (level - 1) * 1.1}rem`;
    return row;
  }

  /**
   * @param {HTMLElement} row @param {Branch} branch
   * @param {(to: boolean) => void} toggle @param {() => boolean} closed
   */
  #listen(row, { path, version }, toggle, closed) {
    const choose = () => (version !== null ? this.entry.show(path) : toggle(closed()));
    row.addEventListener("click", (event) => {
      const arrow = /** @type {Element} */ (event.target).closest("svg");
      if (arrow) return toggle(closed());
      choose();
      if (version !== null) toggle(true);
    });
    /** @type {Record<string, () => unknown>} */
    const keys = {
      Enter: choose, " ": choose, ArrowRight: () => toggle(true), ArrowLeft: () => toggle(false),
      ArrowDown: () => this.#step(row, 1), ArrowUp: () => this.#step(row, -1),
      Delete: () => version !== null && this.entry.delete(path),
    };
    row.addEventListener("keydown", (event) => {
      const act = keys[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    });
  }

  /** @param {HTMLElement} from @param {number} steps */
  #step(from, steps) {
    const rows = this.#visible;
    const to = rows[rows.indexOf(from) + steps];
    if (!to) return;
    from.tabIndex = -1;
    to.tabIndex = 0;
    to.focus();
  }

  async #ask() {
    const text = this.query.value.trim();
    if (!text) return this.load();
    const found = await this.app.attempt(() => this.app.api.queryMemory("", text));
    if (!found) return;
    const items = found.matches.map(({ entry, similarity: near, recency }) => {
      const on = { click: () => this.entry.show(entry.path) };
      return h("li", {}, h("button", { type: "button", class: "match", on },
        h("span", { class: "heading", text: entry.path }),
        h("span", { class: "quiet", text: `similar ${similarity(near)} · recent ${percent(recency)}` }),
        h("span", { class: "row-text", text: clip(JSON.stringify(entry.content), 140) })));
    });
    fill(this.tree, items.length
      ? h("ul", { class: "matches", "aria-label": "Entries found" }, items)
      : h("p", { class: "quiet pad", text: "No entry fits." }));
  }
}
