// Questions that must be answered before something happens, and sheets with more to read.

import { button, h, iconButton, onSubmit } from "../dom.js";

/**
 * @typedef {object} Question
 * @property {string} title @property {string} label @property {string} confirm
 * @property {string} [sentence] @property {string} [value]
 * @property {number} [most] characters
 * @property {boolean} [secret] a password
 * @property {boolean} [long] a text of several lines
 * @property {boolean} [must] cannot be left without an answer
 * @property {string} [exactly] the only answer that is taken
 * @property {boolean} [danger]
 * @property {boolean} [empty] whether no text is an answer, too
 */

let count = 0;

export class Dialogs {
  /** @param {HTMLElement} place */
  constructor(place) {
    this.place = place;
  }

  /**
   * `quote`: what it is about, in its own words.
   * @param {{title: string, sentence: string, confirm: string, danger?: boolean, quote?: string[]}} about
   * @returns {Promise<boolean>}
   */
  confirm(about) {
    return new Promise((answer) => {
      const { dialog, close } = this.#open(about.title, "small", () => answer(false));
      const agree = () => {
        answer(true);
        close();
      };
      const yes = button(about.confirm, agree, about.danger ? "danger" : "primary");
      const no = button("Cancel", close);
      const quotes = (about.quote ?? []).map((text) => h("p", { text }));
      dialog.append(h("p", { class: "sentence", text: about.sentence }),
        ...(quotes.length ? [h("blockquote", { class: "quotes" }, quotes)] : []),
        h("div", { class: "answers" }, no, yes));
      (about.danger ? no : yes).focus();
    });
  }

  /** @param {Question} about @returns {Promise<string | null>} null if it was left */
  ask(about) {
    return new Promise((answer) => {
      const { dialog, close } = this.#open(about.title, about.long ? "wide" : "small", () => answer(null), about.must);
      const shared = { class: "field", maxlength: about.most, set: { value: about.value ?? "" } };
      const type = about.secret ? "password" : "text";
      const input = about.long ? h("textarea", { ...shared, rows: "10" })
        : h("input", { ...shared, type, autocomplete: "off", spellcheck: "false" });
      const kind = about.danger ? "danger" : "primary";
      const yes = h("button", { type: "submit", class: `button ${kind}`, text: about.confirm });
      const check = () => {
        const missing = !about.empty && !input.value.trim();
        yes.disabled = about.exactly === undefined ? missing : input.value !== about.exactly;
      };
      const send = () => {
        answer(input.value);
        close();
      };
      input.addEventListener("input", check);
      dialog.append(h("form", { on: onSubmit(send) },
        about.sentence && h("p", { class: "sentence", text: about.sentence }),
        h("label", { class: "stack" }, h("span", { class: "label", text: about.label }), input),
        h("div", { class: "answers" }, !about.must && button("Cancel", close), yes)));
      check();
      input.focus();
      if (!about.long) input.select();
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
    const heading = h("h2", { id, tabindex: "-1", text: title });
    dialog.append(h("header", { class: "dialog-head" }, heading, !must && iconButton("close", "Close", close)));
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
