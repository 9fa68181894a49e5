// The model's notes: one JSON document, checked before it is saved.

import { ApiError } from "../api.js";
import { button, fill, h, iconButton, onSubmit } from "../dom.js";
import { moment } from "../words.js";
import { JsonField } from "./json-field.js";

const ABOUT = "The AI's notes. You can edit them. " +
  "The model sees your changes in its next turn.";
const CLASH = "The notes were changed meanwhile, by the model or in another tab. " +
  "Yours are not saved; they are still here.";

export class NotesView {
  title = "Notes";
  #saved = "";
  #version = "";
  /** Nothing can be edited before the notes have come once. */
  #known = false;
  #stale = true;
  #loading = false;
  #saving = false;

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.field = new JsonField("notes.json", {}, notAnObject);
    this.save = h("button", { type: "submit", class: "button primary", text: "Save" });
    this.revert = button("Revert", () => this.load());
    this.about = h("p", { class: "quiet" });
    this.clash = h("div", { class: "clash", role: "alert", hidden: true });
    const tidy = iconButton("edit", "Tidy", () => this.#tidy(), { text: true, class: "small" });
    this.node = h("form", { class: "drawer-body", on: onSubmit(() => this.#save()) },
      h("p", { class: "quiet", text: ABOUT }), this.field.node, this.about, this.clash,
      h("div", { class: "answers" }, tidy, this.revert, this.save));
    this.field.input.classList.add("tall");
    this.field.input.value = "";
    this.field.input.placeholder = "Not loaded yet.";
    this.field.node.addEventListener("checked", () => this.#state());
    app.store.on("memory", () => this.node.isConnected && !this.#changed && this.load());
    for (const topic of ["connection", "status"]) app.store.on(topic, () => this.#catchUp());
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

  /** Loads what could not be loaded before. */
  #catchUp() {
    if (this.node.isConnected && this.#stale && !this.#changed && this.app.reachable) this.load();
  }

  #tidy() {
    if (this.#known && this.field.valid) this.field.set(this.field.value);
  }

  async load() {
    if (this.#loading) return;
    this.#loading = true;
    const before = this.field.input.value;
    const found = await this.app.attempt(() => this.app.api.notes());
    this.#loading = false;
    if (found && this.field.input.value === before) this.#take(found);
  }

  /** @param {Notes} found @param {string} [typed] what was typed meanwhile, and stays */
  #take({ content, version }, typed) {
    this.#known = true;
    this.#stale = false;
    this.#version = version;
    this.clash.hidden = true;
    this.field.set(content);
    this.#saved = this.field.input.value;
    if (typed !== undefined) this.#write(typed);
    const changed = content._metadata?.last_modified;
    this.about.textContent = changed ? `Last changed ${moment(changed)}.` : "";
    this.#state();
  }

  /** @param {string} text */
  #write(text) {
    this.field.input.value = text;
    this.field.look();
  }

  #state() {
    this.field.input.readOnly = !this.#known;
    this.save.disabled = !this.#savable || !this.clash.hidden;
    this.revert.disabled = !this.#changed;
  }

  get #savable() {
    return this.#known && this.field.valid && this.#changed && !this.#saving;
  }

  /** @param {string | null} [version] the one these take the place of; null: whichever there is */
  async #save(version = this.#version) {
    if (!this.#savable) return;
    const sent = this.field.input.value;
    const content = /** @type {Notes["content"]} */ (this.field.value);
    this.#saving = true;
    this.#state();
    const saved = await this.app.attempt(() => this.app.api.saveNotes(content, version).catch(changedMeanwhile));
    this.#saving = false;
    if (saved?.content) {
      const now = this.field.input.value;
      this.#take(saved, now === sent ? undefined : now);
      this.app.toasts.show("Notes saved.");
    } else if (saved) this.#ask();
    this.#state();
  }

  /** Someone else wrote meanwhile: whose notes are to stay? */
  #ask() {
    this.clash.hidden = false;
    fill(this.clash, h("p", { class: "problem", text: CLASH }), h("div", { class: "answers" },
      button("Load theirs", () => this.#loadTheirs()), button("Save mine", () => this.#save(null))));
    if (document.activeElement === document.body || document.activeElement === this.save) this.field.input.focus();
  }

  async #loadTheirs() {
    const mine = this.field.input.value;
    await this.load();
    const back = { label: "Bring mine back", long: true, act: () => this.#write(mine) };
    if (this.clash.hidden) this.app.toasts.show("Theirs are loaded.", back);
  }
}

/** @param {unknown} value */
function notAnObject(value) {
  const is = value && typeof value === "object" && !Array.isArray(value);
  return is ? "" : "Notes need names: write “topic: what to know”, one on each line, or JSON: { … }.";
}

/** @param {unknown} error @returns {{content: null}} */
function changedMeanwhile(error) {
  if (error instanceof ApiError && error.code === "notes_changed") return { content: null };
  throw error;
}
