// Engines on other machines: those that a window can choose, which one answers in this window, and adding one.

import { button, fill, h, onSubmit } from "../dom.js";

const ABOUT = "A server that runs a model: another Halo Weave, or any with /v1/chat/completions. This window sends " +
  "its live context there.";
/** @type {Record<Where["remote_scope"], string>} */
const RULES = {
  all: "everything it remembers",
  window: "only what was said in this window",
  not_private: "everything but what was said in private windows",
};
/** @type {[string, string, string[]][]} */
const KINDS = [ // what each needs to know
  ["openai", "any /v1 server", ["url", "model_name", "key", "shadow_model"]],
  ["kobold", "Halo Weave, KoboldCPP", ["url", "key"]],
  ["llama", "a model here", ["model_name"]],
];
const USUAL = "the default: for models on other machines, only what was said in this window";

/** Where the words of a window go, in a sentence. @param {Where} where */
export function whereWords(where) {
  if (!where.known) return `There is no engine named ${where.name} any more. Choose another one for this window.`;
  const who = where.name ? `${where.name} answers here` : "The model of all windows answers here";
  if (where.private && where.remote_host) {
    return `This window is private, so nothing is sent to ${where.remote_host}, and no model can answer here. ` +
      "Choose an engine on this machine, or make the window not private.";
  }
  const place = where.remote_host ? `text is sent to ${where.remote_host}` : "text stays on this machine";
  const faults = where.malformed_rows ? ` ${where.malformed_rows} rows of attention could not be used.` : "";
  return `${who}; ${place}. It may read ${RULES[where.remote_scope]}.${faults}`;
}

export class EnginesPart {
  #told = "";
  /** Of the questions to the server: only the answers to the last ones are shown. */
  #asked = 0;

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.where = h("p", { class: "engine-where" });
    this.light = h("p", { class: "quiet" });
    this.rule = h("select", { class: "field", "aria-label": "What it may read", on: { change: () => this.#rule() } },
      h("option", { value: "", text: USUAL }),
      Object.entries(RULES).map(([value, text]) => h("option", { value, text })));
    this.private = h("input", { type: "checkbox", on: { change: () => this.#set({ private: this.private.checked }) } });
    this.own = h("div", { class: "engine-rules owns", hidden: true },
      h("label", {}, "It may read ", this.rule),
      h("label", {}, this.private, " Private: what is said here is never sent to another machine"));
    this.notice = h("p", { role: "status", hidden: true });
    this.list = h("ul", { class: "model-list", "aria-label": "Engines to choose from" });
    this.fields = {
      name: field("Name", "cellar"), url: field("Address", "http://127.0.0.1:8080"),
      model_name: field("Model on the server", ""), key: field("Key", "", "password"),
      shadow_model: field("Shadow model", "Shadow model: a small model here, or off"),
    };
    this.kind = h("select", { class: "field", "aria-label": "Kind", on: { change: () => this.#showFields() } },
      KINDS.map(([value, text]) => h("option", { value, text: `${value}: ${text}` })));
    const form = h("form", { class: "engine-form runs", on: onSubmit(() => this.#add()) },
      this.fields.name, this.kind, this.fields.url, this.fields.model_name, this.fields.key,
      this.fields.shadow_model,
      h("button", { type: "submit", class: "button", text: "Add" }));
    this.node = h("section", { class: "group engines" }, h("h3", { text: "On other machines" }),
      this.where, this.light, this.own, h("p", { class: "quiet runs", text: ABOUT }), this.notice, this.list, form);
    this.#showFields();
    app.store.on("window", () => this.node.isConnected && this.load());
    app.store.on("model", () => this.#calibrated());
  }

  async load() {
    const { api, store } = this.app;
    const asked = ++this.#asked;
    const none = { engines: [], notice: "" }; // which there are is told to whoever runs the server
    const told = store.guest ? none : await this.app.attempt(() => api.json("GET", "/api/engines"));
    const window = store.window;
    const where = window && await this.app.attempt(() => api.json("GET", `/api/windows/${window.id}/engine`));
    if (!told || asked !== this.#asked) return;
    const { engines, notice } = /** @type {Wire.Answers["GET /api/engines"]} */ (told);
    this.notice.textContent = notice;
    this.notice.hidden = !notice;
    this.#show(engines, where);
  }

  /** Where light comes from is known now. */
  #calibrated() {
    const change = this.app.store.status?.model.change;
    const told = change?.state === "calibrated" ? change.message : "";
    if (told && told !== this.#told && this.node.isConnected) this.load();
    this.#told = told;
  }

  /** @param {Engine[]} engines @param {Where | null | undefined} where */
  #show(engines, where) {
    this.where.textContent = where ? whereWords(where) : "";
    this.light.textContent = where?.attention_source ?? "";
    this.own.hidden = !where;
    this.rule.value = String(this.app.store.window?.effective.remote_scope ?? "");
    this.private.checked = where?.private ?? false;
    const title = "The model of all windows";
    const shared = where?.name && h("li", { class: "model-item" }, h("div", { class: "model-head" },
      h("span", { class: "model-title", text: title }), this.#use("", title)));
    fill(this.list, shared, engines.map((one) => this.#item(one, where)));
  }

  /** @param {Engine} one @param {Where | null | undefined} where */
  #item(one, where) {
    const used = where?.name === one.name;
    const shadow = one.shadow_model && `shadow model ${one.shadow_model}`;
    const about = [one.kind, one.url, one.model_name, shadow, one.has_key ? "with a key" : ""];
    return h("li", { class: used ? "model-item used" : "model-item", data: { name: one.name } },
      h("div", { class: "model-head" }, h("span", { class: "model-title", text: one.name }),
        used ? h("span", { class: "badge", text: "answers here" }) : this.#use(one.name, one.name),
        !one.configured && button("Change", () => this.#change(one), "small runs"),
        !one.configured && button("Remove", () => this.#remove(one.name), "small runs")),
      h("p", { class: "quiet", text: about.filter(Boolean).join(" · ") }),
      one.attention_source && h("p", { class: "quiet", text: one.attention_source }));
  }

  /** @param {string} name @param {string} title */
  #use(name, title) {
    const label = { "aria-label": `Use in this window: ${title}`, disabled: !this.app.store.window };
    return h("button", { type: "button", class: "button small owns", ...label, text: "Use in this window",
      on: { click: () => this.#choose(name) } });
  }

  /** @param {string} name */
  #choose(name) {
    return this.#set({ engine_name: name });
  }

  #rule() {
    return this.#set({ remote_scope: this.rule.value || null });
  }

  /** @param {Record<string, unknown>} settings */
  async #set(settings) {
    const id = this.app.store.window?.id;
    if (!id) return;
    this.#asked += 1; // what is on its way was true before this
    await this.app.changeWindow(id, { settings });
    await this.load();
  }

  /** Only what this kind needs. */
  #showFields() {
    const [, , needed] = KINDS.find(([kind]) => kind === this.kind.value) ?? KINDS[0];
    for (const [name, input] of Object.entries(this.fields)) input.hidden = name !== "name" && !needed.includes(name);
  }

  /** The form holds what is known of an engine. Its key is not told here: left empty, it stays. @param {Engine} one */
  #change(one) {
    const { name, url, model_name, shadow_model } = this.fields;
    this.kind.value = one.kind;
    [name.value, url.value] = [one.name, one.url];
    [model_name.value, shadow_model.value] = [one.model_name, one.shadow_model];
    this.#showFields();
    name.focus();
  }

  async #add() {
    const { name, ...others } = this.fields;
    if (!name.value.trim()) return name.focus();
    const needed = Object.entries(others).filter(([, input]) => !input.hidden);
    const told = Object.fromEntries(needed.map(([field, input]) => [field, input.value.trim()]));
    const body = { kind: this.kind.value, ...told };
    const added = await this.app.attempt(
      () => this.app.api.json("PUT", `/api/engines/${encodeURIComponent(name.value.trim())}`, { body }));
    if (!added) return;
    this.app.store.tell("engines");
    for (const input of Object.values(this.fields)) input.value = "";
    await this.load();
  }

  /** @param {string} name */
  async #remove(name) {
    await this.app.attempt(() => this.app.api.json("DELETE", `/api/engines/${encodeURIComponent(name)}`));
    this.app.store.tell("engines");
    await this.load();
  }
}

/** Above the conversation: where the words of this window go, if they leave this machine. */
export class WhereBadge {
  #asked = "";

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.node = h("span", { class: "badge where-badge", hidden: true, role: "status" });
    for (const topic of ["window", "windows", "status"]) app.store.on(topic, () => this.show());
    // An engine has another address, told here or by the server after a change elsewhere.
    for (const topic of ["engines", "context"]) app.store.on(topic, () => {
      this.#asked = "";
      this.show();
    });
  }

  /** A window with the model of all needs no question: the status says where that runs. */
  async show() {
    const { store, api } = this.app;
    const window = store.window;
    const own = window?.effective.engine_name ?? "";
    const asked = window ? `${window.id} ${JSON.stringify(window.effective)} ${store.status?.model.remote_host}` : "";
    if (asked === this.#asked) return;
    this.#asked = asked;
    const far = store.status?.model.remote_host ?? "";
    this.node.hidden = true;
    if (!window || (!own && !far)) return;
    const where = /** @type {Where} */ (await api.json("GET", `/api/windows/${window.id}/engine`).catch(() => null));
    if (!where || this.#asked !== asked) return;
    this.node.hidden = !where.remote_host && where.known;
    this.node.textContent = !where.known ? `no ${where.name}` : where.private ? "private" : `→ ${where.remote_host}`;
    this.node.title = whereWords(where);
  }
}

/** @param {string} label @param {string} placeholder @param {string} [type] */
function field(label, placeholder, type = "text") {
  const plain = { autocomplete: "off", spellcheck: "false", maxlength: "2000" };
  return h("input", { class: "field", type, "aria-label": label, placeholder: placeholder || label, ...plain });
}
