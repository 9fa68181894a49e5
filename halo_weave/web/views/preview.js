// What would wake up for the words in the input box, each to be ticked or not, near misses too, and room for them.

import { fill, h, icon } from "../dom.js";
import { plainOf } from "../markdown.js";
import { clip, counted, wokenBy } from "../words.js";
import { fitButton } from "./fit.js";

/** @typedef {Preview["wakes"][number]} Waking */
/** @typedef {NonNullable<Wire.Bodies["POST /api/windows/{window_id}/say"]["wish"]>} Wish */

const NEAR = "Near misses: too unlike your words to wake up by themselves";
const OVER = "These fit, and there is no room for them";
const LEFT = "Left out";

export class PreviewView {
  #asked = new AbortController();
  /** What was unticked, and what was ticked, until the message is sent. @type {Map<string, Waking>} */
  #without = new Map();
  /** @type {Map<string, Waking>} */
  #also = new Map();
  #room = false;
  /** For which text. */
  #text = "";

  /** @param {import("../app.js").App} app @param {(tokens: number) => void} counted hears how long the text is */
  constructor(app, counted) {
    this.app = app;
    this.counted = counted;
    this.words = h("span", {});
    this.more = h("button", {
      type: "button", class: "button small give-room", text: "Give it room", "aria-pressed": "false", hidden: true,
      title: "For this message: more may wake up than the recall budget says, and the dimmest sleep if they must",
      on: { click: () => this.#choose(() => (this.#room = !this.#room)) },
    });
    this.lists = h("div", { class: "preview-lists" });
    const summary = h("summary", {}, icon("wake"), this.words);
    this.fold = h("details", { class: "preview-fold" }, summary, this.lists);
    this.node = h("div", { class: "preview", hidden: true }, this.fold, this.more);
    summary.addEventListener("click", (event) => this.node.classList.contains("nothing") && event.preventDefault());
  }

  /** What was chosen for this message. @returns {Wish | undefined} */
  get wish() {
    if (!this.#without.size && !this.#also.size && !this.#room) return undefined;
    return { without: [...this.#without.keys()], also: [...this.#also.keys()], room: this.#room };
  }

  hide() {
    this.#asked.abort();
    this.node.hidden = true;
  }

  /** Nothing is chosen any more. */
  forget() {
    this.#without.clear();
    this.#also.clear();
    this.#room = false;
    this.hide();
  }

  /** Asks what would wake up for a text. @param {string} text */
  async look(text) {
    this.#asked.abort();
    this.#asked = new AbortController();
    this.#text = text;
    const { store, api } = this.app;
    try {
      const found = await api.preview(store.current, text, this.wish, this.#asked.signal);
      if (this.#text === text && !store.busy) this.#show(found);
    } catch (error) {
      if (/** @type {Error} */ (error).name !== "AbortError") this.hide();
    }
  }

  /** @param {() => void} change */
  #choose(change) {
    change();
    return this.look(this.#text);
  }

  /** @param {Waking} one @param {boolean} wanted */
  #tick(one, wanted) {
    this.#choose(() => {
      if (wanted && !this.#without.delete(one.key)) this.#also.set(one.key, one);
      else if (!wanted && !this.#also.delete(one.key)) this.#without.set(one.key, one);
    });
  }

  /** @param {Preview} found */
  #show(found) {
    this.counted(found.tokens);
    const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset?.key;
    const within = this.node.contains(document.activeElement);
    const nothing = !found.wakes.length && !found.near.length && !found.over.length && !this.#without.size;
    this.words.textContent = this.#sentence(found);
    this.more.hidden = !this.#room && !found.passed_over && found.room > 0;
    this.more.setAttribute("aria-pressed", String(this.#room));
    fill(this.lists,
      this.#list("", found.wakes, true), this.#list(LEFT, [...this.#without.values()], false),
      this.#list(OVER, found.over, false), this.#list(NEAR, found.near, false));
    this.node.hidden = false;
    this.node.classList.toggle("nothing", nothing);
    if (nothing) this.fold.open = false;
    if (!within || !focused) return;
    const [again] = [...this.lists.querySelectorAll("input")].filter((one) => one.dataset.key === focused);
    (again ?? this.fold.querySelector("summary"))?.focus();
  }

  /** @param {Preview} found */
  #sentence({ wakes, cost, room, passed_over, near, sleeps }) {
    const words = wakes.length ? `Would wake ${counted(wakes.length, "chunk")}, ${counted(cost, "token")}`
      : room > 0 ? "Nothing asleep matches this yet" : "No room for anything to wake up";
    const over = passed_over ? `; ${counted(passed_over, "more match", "more match")} without room` : "";
    const missed = !wakes.length && near.length ? `; ${counted(near.length, "near miss", "near misses")}` : "";
    const first = sleeps ? `; ${counted(sleeps, "token")} of the dimmest sleep first` : "";
    return `${words}${over}${missed}${first}`;
  }

  /** @param {string} title @param {Waking[]} items @param {boolean} ticked */
  #list(title, items, ticked) {
    if (!items.length) return null;
    return h("section", {}, title && h("h3", { text: title }),
      h("ul", {}, items.map((one) => this.#item(one, ticked))));
  }

  /** @param {Waking} one @param {boolean} ticked */
  #item(one, ticked) {
    const chosen = this.#also.has(one.key);
    const reason = chosen ? "ticked by you" : wokenBy({ part: one.part, words: one.words, parts: one.parts }, one.text);
    const about = [reason, one.cost ? counted(one.cost, "token") : ""].filter(Boolean).join(" · ");
    const box = h("input", {
      type: "checkbox", data: { key: one.key }, set: { checked: ticked },
      on: { change: () => this.#tick(one, box.checked) },
    });
    const known = this.#also.get(one.key) ?? one;
    const text = h("span", { class: "preview-text", text: clip(plainOf(one.text), 160) });
    const fits = fitButton(known.similarity, known.parts);
    return h("li", {}, h("label", { class: "preview-item" }, box, text),
      h("span", { class: "preview-about quiet" }, h("span", { text: about }), fits));
  }
}
