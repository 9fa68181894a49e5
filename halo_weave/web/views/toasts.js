// Short messages at the foot of the page, some with a way back.

import { h, iconButton } from "../dom.js";

export class Toasts {
  /** @param {HTMLElement} place a polite live region */
  constructor(place) {
    this.place = place;
  }

  /** @param {string} sentence @param {{kind?: "good" | "bad", label?: string, act?: () => void, long?: boolean}} [more] */
  show(sentence, more = {}) {
    const { label, act } = more;
    const close = () => toast.remove();
    const toast = h(
      "div", { class: `toast ${more.kind ?? "good"}`, role: more.kind === "bad" ? "alert" : null },
      h("p", { text: sentence }),
      label && act ? h("button", { type: "button", class: "button", text: label, on: { click: () => { close(); act(); } } }) : null,
      iconButton("close", "Dismiss", close),
    );
    this.place.append(toast);
    while (this.place.children.length > 4) this.place.firstElementChild?.remove();
    let timer = 0;
    const begin = () => (timer = window.setTimeout(close, more.long ? 20_000 : more.kind === "bad" ? 12_000 : 7_000));
    toast.addEventListener("pointerenter", () => clearTimeout(timer));
    toast.addEventListener("pointerleave", begin);
    toast.addEventListener("focusin", () => clearTimeout(timer));
    begin();
  }
}
