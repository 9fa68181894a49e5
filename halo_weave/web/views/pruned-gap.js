// The quiet line where chunks are asleep between two that are live. It opens in place.

import { fill, h, icon, iconButton } from "../dom.js";
import { counted, extent, moment, number, speakerOf } from "../words.js";
import { Prose } from "./prose.js";

const PAGE = 200;
const MOST = 1000; // that the server gives at once

export class PrunedGapView {
  open = false;
  #loads = 0;
  #shown = 0;

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.list = h("div", { class: "gap-list", hidden: true });
    this.left = h("span", {});
    const show = { class: "button small", text: "Show them", on: { click: () => this.more({ focus: true }) } };
    this.further = h("p", { class: "quiet" }, this.left, " ", h("button", { type: "button", ...show }));
    this.words = h("span", {});
    const line = { class: "gap-line", "aria-expanded": "false", on: { click: () => this.toggle() } };
    this.button = h("button", { type: "button", ...line }, icon("chevron"), this.words);
    this.node = h("div", { class: "gap" }, this.button, this.list);
    /** @type {string | null} */
    this.after = null;
    /** @type {string | null} */
    this.before = null;
  }

  /**
   * @param {PrunedGap} gap @param {string | null} after @param {string | null} before
   * @param {number} [thoughts] of its chunks
   */
  adopt(gap, after, before, thoughts = 0) {
    const words = thoughts === gap.chunks ? `Thought, ${counted(gap.tokens, "token")}` : `${extent(gap)} asleep`;
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

  /** Opens and goes to a chunk. @param {string} key @returns {Promise<boolean>} whether it sleeps here */
  async reveal(key) {
    await (this.open ? this.load() : this.toggle());
    const find = () => this.list.querySelector(`[data-key="${CSS.escape(key)}"]`);
    while (!find() && (await this.more({ limit: MOST })));
    const node = /** @type {HTMLElement | null} */ (find());
    node?.scrollIntoView({ block: "center" });
    node?.focus({ preventScroll: true });
    node?.classList.add("found");
    return Boolean(node);
  }

  /** Those that sleep here now, as many as were shown. */
  async load() {
    if (!this.list.children.length) fill(this.list, h("p", { class: "quiet", text: "Looking…" }));
    const found = await this.#ask(0, Math.min(Math.max(this.#shown, PAGE), MOST));
    if (!found) return;
    this.#loads++;
    this.#shown = 0;
    const none = h("p", { class: "quiet", text: "Nothing is asleep here any more." });
    fill(this.list, found.items.length ? this.further : none);
    this.#show(found);
  }

  /** Shows the next. @param {{limit?: number, focus?: boolean}} [how] @returns {Promise<boolean>} if there were any */
  async more({ limit = PAGE, focus = false } = {}) {
    if (!this.further.parentNode) return false;
    const loads = ++this.#loads; // what was asked for before is about another end of the list
    const found = await this.#ask(this.#shown, limit);
    if (!found || loads !== this.#loads) return false;
    const [first] = this.#show(found);
    if (focus) first?.focus();
    return Boolean(first);
  }

  /** @param {number} offset @param {number} limit */
  #ask(offset, limit) {
    const { after, before } = this;
    const { api, store } = this.app;
    return this.app.attempt(() => api.pruned(store.current, { from: after, to: before, offset, limit }));
  }

  /** After those that are shown. @param {{total: number, items: PrunedItem[]}} found */
  #show({ total, items }) {
    const nodes = items.map((item) => this.#item(item));
    this.further.before(...nodes);
    this.#shown += nodes.length;
    this.left.textContent = `… and ${number(total - this.#shown)} more`;
    if (this.#shown >= total || !nodes.length) this.further.remove();
    return nodes;
  }

  /** @param {PrunedItem} item */
  #item(item) {
    const about = [
      speakerOf(item), moment(item.said), `${number(item.tokens)} tokens`, `peak ${number(item.peak)}`,
    ].join(" · ");
    const text = h("div", { class: "sleeper-text" });
    new Prose(text, () => "").show([item.text], { raw: this.app.preferences.values.form === "raw" });
    return h(
      "div", { class: "sleeper", tabindex: "-1", data: { key: item.key } },
      h("div", { class: "sleeper-head" },
        h("span", { text: about }),
        iconButton("wake", "Wake up", () => this.app.resurrect(item.key), { text: true, class: "small writes" }),
        iconButton("why", "Why?", () => this.app.explain(item.key), { class: "small" })),
      text,
    );
  }
}
