// Keys that work everywhere, and the sheet that names them all.

import { h } from "../dom.js";

/** @type {[string, [string, string][]][]} */
const KEYS = [
  ["Speaking", [
    ["Enter", "Send"], ["Shift Enter", "New line"],
    ["Esc", "Stop the reply, else close the rail or the panel that covers the conversation"],
    ["↑ in an empty box", "Edit your last message"],
  ]],
  ["Everywhere", [
    ["Ctrl K or ⌘ K", "Search the whole memory"], ["Any letter", "Goes into the input box"],
  ]],
  ["Everywhere, if you switch single keys on in the settings", [
    ["?", "These keys"], ["/", "Go to the input box"], ["G", "Graveyard"], ["H", "Show or hide light"],
    ["N", "New window"],
  ]],
  ["On a chunk", [
    ["↑ ↓ or K J", "Previous, next chunk"], ["← →", "Words of an answer: where each came from"],
    ["P", "Pin or unpin"], ["S", "Put to sleep"],
    ["M", "Merge into previous"], ["T", "Tags…"], ["C", "Copy"], ["W", "Why?"], ["Del", "Delete…"],
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
    const target = /** @type {HTMLElement} */ (event.target);
    if (target.closest("input, textarea, select") || event.defaultPrevented || event.key.length !== 1) return;
    /** @type {Record<string, () => void>} */
    const keys = {
      "?": () => this.show(), "/": acts.compose, g: acts.graveyard, h: acts.heat, n: () => app.newWindow(),
    };
    const act = app.preferences.values.keys === "single" ? keys[event.key.toLowerCase()] : undefined;
    if (act) {
      event.preventDefault();
      act();
    } else if (!target.closest("button, summary, a, article, [role='treeitem'], li") && event.key !== " ") {
      acts.compose(); // the letter follows the focus into the input box
    }
  }

  /** @param {KeyboardEvent} event */
  #escape(event) {
    const { busy, writable } = this.app.store;
    if (busy && writable) {
      event.preventDefault();
      this.app.stop();
    } else document.body.classList.remove("rail-open");
  }

  show() {
    const line = (/** @type {[string, string]} */ [key, meaning]) =>
      h("div", {}, h("dt", {}, h("kbd", { text: key })), h("dd", { text: meaning }));
    const groups = KEYS.map(([title, keys]) => h("section", {}, h("h3", { text: title }), h("dl", {}, keys.map(line))));
    this.app.dialogs.sheet("Keys", "wide", h("div", { class: "keys" }, groups));
  }
}
