// The quiet line where chunks are asleep between two that are live. It opens in place.

import { fill, h, icon, iconButton } from "../dom.js";
import { extent, moment, number, speakerOf } from "../words.js";

export class GapView {
  open = false;

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.list = h("div", { class: "gap-list", hidden: true });
    this.words = h("span", {});
    this.button = h("button", { type: "button", class: "gap-line", "aria-expanded": "false", on: { click: () => this.toggle() } }, icon("chevron"), this.words);
    this.node = h("div", { class: "gap" }, this.button, this.list);
    /** @type {string | null} */
    this.after = null;
    /** @type {string | null} */
    this.before = null;
  }

  /** @param {Gap} gap @param {string | null} after @param {string | null} before */
  adopt(gap, after, before) {
    const words = `${extent(gap)} asleep`;
    const same = this.after === after && this.before === before && this.words.textContent === words;
    this.after = after;
    this.before = before;
    this.words.textContent = words;
    if (this.open && !same) this.load();
    return this;
  }

  /** @returns {Promise<void> | undefined} when what sleeps here is shown */
  toggle() {
    this.open = !this.open;
    this.button.setAttribute("aria-expanded", String(this.open));
    this.list.hidden = !this.open;
    this.node.classList.toggle("open", this.open);
    return this.open ? this.load() : undefined;
  }

  /** Opens where a chunk sleeps and goes to it. @param {string} key @returns {Promise<boolean>} whether it sleeps here */
  async reveal(key) {
    await (this.open ? this.load() : this.toggle());
    const node = /** @type {HTMLElement | null} */ (this.list.querySelector(`[data-key="${CSS.escape(key)}"]`));
    node?.scrollIntoView({ block: "center" });
    node?.focus({ preventScroll: true });
    node?.classList.add("found");
    return Boolean(node);
  }

  async load() {
    if (!this.list.children.length) fill(this.list, h("p", { class: "quiet", text: "Looking…" }));
    const found = await this.app.attempt(() => this.app.api.gap(this.app.store.current, this.after, this.before));
    if (!found) return;
    fill(this.list, found.items.map((item) => this.#item(item)));
    if (!found.items.length) fill(this.list, h("p", { class: "quiet", text: "Nothing sleeps here any more." }));
  }

  /** @param {Sleeping} item */
  #item(item) {
    return h(
      "div", { class: "sleeper", tabindex: "-1", data: { key: item.key } },
      h("div", { class: "sleeper-head" },
        h("span", { text: `${speakerOf(item)} · ${moment(item.said)} · ${number(item.tokens)} tokens · peak ${number(item.peak)}` }),
        iconButton("wake", "Wake up", () => this.app.wake(item.key), { text: true, class: "small" }),
        iconButton("why", "Why?", () => this.app.why(item.key), { class: "small" })),
      h("p", { class: "sleeper-text", text: item.text }),
    );
  }
}
