// A list of any length: only the rows near the view exist, and pages of them are fetched when they come near.

import { h } from "../dom.js";

const PAGE = 100;
const AROUND = 8; // rows kept beyond each edge of the view
/** @type {Record<string, number>} */
const STEPS = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8, Home: -Infinity, End: Infinity };

/** @template T */
export class Rows {
  /** @type {Map<number, T[]>} */
  #pages = new Map();
  /** @type {Set<number>} */
  #asked = new Set();
  /** @type {Map<number, {node: HTMLElement, item: T | null}>} */
  #shown = new Map();
  #age = 0;
  #frame = 0;
  /** The row that waits for the focus: its item is not there yet. @type {number | null} */
  #awaited = null;
  total = 0;

  /**
   * @param {object} about
   * @param {number} about.height of a row, in pixels @param {string} about.label
   * @param {(offset: number, limit: number) => Promise<{total: number, items: T[]} | undefined>} about.load
   * @param {(item: T) => HTMLElement} about.row @param {() => Node} about.empty
   */
  constructor(about) {
    this.about = about;
    this.space = h("ul", { class: "rows-space", "aria-label": about.label });
    this.none = h("div", { class: "rows-none", hidden: true });
    this.node = h("div", { class: "rows" }, this.space, this.none);
    this.node.addEventListener("scroll", () => this.#soon(), { passive: true });
    this.node.addEventListener("keydown", (event) => this.#key(event));
    this.node.addEventListener("focusin", () => (this.#awaited = null));
    new ResizeObserver(() => this.#soon()).observe(this.node);
  }

  /** Everything anew. The place in the list stays. */
  async reload() {
    const age = ++this.#age;
    const first = Math.floor(this.#top / PAGE);
    this.#asked = new Set([first]);
    const page = await this.about.load(first * PAGE, PAGE);
    if (age !== this.#age || !page) return;
    this.#pages = new Map([[first, page.items]]);
    this.#asked = new Set([first]); // what came meanwhile is of the list as it was
    this.#resize(page.total);
    const focused = this.#focused;
    for (const { node } of this.#shown.values()) node.remove();
    this.#shown.clear();
    if (focused !== null && this.total) this.#awaited = Math.min(focused, this.total - 1);
    this.show();
  }

  get #focused() {
    const row = /** @type {HTMLElement | null} */ (document.activeElement?.closest("li.row") ?? null);
    return row && this.space.contains(row) ? Number(row.dataset.at) : null;
  }

  get #top() {
    return Math.floor(this.node.scrollTop / this.about.height);
  }

  /** @param {number} total */
  #resize(total) {
    this.total = total;
    this.space.style.height = `${total * this.about.height}px`;
    this.none.hidden = total > 0;
    if (!total) this.none.replaceChildren(this.about.empty());
  }

  #soon() {
    this.#frame ||= requestAnimationFrame(() => {
      this.#frame = 0;
      this.show();
    });
  }

  show() {
    const from = Math.max(0, this.#top - AROUND);
    const to = Math.min(this.total, this.#top + Math.ceil(this.node.clientHeight / this.about.height) + AROUND);
    const focused = this.#focused;
    for (const [at, { node }] of this.#shown) {
      if ((at >= from && at < to) || at === focused) continue; // scrolling takes no focus away
      node.remove();
      this.#shown.delete(at);
    }
    for (let at = from; at < to; at++) this.#row(at);
    this.#focus();
    for (let page = Math.floor(from / PAGE); page * PAGE < to; page++) this.#need(page);
  }

  /** Makes a row, unless it is there already. @param {number} at */
  #row(at) {
    const { height, row } = this.about;
    const item = this.#pages.get(Math.floor(at / PAGE))?.[at % PAGE] ?? null;
    const shown = this.#shown.get(at);
    if (shown && (shown.item || !item)) return;
    shown?.node.remove();
    const about = { class: "row", "aria-setsize": this.total, "aria-posinset": at + 1, data: { at } };
    const node = h("li", about, item ? row(item) : h("div", { class: "bone" }));
    node.style.transform = `translateY(${at * height}px)`;
    const after = Math.min(...[...this.#shown.keys()].filter((other) => other > at));
    this.space.insertBefore(node, this.#shown.get(after)?.node ?? null);
    this.#shown.set(at, { node, item });
  }

  /** @param {number} page */
  async #need(page) {
    if (this.#pages.has(page) || this.#asked.has(page)) return;
    this.#asked.add(page);
    const age = this.#age;
    const found = await this.about.load(page * PAGE, PAGE);
    if (age !== this.#age) return;
    if (!found) {
      this.#asked.delete(page);
      return;
    }
    this.#pages.set(page, found.items);
    if (found.total !== this.total) this.#resize(found.total);
    this.#soon();
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const step = STEPS[event.key];
    const row = /** @type {HTMLElement} */ (event.target).closest("li.row");
    if (step === undefined || !row) return;
    event.preventDefault();
    const from = this.#awaited ?? Number(/** @type {HTMLElement} */ (row).dataset.at);
    this.#awaited = Math.max(0, Math.min(this.total - 1, from + step));
    const { height } = this.about;
    const top = this.#awaited * height;
    const lowest = top + height - this.node.clientHeight;
    if (top < this.node.scrollTop) this.node.scrollTop = top;
    else if (lowest > this.node.scrollTop) this.node.scrollTop = lowest;
    this.show();
  }

  #focus() {
    if (this.#awaited === null) return;
    const { activeElement } = document;
    const elsewhere = activeElement !== document.body && !this.node.contains(activeElement);
    if (elsewhere) this.#awaited = null;
    else this.#shown.get(this.#awaited)?.node.querySelector("button")?.focus({ preventScroll: true });
  }
}
