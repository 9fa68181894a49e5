// A digest of a window: what its replies used most, in the original words.

import { fill, h, iconButton, onSubmit } from "../dom.js";
import { counted, moment, speakerOf, parts } from "../words.js";
import { Prose } from "./prose.js";

const NONE = "No reply in this window has used earlier text.";

export class DigestView {
  /** @type {Wire.Answers["GET /api/windows/{window_id}/digest"]["excerpts"]} */
  #excerpts = [];

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.tokens = h("input", {
      type: "number", class: "field", min: 1, max: 100_000, value: 400, required: true,
      "aria-label": "At most this many tokens",
    });
    this.list = h("ol", { class: "excerpts", "aria-label": "What was used most" });
    this.said = h("p", { class: "quiet", role: "status" });
    this.copy = iconButton("copy", "Copy", () => this.#copy(), { text: true, class: "small" });
    this.copy.hidden = true;
    this.node = h("section", { class: "group" }, h("h3", { text: "Digest" }),
      h("p", { class: "quiet", text: "What the replies used most, word for word, in the order in which it was said." }),
      h("form", { class: "digest-form", on: onSubmit(() => this.look()) }, this.tokens,
        h("button", { type: "submit", class: "button", text: "Quote" }), this.copy),
      this.said, this.list);
    app.store.on("window", () => this.#show([], ""));
  }

  async look() {
    const { api, store } = this.app;
    const { current } = store;
    if (!current) return;
    const told = await this.app.attempt(() => api.digest(current, Number(this.tokens.value)));
    if (!told || current !== store.current) return;
    this.#show(told.excerpts, told.excerpts.length ? counted(told.excerpts.length, "passage") : NONE);
  }

  /** @param {Wire.Answers["GET /api/windows/{window_id}/digest"]["excerpts"]} excerpts @param {string} words */
  #show(excerpts, words) {
    this.#excerpts = excerpts;
    this.said.textContent = words;
    this.copy.hidden = !excerpts.length;
    fill(this.list, excerpts.map((one) => {
      const text = h("div", { class: "excerpt-text" });
      new Prose(text, () => "").show([one.text], { raw: this.app.preferences.values.form === "raw" });
      const go = () => this.app.store.tell("goto", one.key);
      const speaker = speakerOf({ role: parts(one.key).role, speaker: one.speaker });
      const about = `${speaker}, ${moment(one.said)} · used by ${counted(one.replies.length, "reply", "replies")}`;
      return h("li", {}, text, h("p", { class: "quiet", text: about }),
        iconButton("search", "Go there", go, { text: true, class: "small" }));
    }));
  }

  #copy() {
    const quoted = this.#excerpts.map((one) => {
      const speaker = speakerOf({ role: parts(one.key).role, speaker: one.speaker });
      return `${one.text.trim()}\n(${speaker}, ${moment(one.said)})`;
    });
    return this.app.copy(quoted.join("\n\n"));
  }
}
