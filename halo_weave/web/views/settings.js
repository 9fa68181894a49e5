// Settings: every parameter of the algorithm with its default, range and meaning; for this window or for all.

import { fill, h, iconButton } from "../dom.js";
import { figure, label } from "../words.js";
import { KeepingView } from "./keeping.js";

export class SettingsView {
  title = "Settings";
  /** @type {Map<string, SettingField>} */
  #fields = new Map();

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.scopes = h("div", { class: "segments", role: "radiogroup", "aria-label": "Settings for" });
    this.own = h("section", { class: "group" });
    this.groups = h("div", {});
    this.keeping = new KeepingView(app);
    this.node = h("div", { class: "drawer-body" }, this.#looks(), this.scopes, this.own, this.groups, this.keeping.node);
    app.store.on("settings", () => this.show());
    app.store.on("windows", () => this.show());
    app.store.on("window", () => this.node.isConnected && this.#build());
    this.#build();
  }

  get scope() {
    return this.app.store.current ? this.app.preferences.values.scope : "all";
  }

  shown() {
    this.#build();
    this.keeping.shown();
  }

  #looks() {
    const { preferences } = this.app;
    /** @type {[("theme" | "heat" | "text"), string, [string, string][]][]} */
    const choices = [
      ["theme", "Theme", [["auto", "Like the system"], ["dark", "Dark"], ["light", "Light"]]],
      ["heat", "Brightness", [["readable", "Shown, easy to read"], ["original", "Shown, original colours"], ["off", "Off: plain reading"]]],
      ["text", "Text size", [["small", "Small"], ["normal", "Normal"], ["large", "Large"]]],
    ];
    return h("section", { class: "group" }, h("h3", { text: "This page" }), choices.map(([name, title, options]) => {
      const select = h("select", { id: `page-${name}`, class: "field", on: { change: () => preferences.set(name, /** @type {any} */ (select.value)) } }, options.map(([value, text]) => h("option", { value, text })));
      select.value = preferences.values[name];
      preferences.addEventListener("change", () => (select.value = preferences.values[name]));
      return h("div", { class: "line" }, h("label", { for: `page-${name}`, class: "label", text: title }), select);
    }));
  }

  #build() {
    const { store, preferences } = this.app;
    const focused = this.scopes.contains(document.activeElement);
    fill(this.scopes, /** @type {const} */ ([["window", "This window"], ["all", "All windows"]]).map(([value, text]) => {
      const input = h("input", { type: "radio", name: "scope", value, disabled: value === "window" && !store.current, on: { change: () => { preferences.set("scope", value); this.#build(); } } });
      input.checked = this.scope === value;
      return h("label", {}, input, h("span", { text }));
    }));
    if (focused) /** @type {HTMLElement | null} */ (this.scopes.querySelector(":checked"))?.focus();
    this.#own();
    const { current } = store;
    this.#fields.clear();
    /** @type {Map<string, HTMLElement[]>} */
    const groups = new Map();
    for (const one of store.settings?.described ?? []) {
      const field = new SettingField(one, (value) => this.app.setSetting(this.scope, one.name, value, current));
      this.#fields.set(one.name, field);
      groups.set(one.group, [...(groups.get(one.group) ?? []), field.node]);
    }
    fill(this.groups, [...groups].map(([name, nodes]) => h("section", { class: "group" }, h("h3", { text: name }), nodes)));
    this.show();
  }

  show() {
    const { store } = this.app;
    if (!this.#fields.size && store.settings) return this.#build();
    const window = this.scope === "window" ? store.window : null;
    for (const [name, field] of this.#fields) {
      const all = store.settings?.values[name] ?? null;
      const own = window && name in window.settings;
      const value = window ? (own ? window.settings[name] : all) : all;
      const changed = window ? Boolean(own) : all !== field.about.default;
      field.show(value, changed, window ? all : field.about.default, Boolean(window));
    }
  }

  /** The window's own words: system prompt and names. */
  #own() {
    const window = this.scope === "window" ? this.app.store.window : null;
    this.own.hidden = !window;
    if (!window) return;
    const change = (/** @type {string} */ name) => (/** @type {Event} */ event) => {
      const input = /** @type {HTMLInputElement} */ (event.target);
      if (name !== "name" || input.value.trim()) return this.app.changeWindow(window.id, { [name]: input.value }).then(() => this.app.reload());
      input.value = this.app.store.windows.find((one) => one.id === window.id)?.name ?? window.name; // a window has a name
    };
    const text = (/** @type {string} */ name, /** @type {string} */ title, /** @type {string} */ value) => h("label", { class: "stack" }, h("span", { class: "label", text: title }), h("input", { class: "field", maxlength: "200", set: { value }, on: { change: change(name) } }));
    fill(this.own, h("h3", { text: "This window" }), text("name", "Name", window.name),
      h("label", { class: "stack" }, h("span", { class: "label", text: "System prompt" }), h("textarea", { class: "field", rows: "5", placeholder: "What the model should always know here. It is never pruned and never goes into memory.", set: { value: window.system_prompt }, on: { change: change("system_prompt") } })),
      h("div", { class: "pair" }, text("user_name", "Your name", window.user_name), text("ai_name", "The model's name", window.ai_name)));
  }
}

class SettingField {
  /** @param {Described} about @param {(value: SettingValue | undefined) => Promise<unknown>} change */
  constructor(about, change) {
    this.about = about;
    this.change = change;
    const id = `setting-${about.name}`;
    this.input = this.#input(id);
    this.reset = iconButton("undo", `Reset ${label(about.name)}`, () => this.#set(undefined), { class: "small", hint: "Back to the default" });
    this.from = h("span", {});
    this.problem = h("p", { class: "problem", id: `${id}-problem`, role: "alert" });
    this.node = h("div", { class: `setting ${about.type}` },
      h("div", { class: "setting-head" }, h("label", { for: id, class: "label", text: label(about.name) }), this.reset, this.input),
      h("p", { class: "quiet", id: `${id}-about` }, h("span", { text: `${about.meaning} ` }), this.from), this.problem);
    this.input.setAttribute("aria-describedby", `${id}-about ${id}-problem`);
  }

  /** @param {string} id @returns {HTMLInputElement | HTMLSelectElement} */
  #input(id) {
    const { about } = this;
    const on = { change: () => this.#set(this.#read()) };
    if (about.type === "boolean") return h("input", { id, type: "checkbox", class: "switch", role: "switch", on });
    if (about.type === "choice") return h("select", { id, class: "field", on }, about.choices.map((choice) => h("option", { value: choice, text: choice.replaceAll("_", " ") })));
    return h("input", { id, type: "number", class: "field", min: about.low, max: about.high, step: about.type === "integer" ? 1 : "any", placeholder: about.optional ? "off" : "", inputmode: "decimal", on });
  }

  /** @returns {SettingValue} */
  #read() {
    const { input, about } = this;
    if (about.type === "boolean") return /** @type {HTMLInputElement} */ (input).checked;
    if (about.type === "choice") return input.value;
    return input.value.trim() === "" ? null : Number(input.value);
  }

  /** @param {SettingValue | undefined} value */
  async #set(value) {
    const { about } = this;
    if (value === null && !about.optional) value = undefined;
    const problem = typeof value === "number" ? refused(about, value) : "";
    this.#mark(problem);
    if (problem) return;
    try {
      await this.change(value);
    } catch (error) {
      this.#mark(/** @type {Error} */ (error).message);
    }
  }

  /** @param {string} problem "" if there is none */
  #mark(problem) {
    this.problem.textContent = problem ? aboutField(problem) : "";
    if (problem) this.input.setAttribute("aria-invalid", "true");
    else this.input.removeAttribute("aria-invalid");
  }

  /** @param {SettingValue} value @param {boolean} changed @param {SettingValue} fallback @param {boolean} forWindow */
  show(value, changed, fallback, forWindow) {
    const { input, about } = this;
    const typing = about.type !== "boolean" && about.type !== "choice" && document.activeElement === input;
    if (!typing && !this.problem.textContent) {
      if (about.type === "boolean") /** @type {HTMLInputElement} */ (input).checked = Boolean(value);
      else input.value = value === null ? "" : String(value);
    }
    this.node.classList.toggle("changed", changed);
    if (!changed && document.activeElement === this.reset) input.focus(); // it is about to go
    this.reset.hidden = !changed;
    const range = about.low !== null && about.high !== null ? `${figure(about.low)} to ${figure(about.high)}; ` : "";
    const shown = fallback === null ? "off" : typeof fallback === "boolean" ? (fallback ? "on" : "off") : typeof fallback === "number" ? figure(fallback) : fallback.replaceAll("_", " ");
    this.from.textContent = `(${range}${forWindow ? "all windows" : "default"}: ${shown})`;
  }
}

/** Why a number will not do, "" if it will. @param {Described} about @param {number} value */
function refused({ type, low, high }, value) {
  if (Number.isNaN(value)) return "Use a number.";
  if (value < (low ?? -Infinity) || value > (high ?? Infinity)) {
    return low !== null && high !== null ? `Use ${figure(low)} to ${figure(high)}.` : low !== null ? `Use ${figure(low)} or more.` : `Use ${figure(/** @type {number} */ (high))} or less.`;
  }
  return type === "integer" && !Number.isInteger(value) ? "Use a whole number." : "";
}

/** The server's sentence without the way to the field: the field is here. @param {string} sentence */
function aboutField(sentence) {
  const bare = sentence.replace(/^[a-z_]+(?:\.\w+)*:\s+/, "");
  return bare.charAt(0).toUpperCase() + bare.slice(1);
}
