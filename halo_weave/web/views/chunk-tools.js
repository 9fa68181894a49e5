// What can be done with a chunk: one toolbar that goes where it is needed, and the keys of a chunk that has the focus.

import { h, iconButton } from "../dom.js";
import { tagChunk } from "./tags.js";

const REM = parseFloat(getComputedStyle(document.documentElement).fontSize);

export class ChunkTools {
  /**
   * @param {import("../app.js").App} app @param {HTMLElement} place the scrolling part
   * @param {HTMLElement} list of turns
   */
  constructor(app, place, list) {
    this.app = app;
    this.place = place;
    this.list = list;
    this.pin = this.#button("pin", "Pin", "p", undefined, "writes");
    this.merge = this.#button("merge", "Merge into previous", "m", "Merge into previous (M)", "writes");
    this.bar = h("div", { class: "tools", role: "toolbar", "aria-label": "Chunk" },
      this.pin, this.merge,
      this.#button("sleep", "Put to sleep", "s", "Put to sleep (S)", "writes"),
      this.#button("tag", "Tags…", "t", "Tags… (T)"),
      this.#button("copy", "Copy", "c", "Copy (C)"),
      this.#button("why", "Why?", "w", "Why? (W)"),
      this.#button("delete", "Delete…", "Delete", "Delete… (Del)", "danger-hover writes"));
    this.bar.hidden = true;
    this.#listen();
  }

  /**
   * @param {string} icon @param {string} label @param {string} key does the same
   * @param {string} [hint] @param {string} [kind]
   */
  #button(icon, label, key, hint, kind) {
    const act = () => {
      const chunk = this.#chosen();
      if (chunk) this.#acts(chunk)[key]?.();
    };
    return iconButton(icon, label, act, { hint, class: kind });
  }

  /** What can be done with a chunk, by key. @param {LiveChunk} chunk @returns {Record<string, () => unknown>} */
  #acts(chunk) {
    const { app } = this;
    const reads = {
      t: () => tagChunk(app, chunk.key),
      c: () => app.copy(chunk.pieces.join("")),
      w: () => app.explain(chunk.key),
    };
    if (!app.store.writable) return reads;
    return {
      ...reads,
      p: () => (chunk.pinned ? app.unpin(chunk.key) : app.pin(chunk.key)),
      m: () => this.#canMerge(chunk) && app.merge(chunk.key),
      s: () => app.prune(chunk.key),
      Delete: () => app.delete(chunk.key),
    };
  }

  #listen() {
    const { list } = this;
    const byMouse = (/** @type {PointerEvent} */ event, /** @type {Element | null} */ node) => {
      if (event.pointerType === "mouse") this.#offer(node, true);
    };
    list.addEventListener("pointerover", (event) => byMouse(event, /** @type {Element} */ (event.target)));
    list.addEventListener("pointerleave", (event) => byMouse(event, null));
    list.addEventListener("focusin", (event) => this.#focused(/** @type {Element} */ (event.target)));
    list.addEventListener("focusout", (event) => {
      if (!list.contains(/** @type {Node | null} */ (event.relatedTarget))) this.#offer(null);
    });
    list.addEventListener("keydown", (event) => this.#key(event));
  }

  /** The chunk with the focus has the toolbar, and is the one that Tab comes back to. @param {Element} node */
  #focused(node) {
    const article = node.closest("article");
    this.#offer(article);
    if (!article || article.getAttribute("tabindex") === "0") return;
    for (const other of this.list.querySelectorAll("article[tabindex='0']")) other.setAttribute("tabindex", "-1");
    article.setAttribute("tabindex", "0");
  }

  /** Chunks came or went: the toolbar stays where it is, or goes to the chunk under the pointer. */
  arranged() {
    if (!this.bar.hidden) this.#offer(this.bar.isConnected ? this.bar : this.list.querySelector("article:hover"));
  }

  /** @param {Element | null} node @param {boolean} [byHover] */
  #offer(node, byHover = false) {
    if (byHover && this.bar.querySelector(":focus-visible")) return; // the keyboard is at work in it
    const article = node?.closest("article.chunk:not(.draft, .asleep)");
    if (!article) {
      if (!byHover || !this.place.querySelector("article:focus-visible")) this.bar.hidden = true;
      return;
    }
    const aside = this.place.clientWidth > 60 * REM; // beside the text, else under it
    if (this.bar.parentElement !== article || aside !== (article.firstChild === this.bar)) {
      article[aside ? "prepend" : "append"](this.bar);
    }
    this.bar.hidden = false;
    const chunk = this.#chosen();
    if (!chunk) return;
    const label = chunk.pinned ? "Unpin" : "Pin";
    this.pin.setAttribute("aria-label", label);
    this.pin.setAttribute("title", `${label} (P)`);
    this.pin.classList.toggle("on", chunk.pinned);
    this.merge.disabled = !this.#canMerge(chunk);
  }

  /** The chunk that the toolbar stands in. */
  #chosen() {
    const article = /** @type {HTMLElement | null} */ (this.bar.closest("article"));
    return this.app.store.live?.find(article?.dataset.key ?? "") ?? null;
  }

  /** Whether the chunk before it is of the same turn and nothing sleeps between them. @param {LiveChunk} chunk */
  #canMerge(chunk) {
    const all = this.app.store.live?.chunks ?? [];
    const before = all[all.findIndex((one) => one.key === chunk.key) - 1];
    return before?.turn.turn_id === chunk.turn.turn_id && !chunk.prunedBefore;
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const article = /** @type {HTMLElement} */ (event.target);
    if (!article.matches("article.chunk") || event.ctrlKey || event.metaKey || event.altKey) return;
    const chunk = this.app.store.live?.find(article.dataset.key ?? "");
    const step = (/** @type {number} */ steps) => () => this.#step(article, steps);
    /** @type {Record<string, () => unknown>} */
    const keys = {
      ArrowDown: step(1), ArrowUp: step(-1), j: step(1), k: step(-1), Home: step(-Infinity), End: step(Infinity),
      ...(chunk ? this.#acts(chunk) : {}),
    };
    const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  /** @param {HTMLElement} from @param {number} steps */
  #step(from, steps) {
    const all = /** @type {HTMLElement[]} */ ([...this.list.querySelectorAll("article.chunk")]);
    all[Math.max(0, Math.min(all.length - 1, all.indexOf(from) + steps))]?.focus();
  }
}
