// Keys that work everywhere, and the sheet that names them all.

import { h } from "../dom.js";

/** @type {[string, [string, string][]][]} */
const KEYS = [
  ["Speaking", [
    ["Enter", "Send"], ["Shift Enter", "New line"],
    ["Esc", "Stop the reply, else close the rail or the panel that covers the conversation"],
    ["↑ in an empty box", "Edit your last message"], ["/", "Go to the input box"],
  ]],
  ["Everywhere", [
    ["Ctrl K or ⌘ K", "Search the whole memory"], ["?", "These keys"], ["G", "Graveyard"],
    ["H", "Show or hide brightness"], ["N", "New window"],
  ]],
  ["On a chunk", [
    ["↑ ↓ or K J", "Previous, next chunk"], ["P", "Pin or unpin"], ["S", "Put to sleep"],
    ["M", "Merge into previous"], ["C", "Copy"], ["W", "Why?"], ["Del", "Delete…"],
  ]],
];

export class KeysView {
  /**
   * @param {import("../app.js").App} app
   * @param {{search: () => void, compose: () => void, graveyard: () => void, heat: () => void}} acts
   */
  constructor(app, acts) {
    this.app = app;
    this.acts = acts;
    document.addEventListener("keydown", (event) => this.#key(event));
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const { app, acts } = this;
    const withControl = event.ctrlKey || event.metaKey;
    if (withControl && event.key.toLowerCase() === "k") {
      event.preventDefault();
      acts.search();
      return;
    }
    if (document.querySelector("dialog[open]") || withControl || event.altKey) return;
    if (event.key === "Escape") return this.#escape(event);
    if (/** @type {HTMLElement} */ (event.target).closest("input, textarea, select")) return;
    /** @type {Record<string, () => void>} */
    const keys = {
      "?": () => this.show(), "/": acts.compose, g: acts.graveyard, h: acts.heat, n: () => app.newWindow(),
    };
    const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  /** @param {KeyboardEvent} event */
  #escape(event) {
    if (this.app.store.busy) {
      event.preventDefault();
      this.app.abort();
    } else document.body.classList.remove("rail-open");
  }

  show() {
    const line = (/** @type {[string, string]} */ [key, meaning]) =>
      h("div", {}, h("dt", {}, h("kbd", { text: key })), h("dd", { text: meaning }));
    const groups = KEYS.map(([title, keys]) => h("section", {}, h("h3", { text: title }), h("dl", {}, keys.map(line))));
    this.app.dialogs.sheet("Keys", "wide", h("div", { class: "keys" }, groups));
  }
}
