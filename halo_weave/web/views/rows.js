// A list of any length: only the rows near the view exist, and pages of them are fetched when they come near.

import { h } from "../dom.js";

const PAGE = 100;
const AROUND = 8; // rows kept beyond each edge of the view

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
   * @param {{height: number, label: string, load: (offset: number, limit: number) => Promise<{total: number, items: T[]} | undefined>, row: (item: T) => HTMLElement, empty: () => Node}} about
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
    const { height, row } = this.about;
    const from = Math.max(0, this.#top - AROUND);
    const to = Math.min(this.total, this.#top + Math.ceil(this.node.clientHeight / height) + AROUND);
    const focused = this.#focused;
    for (const [at, { node }] of this.#shown) {
      if ((at >= from && at < to) || at === focused) continue; // scrolling takes no focus away
      node.remove();
      this.#shown.delete(at);
    }
    for (let at = from; at < to; at++) {
      const item = this.#pages.get(Math.floor(at / PAGE))?.[at % PAGE] ?? null;
      const shown = this.#shown.get(at);
      if (shown && (shown.item || !item)) continue;
      shown?.node.remove();
      const node = h("li", { class: "row", "aria-setsize": this.total, "aria-posinset": at + 1, data: { at } }, item ? row(item) : h("div", { class: "bone" }));
      node.style.transform = `translateY(${at * height}px)`;
      const after = [...this.#shown.keys()].filter((other) => other > at).sort((a, b) => a - b)[0];
      this.space.insertBefore(node, after === undefined ? null : (this.#shown.get(after)?.node ?? null));
      this.#shown.set(at, { node, item });
    }
    this.#focus();
    for (let page = Math.floor(from / PAGE); page * PAGE < to; page++) this.#need(page);
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
    const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 8, PageUp: -8, Home: -Infinity, End: Infinity }[event.key];
    const row = /** @type {HTMLElement} */ (event.target).closest("li.row");
    if (step === undefined || !row) return;
    event.preventDefault();
    const from = this.#awaited ?? Number(/** @type {HTMLElement} */ (row).dataset.at);
    this.#awaited = Math.max(0, Math.min(this.total - 1, from + step));
    const { height } = this.about;
    const top = this.#awaited * height;
    if (top < this.node.scrollTop) this.node.scrollTop = top;
    else if (top + height > this.node.scrollTop + this.node.clientHeight) this.node.scrollTop = top + height - this.node.clientHeight;
    this.show();
  }

  #focus() {
    if (this.#awaited === null) return;
    const { activeElement } = document;
    if (activeElement !== document.body && !this.node.contains(activeElement)) this.#awaited = null; // it went elsewhere meanwhile
    else /** @type {HTMLElement | null | undefined} */ (this.#shown.get(this.#awaited)?.node.querySelector("button"))?.focus({ preventScroll: true });
  }
}
