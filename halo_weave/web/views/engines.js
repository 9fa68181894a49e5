// Engines on other machines: those that a window can choose, which one answers in this window, and adding one.

import { button, fill, h, onSubmit } from "../dom.js";

const ABOUT = "A server that runs a model: another Halo Weave, or any with /v1/chat/completions. This window sends " +
  "its live context there.";
/** @type {Record<Where["rule"], string>} */
const RULES = {
  all: "everything it remembers",
  window: "only what was said in this window",
  not_private: "nothing from private windows",
};
const KINDS = [["openai", "any /v1 server"], ["kobold", "Halo Weave, KoboldCPP"], ["llama", "a model here"]];

/** Where the words of a window go, in a sentence. @param {Where} where */
export function whereWords(where) {
  const who = where.name ? `${where.name} answers here` : "The model of all windows answers here";
  const place = where.elsewhere ? `words are sent to ${where.elsewhere}` : "words stay on this machine";
  const faults = where.malformed ? ` ${where.malformed} rows of attention could not be used.` : "";
  return `${who}; ${place}. It may read ${RULES[where.rule]}.${faults}`;
}

export class EnginesPart {
  #told = "";

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.where = h("p", { class: "engine-where" });
    this.light = h("p", { class: "quiet" });
    this.notice = h("p", { role: "status", hidden: true });
    this.list = h("ul", { class: "model-list", "aria-label": "Engines to choose from" });
    this.fields = {
      name: field("Name", "cellar"), url: field("Address", "http://127.0.0.1:8080"),
      model_name: field("Model, as the server knows it", ""), key: field("Key", "", "password"),
    };
    this.kind = h("select", { class: "field", "aria-label": "Kind" },
      KINDS.map(([value, text]) => h("option", { value, text: `${value}: ${text}` })));
    const form = h("form", { class: "engine-form", on: onSubmit(() => this.#add()) },
      this.fields.name, this.kind, this.fields.url, this.fields.model_name, this.fields.key,
      h("button", { type: "submit", class: "button", text: "Add" }));
    this.node = h("section", { class: "group engines" }, h("h3", { text: "On other machines" }),
      this.where, this.light, h("p", { class: "quiet", text: ABOUT }), this.notice, this.list, form);
    app.store.on("window", () => this.node.isConnected && this.load());
    app.store.on("model", () => this.#calibrated());
  }

  async load() {
    const { api, store } = this.app;
    const told = await this.app.attempt(() => api.json("GET", "/api/engines"));
    const window = store.window;
    const where = window && await this.app.attempt(() => api.json("GET", `/api/windows/${window.id}/engine`));
    if (!told) return;
    const { engines, notice } = /** @type {Wire.Answers["GET /api/engines"]} */ (told);
    this.notice.textContent = notice;
    this.notice.hidden = !notice;
    this.#show(engines, where);
  }

  /** Where light comes from is known now. */
  #calibrated() {
    const change = this.app.store.status?.model.change;
    const told = change?.state === "calibrated" ? change.sentence : "";
    if (told && told !== this.#told && this.node.isConnected) this.load();
    this.#told = told;
  }

  /** @param {Engine[]} engines @param {Where | null | undefined} where */
  #show(engines, where) {
    this.where.textContent = where ? whereWords(where) : "";
    this.light.textContent = where?.light ?? "";
    const title = "The model of all windows";
    const shared = where?.name && h("li", { class: "model-item" }, h("div", { class: "model-head" },
      h("span", { class: "model-title", text: title }), this.#use("", title)));
    fill(this.list, shared, engines.map((one) => this.#item(one, where)));
  }

  /** @param {Engine} one @param {Where | null | undefined} where */
  #item(one, where) {
    const used = where?.name === one.name;
    const about = [one.kind, one.url, one.model_name, one.has_key ? "with a key" : ""].filter(Boolean).join(" · ");
    return h("li", { class: used ? "model-item used" : "model-item", data: { name: one.name } },
      h("div", { class: "model-head" }, h("span", { class: "model-title", text: one.name }),
        used ? h("span", { class: "badge", text: "answers here" }) : this.#use(one.name, one.name),
        !one.configured && button("Remove", () => this.#remove(one.name), "small")),
      h("p", { class: "quiet", text: about }));
  }

  /** @param {string} name @param {string} title */
  #use(name, title) {
    const label = { "aria-label": `Use in this window: ${title}`, disabled: !this.app.store.window };
    return h("button", { type: "button", class: "button small", ...label, text: "Use in this window",
      on: { click: () => this.#choose(name) } });
  }

  /** @param {string} name */
  async #choose(name) {
    const id = this.app.store.window?.id;
    if (!id) return;
    await this.app.attempt(() => this.app.api.changeWindow(id, { settings: { answered_by: name } }));
    await this.load();
  }

  async #add() {
    const { name, url, model_name, key } = this.fields;
    if (!name.value.trim()) return name.focus();
    const body = { kind: this.kind.value, url: url.value.trim(), model_name: model_name.value.trim(), key: key.value };
    const told = await this.app.attempt(
      () => this.app.api.json("PUT", `/api/engines/${encodeURIComponent(name.value.trim())}`, { body }));
    if (!told) return;
    for (const input of Object.values(this.fields)) input.value = "";
    await this.load();
  }

  /** @param {string} name */
  async #remove(name) {
    await this.app.attempt(() => this.app.api.json("DELETE", `/api/engines/${encodeURIComponent(name)}`));
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
  }

  /** A window with the model of all needs no question: the status says where that runs. */
  async show() {
    const { store, api } = this.app;
    const window = store.window;
    const own = window?.effective.answered_by ?? "";
    const asked = window ? `${window.id} ${JSON.stringify(window.effective)} ${store.status?.model.elsewhere}` : "";
    if (asked === this.#asked) return;
    this.#asked = asked;
    const far = store.status?.model.elsewhere ?? "";
    this.node.hidden = true;
    if (!window || (!own && !far)) return;
    const where = /** @type {Where} */ (await api.json("GET", `/api/windows/${window.id}/engine`).catch(() => null));
    if (!where || this.#asked !== asked) return;
    this.node.hidden = !where.elsewhere;
    this.node.textContent = `→ ${where.elsewhere}`;
    this.node.title = whereWords(where);
  }
}

/** @param {string} label @param {string} placeholder @param {string} [type] */
function field(label, placeholder, type = "text") {
  const plain = { autocomplete: "off", spellcheck: "false", maxlength: "2000" };
  return h("input", { class: "field", type, "aria-label": label, placeholder: placeholder || label, ...plain });
}
