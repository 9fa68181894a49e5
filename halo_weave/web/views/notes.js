// The model's notes: one JSON document, checked before it is saved.

import { h, iconButton } from "../dom.js";
import { moment } from "../words.js";
import { JsonField } from "./json-field.js";

export class NotesView {
  title = "Notes";
  #saved = "";
  /** Nothing can be edited before the notes have come once. */
  #known = false;
  #stale = true;
  #loading = false;

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.field = new JsonField("notes.json", {}, (value) => (value && typeof value === "object" && !Array.isArray(value) ? "" : "The notes are one JSON object: { … }."));
    this.save = h("button", { type: "submit", class: "button primary", text: "Save" });
    this.revert = h("button", { type: "button", class: "button", text: "Revert", on: { click: () => this.load() } });
    this.about = h("p", { class: "quiet" });
    const tidy = iconButton("edit", "Tidy", () => this.#known && this.field.valid && this.field.set(this.field.value), { text: true, class: "small" });
    this.node = h("form", { class: "drawer-body", on: { submit: (/** @type {Event} */ event) => { event.preventDefault(); this.#save(); } } },
      h("p", { class: "quiet", text: "The model reads and writes these with jq while it answers. What you change here it sees in its next turn." }),
      this.field.node, this.about, h("div", { class: "answers" }, tidy, this.revert, this.save));
    this.field.input.classList.add("tall");
    this.field.input.value = "";
    this.field.input.placeholder = "Not loaded yet.";
    this.field.node.addEventListener("checked", () => this.#state());
    app.store.on("done", () => this.node.isConnected && !this.#changed && this.load());
    for (const topic of ["connection", "status"]) app.store.on(topic, () => this.node.isConnected && this.#stale && !this.#changed && app.reachable && this.load());
    this.#state();
  }

  get #changed() {
    return this.field.input.value !== this.#saved;
  }

  shown() {
    if (this.#changed) return;
    this.#stale = true;
    this.load();
  }

  async load() {
    if (this.#loading) return;
    this.#loading = true;
    const before = this.field.input.value;
    const found = await this.app.attempt(() => this.app.api.notes());
    this.#loading = false;
    if (found && this.field.input.value === before) this.#take(found.content);
  }

  /** @param {any} content */
  #take(content) {
    this.#known = true;
    this.#stale = false;
    this.field.set(content);
    this.#saved = this.field.input.value;
    const changed = content?._metadata?.last_modified;
    this.about.textContent = changed ? `Last changed ${moment(changed)}.` : "";
    this.#state();
  }

  #state() {
    this.field.input.readOnly = !this.#known;
    this.save.disabled = !this.#known || !this.field.valid || !this.#changed;
    this.revert.disabled = !this.#changed;
  }

  async #save() {
    if (!this.#known || !this.field.valid || !this.#changed) return;
    const saved = await this.app.attempt(() => this.app.api.saveNotes(this.field.value));
    if (!saved) return;
    this.#take(saved.content ?? this.field.value);
    this.app.toasts.show("Notes saved.");
  }
}
