// What would wake up for the words in the input box, each to be ticked or not, near misses too, and room for them.

import { fill, h, icon } from "../dom.js";
import { plainOf } from "../markdown.js";
import { clip, counted, resurrectedBy } from "../words.js";
import { fitButton } from "./fit.js";

/** @typedef {Preview["resurrect"][number]} Candidate */
/** @typedef {NonNullable<Wire.Bodies["POST /api/windows/{window_id}/messages"]["recall"]>} RecallChoice */

const NEAR = "Near misses: not similar enough to your words to wake up by themselves";
const OVER = "These match, but there is no room for them";
const LEFT = "Left out";

export class PreviewView {
  #asked = new AbortController();
  /** What was unticked, and what was ticked, until the message is sent. @type {Map<string, Candidate>} */
  #excluded = new Map();
  /** @type {Map<string, Candidate>} */
  #included = new Map();
  #makeRoom = false;
  /** For which text. */
  #text = "";

  /** @param {import("../app.js").App} app @param {(tokens: number) => void} counted hears how long the text is */
  constructor(app, counted) {
    this.app = app;
    this.counted = counted;
    this.words = h("span", {});
    this.more = h("button", {
      type: "button", class: "button small give-room", text: "Give it room", "aria-pressed": "false", hidden: true,
      title: "For this message: more may wake up than the recall budget allows; the dimmest fall asleep if necessary",
      on: { click: () => this.#choose(() => (this.#makeRoom = !this.#makeRoom)) },
    });
    this.lists = h("div", { class: "preview-lists" });
    const summary = h("summary", {}, icon("wake"), this.words);
    this.fold = h("details", { class: "preview-fold" }, summary, this.lists);
    this.node = h("div", { class: "preview", hidden: true }, this.fold, this.more);
    summary.addEventListener("click", (event) => this.node.classList.contains("nothing") && event.preventDefault());
  }

  /** What was chosen for this message. @returns {RecallChoice | undefined} */
  get recall() {
    if (!this.#excluded.size && !this.#included.size && !this.#makeRoom) return undefined;
    return { exclude: [...this.#excluded.keys()], include: [...this.#included.keys()], make_room: this.#makeRoom };
  }

  hide() {
    this.#asked.abort();
    this.node.hidden = true;
  }

  /** Nothing is chosen any more. */
  forget() {
    this.#excluded.clear();
    this.#included.clear();
    this.#makeRoom = false;
    this.hide();
  }

  /** Asks what would wake up for a text. @param {string} text */
  async look(text) {
    this.#asked.abort();
    this.#asked = new AbortController();
    this.#text = text;
    const { store, api } = this.app;
    try {
      const found = await api.recallPreview(store.current, text, this.recall, this.#asked.signal);
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

  /** @param {Candidate} one @param {boolean} wanted */
  #tick(one, wanted) {
    this.#choose(() => {
      if (wanted && !this.#excluded.delete(one.key)) this.#included.set(one.key, one);
      else if (!wanted && !this.#included.delete(one.key)) this.#excluded.set(one.key, one);
    });
  }

  /** @param {Preview} found */
  #show(found) {
    this.counted(found.tokens);
    const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset?.key;
    const within = this.node.contains(document.activeElement);
    const lists = [found.resurrect, found.below_threshold, found.no_room];
    const nothing = lists.every((one) => !one.length) && !this.#excluded.size;
    this.words.textContent = this.#sentence(found);
    this.more.hidden = !this.#makeRoom && !found.skipped && found.room > 0;
    this.more.setAttribute("aria-pressed", String(this.#makeRoom));
    fill(this.lists,
      this.#list("", found.resurrect, true), this.#list(LEFT, [...this.#excluded.values()], false),
      this.#list(OVER, found.no_room, false), this.#list(NEAR, found.below_threshold, false));
    this.node.hidden = false;
    this.node.classList.toggle("nothing", nothing);
    if (nothing) this.fold.open = false;
    if (!within || !focused) return;
    const [again] = [...this.lists.querySelectorAll("input")].filter((one) => one.dataset.key === focused);
    (again ?? this.fold.querySelector("summary"))?.focus();
  }

  /** @param {Preview} found */
  #sentence({ resurrect, cost, room, skipped, below_threshold: near, tokens_to_prune: first }) {
    const words = resurrect.length ? `Would wake ${counted(resurrect.length, "chunk")}, ${counted(cost, "token")}`
      : room > 0 ? "No sleeping passage matches this yet" : "There is no room for sleeping passages";
    const over = skipped ? `; ${counted(skipped, "more match", "more match")} without room` : "";
    const missed = !resurrect.length && near.length ? `; ${counted(near.length, "near miss", "near misses")}` : "";
    const sleeps = first ? `; ${counted(first, "token")} of the dimmest sleep first` : "";
    return `${words}${over}${missed}${sleeps}`;
  }

  /** @param {string} title @param {Candidate[]} items @param {boolean} ticked */
  #list(title, items, ticked) {
    if (!items.length) return null;
    return h("section", {}, title && h("h3", { text: title }),
      h("ul", {}, items.map((one) => this.#item(one, ticked))));
  }

  /** @param {Candidate} one @param {boolean} ticked */
  #item(one, ticked) {
    const chosen = this.#included.has(one.key);
    const { part, words, parts } = one;
    const reason = chosen ? "ticked by you" : resurrectedBy({ part, words, parts }, one.text);
    const about = [reason, one.cost ? counted(one.cost, "token") : ""].filter(Boolean).join(" · ");
    const box = h("input", {
      type: "checkbox", data: { key: one.key }, set: { checked: ticked },
      on: { change: () => this.#tick(one, box.checked) },
    });
    const known = this.#included.get(one.key) ?? one;
    const text = h("span", { class: "preview-text", text: clip(plainOf(one.text), 160) });
    const fits = fitButton(known.similarity, known.parts);
    return h("li", {}, h("label", { class: "preview-item" }, box, text),
      h("span", { class: "preview-about quiet" }, h("span", { text: about }), fits));
  }
}
