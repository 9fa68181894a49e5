// Settings: how the page looks, every parameter of the algorithm for this window or for all, and the memory as a whole.

import { fill, h } from "../dom.js";
import { KeepingView } from "./keeping.js";
import { SettingField } from "./setting-field.js";

/** @typedef {"theme" | "heat" | "text" | "form" | "keys" | "notify"} LookName */
/** @type {[LookName, string, [string, string][]][]} */
const LOOKS = [
  ["theme", "Theme", [["auto", "Like the system"], ["dark", "Dark"], ["light", "Light"]]],
  ["heat", "Light", [
    ["light", "What the reply looks at"], ["original", "Original colours"], ["off", "Off: plain reading"],
  ]],
  ["form", "Texts", [["rendered", "Markdown, rendered"], ["raw", "Raw, as they were written"]]],
  ["keys", "Single-letter keys", [["chunk", "Only on a chunk"], ["single", "Everywhere"]]],
  ["notify", "When a reply is done and this tab is hidden", [["off", "Nothing"], ["on", "A notification"]]],
  ["text", "Text size", [["small", "Small"], ["normal", "Normal"], ["large", "Large"]]],
];
/** @type {["window" | "all", string][]} */
const SCOPES = [["window", "This window"], ["all", "All windows"]];
const PROMPT = "What the model should always know here. It is never pruned and never goes into memory.";

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
    const looks = group("This page", LOOKS.map((one) => this.#look(...one)));
    this.node = h("div", { class: "drawer-body" }, looks, this.scopes, this.own, this.groups, this.keeping.node);
    app.store.on("settings", () => this.show());
    app.store.on("windows", () => this.show());
    app.store.on("window", () => this.node.isConnected && this.#build());
    this.#build();
  }

  get scope() {
    return this.app.store.current ? this.app.preferences.values.scope : "all";
  }

  /** The window whose settings are shown; none if they are those of all. */
  get #window() {
    return this.scope === "window" ? this.app.store.window : null;
  }

  shown() {
    this.#build();
    this.keeping.shown();
  }

  /** @param {LookName} name @param {string} title @param {[string, string][]} options */
  #look(name, title, options) {
    const { preferences } = this.app;
    const on = {
      change: async () => {
        const asks = name === "notify" && select.value === "on" && "Notification" in window;
        if (asks && (await Notification.requestPermission()) !== "granted") {
          this.app.toasts.show("The browser does not allow notifications of this page.", { kind: "bad" });
          select.value = "off";
        }
        preferences.set(name, /** @type {any} */ (select.value));
      },
    };
    const nodes = options.map(([value, text]) => h("option", { value, text }));
    const select = h("select", { id: `page-${name}`, class: "field", on }, nodes);
    select.value = preferences.values[name];
    preferences.addEventListener("change", () => (select.value = preferences.values[name]));
    return h("div", { class: "line" }, h("label", { for: `page-${name}`, class: "label", text: title }), select);
  }

  #build() {
    this.#buildScopes();
    this.#buildOwn();
    const { current, settings } = this.app.store;
    this.#fields.clear();
    /** @type {Map<string, HTMLElement[]>} */
    const groups = new Map();
    for (const one of settings?.described ?? []) {
      const field = new SettingField(one, (value) => this.app.setSetting(this.scope, one.name, value, current));
      this.#fields.set(one.name, field);
      groups.set(one.group, [...(groups.get(one.group) ?? []), field.node]);
    }
    fill(this.groups, [...groups].map(([name, nodes]) => group(name, nodes)));
    this.show();
  }

  #buildScopes() {
    const { store, preferences } = this.app;
    const focused = this.scopes.contains(document.activeElement);
    fill(this.scopes, SCOPES.map(([value, text]) => {
      const change = () => {
        preferences.set("scope", value);
        this.#build();
      };
      const disabled = value === "window" && !store.current;
      const input = h("input", { type: "radio", name: "scope", value, disabled, on: { change } });
      input.checked = this.scope === value;
      return h("label", {}, input, h("span", { text }));
    }));
    if (focused) /** @type {HTMLElement | null} */ (this.scopes.querySelector(":checked"))?.focus();
  }

  /** The window's own words: name, system prompt and who speaks. */
  #buildOwn() {
    const window = this.#window;
    this.own.hidden = !window;
    if (!window) return;
    const text = (/** @type {"name" | "user_name" | "ai_name"} */ name, /** @type {string} */ title) => {
      const on = { change: (/** @type {Event} */ event) => this.#change(window, name, event) };
      return labelled(title, h("input", { class: "field", maxlength: "200", set: { value: window[name] }, on }));
    };
    const on = { change: (/** @type {Event} */ event) => this.#change(window, "system_prompt", event) };
    const set = { value: window.system_prompt };
    const prompt = h("textarea", { class: "field", rows: "5", placeholder: PROMPT, set, on });
    fill(this.own, h("h3", { text: "This window" }), text("name", "Name"), labelled("System prompt", prompt),
      h("div", { class: "pair" }, text("user_name", "Your name"), text("ai_name", "The model's name")));
  }

  /** @param {WindowInfo} window @param {string} name @param {Event} event */
  async #change(window, name, event) {
    const input = /** @type {HTMLInputElement} */ (event.target);
    if (name === "name" && !input.value.trim()) { // a window has a name
      input.value = this.app.store.windows.find((one) => one.id === window.id)?.name ?? window.name;
      return;
    }
    await this.app.changeWindow(window.id, { [name]: input.value });
    await this.app.reload();
  }

  show() {
    const { settings } = this.app.store;
    if (!this.#fields.size && settings) return this.#build();
    const window = this.#window;
    for (const [name, field] of this.#fields) {
      const all = settings?.values[name] ?? null;
      const own = window !== null && name in window.settings;
      const changed = window ? own : all !== field.about.default;
      field.show(own ? window.settings[name] : all, changed, window ? all : field.about.default, Boolean(window));
    }
  }
}

/** @param {string} title @param {Node[]} nodes */
function group(title, nodes) {
  return h("section", { class: "group" }, h("h3", { text: title }), nodes);
}

/** @param {string} title @param {HTMLElement} field */
function labelled(title, field) {
  return h("label", { class: "stack" }, h("span", { class: "label", text: title }), field);
}
