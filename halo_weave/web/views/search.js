// Search over the whole memory, from anywhere with Ctrl/⌘+K.

import { debounced, fill, h, iconButton } from "../dom.js";
import { openFence } from "../markdown.js";
import { counted, moment, speakerOf } from "../words.js";
import { fitButton } from "./fit.js";
import { Prose } from "./prose.js";

const LIMIT = 30;
const LONGEST = 420; // characters of a hit
const BEFORE = 80; // of them before the first word
const WAKE = { text: true, class: "small writes" };
const HINT = "By meaning and by words, over everything ever said.";

export class SearchView {
  #asked = new AbortController();
  /** What is listed does not yet answer what is typed. */
  #waiting = false;
  /** The key that was pressed meanwhile. */
  #pressed = "";
  /** @type {{dialog: HTMLDialogElement, close: () => void} | null} */
  #sheet = null;

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.input = h("input", {
      type: "text", inputmode: "search", class: "field big", placeholder: "What was said about…", autocomplete: "off",
      "aria-label": "Search the whole memory", "aria-controls": "hits",
    });
    this.here = h("input", { type: "checkbox", on: { change: () => this.look() } });
    this.narrow = new Narrowing(() => this.look());
    this.count = h("p", { class: "quiet", role: "status", text: HINT });
    this.list = h("ul", { id: "hits", class: "hits", "aria-label": "Found" });
    const look = debounced(() => this.look(), 200);
    this.input.addEventListener("input", () => {
      this.#waiting = true;
      this.#pressed = "";
      look();
    });
    this.input.addEventListener("keydown", (event) => this.#key(event));
    this.list.addEventListener("keydown", (event) => this.#move(event));
    app.store.on("resurrected", () => this.#sheet?.close()); // also when it was woken from the Why sheet above this one
  }

  open() {
    if (this.#sheet?.dialog.open) return this.#sheet.close();
    const here = h("label", { class: "check" }, this.here, h("span", { text: "Said in this window" }));
    const line = h("div", { class: "search-line" }, this.count, here);
    this.narrow.offer(this.app.store.windows.flatMap((one) => one.tags));
    this.app.api.tags().then((tags) => this.narrow.offer(tags.map((one) => one.tag)), () => {});
    this.#sheet = this.app.dialogs.sheet("Search memory", "search", this.input, this.narrow.node, line, this.list);
    this.#pressed = "";
    this.input.focus();
    this.input.select();
    if (this.input.value) this.look();
  }

  async look() {
    this.#asked.abort();
    const text = this.input.value.trim();
    this.#waiting = Boolean(text);
    if (!text) {
      this.#show([], HINT);
      return;
    }
    this.#asked = new AbortController();
    this.count.textContent = "Searching…";
    try {
      const { current } = this.app.store;
      const where = { window: current, only_window: this.here.checked && Boolean(current) };
      const query = { q: text, ...where, ...this.narrow.query(), limit: LIMIT };
      const { hits } = await this.app.api.search(query, this.#asked.signal);
      this.#show(hits, hits.length < LIMIT ? `${counted(hits.length, "chunk")} found` : `The best ${LIMIT}`);
      if (!hits.length) this.count.textContent = "Nothing found.";
    } catch (error) {
      if (/** @type {Error} */ (error).name === "AbortError") return;
      this.#show([], /** @type {Error} */ (error).message);
    }
    if (this.input.value.trim() === text) this.#answered(); // else more was typed meanwhile
  }

  /** @param {Hit[]} hits @param {string} words */
  #show(hits, words) {
    fill(this.list, hits.map((hit) => this.#item(hit)));
    this.count.textContent = words;
  }

  /** A key that was pressed while the answer was awaited is for this answer. */
  #answered() {
    this.#waiting = false;
    const pressed = this.#pressed;
    this.#pressed = "";
    if (pressed && this.#sheet?.dialog.open) this.#first(pressed);
  }

  /** @param {Hit} hit */
  #item(hit) {
    const { app } = this;
    const here = Boolean(app.store.live?.find(hit.key));
    const { shown, fence } = around(hit.text, hit.words);
    const text = h("div", { class: "hit-text" });
    const prose = new Prose(text, () => "");
    prose.show([shown], { raw: app.preferences.values.form === "raw", fence });
    prose.mark(hit.words);
    const wake = () => {
      this.#sheet?.close();
      app.resurrect(hit.key);
    };
    return h("li", { class: "hit" },
      h("div", { class: "hit-head" },
        h("span", { text: `${speakerOf(hit)} · ${moment(hit.said)}` }),
        hit.window_name && h("span", { class: "badge", text: hit.window_name }),
        hit.tags.map((tag) => h("span", { class: "window-tag", text: tag })),
        here && h("span", { class: "badge live-badge", text: "live here" }),
        fitButton(hit.similarity, hit.parts),
        h("span", { class: "quiet", text: counted(hit.tokens, "token") })),
      text,
      h("div", { class: "answers start" },
        iconButton("search", here ? "Go there" : "Open", () => this.#go(hit), { text: true, class: "small go" }),
        !here && Boolean(app.store.current) && iconButton("wake", "Wake up here", wake, WAKE),
        iconButton("why", "Why?", () => app.explain(hit.key, hit), { class: "small" })));
  }

  /** Where it is live, else where it was said and sleeps. @param {Hit} hit */
  #go(hit) {
    const { app } = this;
    const { live, windows, current } = app.store;
    const there = !live?.find(hit.key) && windows.some((one) => one.id === hit.window) ? hit.window : current;
    if (!there) return app.explain(hit.key, hit);
    this.#sheet?.close();
    app.open(there, hit.key);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.key !== "ArrowDown" && event.key !== "Enter") return;
    event.preventDefault();
    if (this.#waiting) this.#pressed = event.key;
    else this.#first(event.key);
  }

  /** The arrows go from hit to hit, and back to what is searched for. @param {KeyboardEvent} event */
  #move(event) {
    const step = { ArrowDown: 1, ArrowUp: -1 }[event.key];
    if (!step) return;
    event.preventDefault();
    const hits = [...this.list.children];
    const at = hits.findIndex((one) => one.contains(document.activeElement)) + step;
    const next = at < 0 ? this.input : hits[Math.min(at, hits.length - 1)].querySelector(".go");
    /** @type {HTMLElement | null} */ (next)?.focus();
  }

  /** @param {string} key Enter opens the first hit, the arrow goes to it */
  #first(key) {
    /** @type {HTMLElement | null} */ (this.list.querySelector(".go"))?.[key === "Enter" ? "click" : "focus"]();
  }
}

/** What a search may be narrowed by: who said it, when, and a tag. */
class Narrowing {
  /** @param {() => void} changed */
  constructor(changed) {
    const on = { change: changed };
    this.role = h("select", { class: "field", "aria-label": "Role", on },
      h("option", { value: "", text: "Anyone" }), h("option", { value: "user", text: "You" }),
      h("option", { value: "assistant", text: "The model" }));
    this.speaker = h("input", { class: "field", placeholder: "Name", "aria-label": "Speaker", maxlength: "200", on });
    this.since = h("input", { type: "date", class: "field", "aria-label": "From this day on", on });
    this.before = h("input", { type: "date", class: "field", "aria-label": "Before this day", on });
    this.tag = h("select", { class: "field", "aria-label": "Tag", on });
    this.node = h("details", { class: "narrow" }, h("summary", { text: "Narrow down" }),
      h("div", { class: "narrow-fields" }, this.role, this.speaker, this.since, this.before, this.tag));
  }

  /** @param {string[]} tags of windows and chunks */
  offer(tags) {
    const chosen = this.tag.value;
    const names = [...new Set(tags)].sort((a, b) => a.localeCompare(b));
    const options = names.map((text) => h("option", { value: text, text }));
    fill(this.tag, h("option", { value: "", text: "Any tag" }), options);
    this.tag.value = names.includes(chosen) ? chosen : "";
    this.tag.hidden = !names.length;
  }

  /** Without what is left open. Days are those of this place. */
  query() {
    /** @param {string} day */
    const moment = (day) => day && new Date(`${day}T00:00`).toISOString();
    const { role, speaker, since, before, tag } = this;
    return {
      role: role.value, speaker: speaker.value.trim(), since: moment(since.value), before: moment(before.value),
      tag: tag.value,
    };
  }
}

/**
 * The part of a long text where the words stand, in whole lines as far as they are short, and the fence open there.
 * @param {string} text @param {string[]} words
 */
function around(text, words) {
  if (text.length <= LONGEST) return { shown: text, fence: "" };
  const at = Math.max(0, ...words.slice(0, 1).map((word) => text.toLowerCase().indexOf(word.toLowerCase())));
  const line = text.lastIndexOf("\n", Math.max(0, at - BEFORE)) + 1;
  const from = line && at - line < LONGEST / 2 ? line : at < LONGEST / 2 ? 0 : at - BEFORE;
  const more = from + LONGEST < text.length ? "…" : "";
  const cut = from && from !== line ? "…" : "";
  return { shown: `${cut}${text.slice(from, from + LONGEST)}${more}`, fence: openFence(text.slice(0, from)) };
}
