// Questions that must be answered before something happens, and sheets with more to read.

import { h, iconButton } from "../dom.js";

let count = 0;

export class Dialogs {
  /** @param {HTMLElement} place */
  constructor(place) {
    this.place = place;
  }

  /**
   * @param {{title: string, sentence: string, confirm: string, danger?: boolean}} about
   * @returns {Promise<boolean>}
   */
  confirm(about) {
    return new Promise((answer) => {
      const { dialog, close } = this.#open(about.title, "small", () => answer(false));
      const yes = h("button", { type: "button", class: `button ${about.danger ? "danger" : "primary"}`, text: about.confirm, on: { click: () => { answer(true); close(); } } });
      const no = h("button", { type: "button", class: "button", text: "Cancel", on: { click: close } });
      dialog.append(h("p", { class: "sentence", text: about.sentence }), h("div", { class: "answers" }, no, yes));
      (about.danger ? no : yes).focus();
    });
  }

  /**
   * @param {{title: string, label: string, value?: string, most?: number, sentence?: string, confirm: string, secret?: boolean, must?: boolean, exactly?: string, danger?: boolean}} about
   * @returns {Promise<string | null>}
   */
  ask(about) {
    return new Promise((answer) => {
      const { dialog, close } = this.#open(about.title, "small", () => answer(null), about.must);
      const input = h("input", { type: about.secret ? "password" : "text", class: "field", autocomplete: "off", spellcheck: "false", maxlength: about.most, set: { value: about.value ?? "" } });
      const yes = h("button", { type: "submit", class: `button ${about.danger ? "danger" : "primary"}`, text: about.confirm });
      const check = () => (yes.disabled = about.exactly !== undefined ? input.value !== about.exactly : !input.value.trim());
      input.addEventListener("input", check);
      const form = h(
        "form", { on: { submit: (/** @type {Event} */ event) => { event.preventDefault(); answer(input.value); close(); } } },
        about.sentence ? h("p", { class: "sentence", text: about.sentence }) : null,
        h("label", { class: "stack" }, h("span", { class: "label", text: about.label }), input),
        h("div", { class: "answers" }, about.must ? null : h("button", { type: "button", class: "button", text: "Cancel", on: { click: close } }), yes),
      );
      dialog.append(form);
      check();
      input.focus();
      input.select();
    });
  }

  /** A sheet with something to read. @param {string} title @param {string} kind @param {...Node} nodes */
  sheet(title, kind, ...nodes) {
    const { dialog, close } = this.#open(title, kind, () => {});
    dialog.append(...nodes);
    /** @type {HTMLElement | null} */ (dialog.querySelector("h2"))?.focus();
    return { dialog, close };
  }

  /** @param {string} title @param {string} kind @param {() => void} closed @param {boolean} [must] */
  #open(title, kind, closed, must = false) {
    const id = `dialog-${++count}`;
    const before = /** @type {HTMLElement | null} */ (document.activeElement);
    const dialog = h("dialog", { class: `dialog ${kind}`, "aria-labelledby": id });
    const close = () => dialog.close();
    dialog.append(h("header", { class: "dialog-head" }, h("h2", { id, tabindex: "-1", text: title }), must ? null : iconButton("close", "Close", close)));
    dialog.addEventListener("close", () => {
      dialog.remove();
      closed();
      // The browser has given the focus back by itself, and the next key may already have moved it on.
      if (document.activeElement === document.body && before?.isConnected) before.focus();
    });
    dialog.addEventListener("cancel", (event) => must && event.preventDefault());
    if (!must) dialog.addEventListener("click", (event) => event.target === dialog && close());
    this.place.append(dialog);
    dialog.showModal();
    return { dialog, close };
  }
}
