// Short messages at the foot of the page, some with a way back.

import { button, h, iconButton } from "../dom.js";

const MOST = 2; // at once: they lie over the conversation

export class Toasts {
  /** Those without a way back, each shown once: by its words, what lets it stay. @type {Map<string, () => void>} */
  #plain = new Map();

  /** @param {HTMLElement} place a polite live region */
  constructor(place) {
    this.place = place;
  }

  /**
   * `label` and `act` are a way back.
   * @param {string} sentence
   * @param {{kind?: "good" | "bad", label?: string, act?: () => void, long?: boolean}} [more]
   */
  show(sentence, more = {}) {
    const { label, act } = more;
    const again = act ? undefined : this.#plain.get(sentence);
    if (again) return again();
    const goBack = () => {
      close();
      act?.();
    };
    const close = () => {
      toast.remove();
      if (this.#plain.get(sentence) === begin) this.#plain.delete(sentence);
    };
    const toast = h(
      "div", { class: `toast ${more.kind ?? "good"}`, role: more.kind === "bad" ? "alert" : null },
      h("p", { text: sentence }),
      label && act && button(label, goBack),
      iconButton("close", "Dismiss", close),
    );
    this.place.append(toast);
    let timer = 0;
    const begin = () => {
      clearTimeout(timer);
      timer = window.setTimeout(close, more.long ? 20_000 : more.kind === "bad" ? 12_000 : 7_000);
    };
    if (!act) this.#plain.set(sentence, begin);
    toast.addEventListener("dismiss", close);
    while (this.place.children.length > MOST) this.place.firstElementChild?.dispatchEvent(new Event("dismiss"));
    toast.addEventListener("pointerenter", () => clearTimeout(timer));
    toast.addEventListener("pointerleave", begin);
    toast.addEventListener("focusin", () => clearTimeout(timer));
    begin();
  }
}
