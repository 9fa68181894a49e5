// Settings: how the page looks, every parameter of the algorithm for this window or for all, and the memory as a whole.

import { fill, h, iconButton } from "../dom.js";
import { MaintenanceView } from "./maintenance.js";
import { PresetsView } from "./presets.js";
import { SettingField } from "./setting-field.js";

/** @typedef {"theme" | "heat" | "text" | "form" | "keys" | "notify"} LookName */
/** @type {[LookName, string, [string, string][]][]} */
const LOOKS = [
  ["theme", "Theme", [["auto", "Like the system"], ["dark", "Dark"], ["light", "Light"]]],
  ["heat", "Light", [
    ["light", "Where the reply's attention goes"], ["original", "Original colours"], ["off", "Off: plain reading"],
  ]],
  ["form", "Texts", [["rendered", "Markdown, rendered"], ["raw", "Raw, as they were written"]]],
  ["keys", "Single-letter keys", [["chunk", "Only on a chunk"], ["single", "Everywhere"]]],
  ["notify", "When a reply is done and this tab is hidden", [["off", "Nothing"], ["on", "A notification"]]],
  ["text", "Text size", [["small", "Small"], ["normal", "Normal"], ["large", "Large"]]],
];
/** @type {["window" | "all", string][]} */
const SCOPES = [["window", "This window"], ["all", "All windows"]];
/** @type {["common" | "all", string][]} */
const LEVELS = [["common", "The usual ones"], ["all", "All settings"]];
const AUTOMATIC = new Set(["max_context_tokens"]); // empty follows the model
/** @typedef {"system_prompt" | "user_name" | "ai_name"} Word */
const PROMPT = "What the model should always know here. It is never pruned and never becomes part of the memory.";

export class SettingsView {
  title = "Settings";
  /** @type {Map<string, SettingField>} */
  #fields = new Map();
  /** Where it stands whether a word is the window's own. @type {Map<Word, {mark: HTMLElement, title: string}>} */
  #marks = new Map();

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.scopes = h("div", { class: "segments", role: "radiogroup", "aria-label": "Settings for" });
    this.levels = h("div", { class: "segments", role: "radiogroup", "aria-label": "Which settings" });
    this.own = h("section", { class: "group" });
    this.groups = h("div", {});
    this.presets = new PresetsView(app, () => (this.scope === "window" ? app.store.current : ""));
    /** The words of all windows. @type {Wire.Answers["GET /api/persona"] | null} */
    this.persona = null;
    this.keeping = new MaintenanceView(app);
    const looks = group("This page", LOOKS.map((one) => this.#look(...one)));
    this.node = h("div", { class: "drawer-body" }, looks, this.scopes, this.own, this.presets.node, this.levels,
      this.groups, this.keeping.node);
    app.store.on("settings", () => this.show());
    app.store.on("windows", () => this.show());
    app.store.on("window", () => this.node.isConnected && this.#build());
    this.#build();
  }

  get scope() {
    return this.app.store.current && !this.app.store.window?.owner ? this.app.preferences.values.scope : "all";
  }

  /** The window whose settings are shown; none if they are those of all. */
  get #window() {
    return this.scope === "window" ? this.app.store.window : null;
  }

  shown() {
    this.#build();
    this.keeping.shown();
    this.presets.shown();
    this.#loadPersona();
  }

  async #loadPersona() {
    this.persona = (await this.app.attempt(() => this.app.api.persona())) ?? this.persona;
    this.#buildOwn();
  }

  /** @param {LookName} name @param {string} title @param {[string, string][]} options */
  #look(name, title, options) {
    const { preferences } = this.app;
    const on = {
      change: async () => {
        const asks = name === "notify" && select.value === "on" && "Notification" in window;
        if (asks && (await Notification.requestPermission()) !== "granted") {
          this.app.toasts.show("The browser does not allow notifications from this page.", { kind: "bad" });
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
    this.#buildChoice(this.scopes, "scope", SCOPES, this.scope);
    this.#buildChoice(this.levels, "level", LEVELS, this.app.preferences.values.level);
    this.#buildOwn();
    const { current, settings } = this.app.store;
    this.#fields.clear();
    /** @type {Map<string, HTMLElement[]>} */
    const groups = new Map();
    const few = this.app.preferences.values.level === "common";
    for (const one of settings?.described ?? []) {
      if (few && !one.common) continue;
      const field = new SettingField(one, (value) => this.app.setSetting(this.scope, one.name, value, current));
      this.#fields.set(one.name, field);
      groups.set(one.group, [...(groups.get(one.group) ?? []), field.node]);
    }
    fill(this.groups, [...groups].map(([name, nodes]) => group(name, nodes)));
    this.show();
  }

  /**
   * One of two, as two buttons side by side.
   * @param {HTMLElement} place @param {"scope" | "level"} name @param {[string, string][]} options @param {string} now
   */
  #buildChoice(place, name, options, now) {
    const { store, preferences } = this.app;
    const focused = place.contains(document.activeElement);
    fill(place, options.map(([value, text]) => {
      const change = () => {
        preferences.set(name, /** @type {any} */ (value));
        this.#build();
      };
      const disabled = value === "window" && (!store.current || Boolean(store.window?.owner));
      const input = h("input", { type: "radio", name, value, disabled, on: { change } });
      input.checked = now === value;
      return h("label", {}, input, h("span", { text }));
    }));
    if (focused) /** @type {HTMLElement | null} */ (place.querySelector(":checked"))?.focus();
  }

  /** Words: those of the window, each its own or that of all; or those of all windows. */
  #buildOwn() {
    const window = this.#window;
    const typing = this.own.contains(document.activeElement) && document.activeElement?.matches("input, textarea");
    const of = `${this.scope} ${window?.id ?? ""}`;
    if (typing && this.own.dataset.of === of) return;
    this.own.dataset.of = of;
    const words = window ?? this.persona;
    this.own.hidden = !words;
    if (!words) return;
    this.#marks.clear();
    const field = (/** @type {Word | "name"} */ name, /** @type {string} */ title) => {
      const on = { change: (/** @type {Event} */ event) => this.#change(window, name, event) };
      const set = { value: /** @type {Record<string, any>} */ (words)[name] };
      const long = { class: "field", rows: "5", placeholder: PROMPT, set, on };
      const input = name === "system_prompt" ? h("textarea", long)
        : h("input", { class: "field", maxlength: "200", set, on });
      const mark = h("span", {});
      if (window && name !== "name") this.#marks.set(name, { mark, title });
      return labelled(title, input, mark);
    };
    fill(this.own, h("h3", { text: window ? "This window" : "All windows, unless they have their own" }),
      window && field("name", "Name"), field("system_prompt", "System prompt"),
      h("div", { class: "pair" }, field("user_name", "Your name"), field("ai_name", "The model's name")));
    this.#showMarks();
  }

  /** Whether each word is the window's own, with the way back. */
  #showMarks() {
    const window = this.#window;
    for (const [name, { mark, title }] of this.#marks) {
      const back = async () => {
        await this.app.changeWindow(window?.id ?? "", { inherits: [name] });
        await this.app.reload();
        this.#buildOwn();
      };
      const own = window && !window.inherits.includes(name);
      if (mark.dataset.own === String(own)) continue;
      mark.dataset.own = String(own);
      fill(mark, own ? iconButton("undo", `Reset ${title}`, back, { class: "small", hint: "As all windows" })
        : h("span", { class: "quiet", text: "shared", title: "The same in all windows, unless you change it here" }));
    }
  }

  /** @param {WindowInfo | null} window null: all windows @param {string} name @param {Event} event */
  async #change(window, name, event) {
    const input = /** @type {HTMLInputElement} */ (event.target);
    if (!window) {
      if (name === "system_prompt" || input.value.trim()) {
        const changed = await this.app.attempt(() => this.app.api.changePersona({ [name]: input.value }));
        this.persona = changed ?? this.persona;
        await this.app.changedSettings();
      }
      input.value = this.persona?.[/** @type {Word} */ (name)] ?? "";
      return;
    }
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
    this.#showMarks();
    const window = this.#window;
    for (const [name, field] of this.#fields) {
      const all = settings?.values[name] ?? null;
      const own = window !== null && name in window.settings;
      const changed = window ? own : all !== field.about.default;
      const value = own ? window.settings[name] : all;
      const now = window && value === null ? window.effective[name] : settings?.auto[name];
      const auto = AUTOMATIC.has(name) ? { now, fallback: settings?.auto[name] } : undefined;
      field.showEffect(String((window ? window.effective : settings?.values)?.strategy ?? ""));
      field.show(value, changed, window ? all : field.about.default, Boolean(window), auto);
    }
  }
}

/** @param {string} title @param {Node[]} nodes */
function group(title, nodes) {
  return h("section", { class: "group" }, h("h3", { text: title }), nodes);
}

/** @param {string} title @param {HTMLElement} field @param {HTMLElement | null} mark */
function labelled(title, field, mark) {
  field.setAttribute("aria-label", title);
  const line = h("div", { class: "own-line" }, h("span", { class: "label", text: title }), mark);
  return h("div", { class: "stack" }, line, field);
}
