// Models: the one in use and what should be known of it, one on its way, and those that can be had.

import { button, fill, h, onSubmit } from "../dom.js";
import { counted, percent, size } from "../words.js";
import { EnginesPart } from "./engines.js";

const ABOUT = "Choose a model for your conversations. Keep chatting while it loads. " +
  "If loading fails, nothing changes.";
const CALIBRATING = "Once for each model, between your turns. Until then all attention heads are used.";
const OTHER = "A model from the hub, such as hf:Qwen/Qwen3-4B-GGUF";
const OR_PATH = ", or the path of a GGUF file on the server's machine";

export class ModelsView {
  title = "Models";
  /** @type {Models | null} */
  #listed = null;
  #loading = false;
  /** The model whose list is shown. */
  #file = "";

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.used = h("div", { class: "model-used" });
    this.change = h("div", { class: "model-change", role: "status", hidden: true });
    this.list = h("ul", { class: "model-list", "aria-label": "Models to choose from" });
    this.input = h("input", {
      class: "field", "aria-label": "Another model", autocomplete: "off", spellcheck: "false", maxlength: "4096",
    });
    this.hint = h("p", { class: "quiet" });
    this.engines = new EnginesPart(app);
    const other = h("form", { class: "filters", on: onSubmit(() => this.#choose(this.input.value.trim())) },
      this.input, h("button", { type: "submit", class: "button", text: "Use" }));
    this.node = h("div", { class: "drawer-body" },
      group("In use", this.used, this.change),
      h("div", { class: "runs" }, // only whoever runs the server
        group("To choose from", h("p", { class: "quiet", text: ABOUT }), this.list),
        group("Another one", other, this.hint)),
      this.engines.node);
    for (const topic of ["status", "model"]) app.store.on(topic, () => this.node.isConnected && this.show());
  }

  shown() {
    this.show();
    this.#load();
    this.engines.load();
  }

  async #load() {
    if (this.#loading || this.app.store.guest) return;
    this.#loading = true;
    const listed = await this.app.attempt(() => this.app.api.models());
    this.#loading = false;
    if (listed) this.#listed = listed;
    this.show();
  }

  /** @param {string} name */
  async #choose(name) {
    if (!name) return this.input.focus();
    const told = await this.app.chooseModel(name);
    if (told && name === this.input.value.trim()) this.input.value = "";
  }

  show() {
    const model = this.app.store.status?.model;
    if (!model) return;
    fill(this.used, usedWords(model));
    this.#showChange(model);
    this.#showList(model);
    if (this.#file !== model.file) {
      this.#file = model.file;
      this.#load();
    }
  }

  /** @param {Status["model"]} model */
  #showChange(model) {
    const { change } = model;
    const loading = change?.state === "loading";
    const working = loading || change?.state === "calibrating";
    const settled = change?.state === "done" || change?.state === "calibrated";
    this.change.hidden = !change || settled || (model.state !== "ready" && !loading);
    if (!change || this.change.hidden) return;
    this.change.classList.toggle("bad", change.state === "failed");
    const bar = h("progress", { "aria-label": "Progress", max: "1", value: change.progress });
    fill(this.change,
      h("p", {},
        change.model && h("strong", { text: `${change.model}: ` }), change.message,
        change.progress !== null && ` ${percent(change.progress)}`,
        !working && model.state === "ready" && ` ${model.name} stays.`),
      change.state === "calibrating" && h("p", { class: "quiet", text: CALIBRATING }),
      working && h("div", { class: "model-bar" },
        bar, loading && button("Stop", () => this.app.stopModel(), "small runs")));
  }

  /** @param {Status["model"]} model */
  #showList(model) {
    const listed = this.#listed;
    if (!listed) return fill(this.list, h("li", { class: "quiet", text: "Looking for models…" }));
    const busy = model.change?.state === "loading";
    const focused = /** @type {HTMLElement | null} */ (document.activeElement)?.dataset?.model;
    fill(this.list, listed.models.filter((one) => one.kind !== "embedder").map((one) => this.#item(one, busy)));
    const memory = `This machine has ${size(listed.memory)} of memory.`;
    this.hint.textContent = `${OTHER}${listed.any_path ? OR_PATH : ""}. ${memory}`;
    const again = focused && this.node.querySelector(`button[data-model="${CSS.escape(focused)}"]`);
    if (again) /** @type {HTMLElement} */ (again).focus({ preventScroll: true });
  }

  /** @param {string} name @param {string} title @param {boolean} busy @param {string} text */
  #use(name, title, busy, text) {
    const about = { "aria-label": `${text}: ${title}`, disabled: busy, data: { model: name }, text };
    const on = { click: () => this.#choose(name) };
    return h("button", { type: "button", class: "button small", ...about, on });
  }

  /** @param {Models["models"][number]} one @param {boolean} busy */
  #item(one, busy) {
    const fits = one.fits === false ? "too large for this machine" : "";
    const suits = one.where === "to pull" && one.fits ? "fits this machine" : "";
    const needs = one.needs === null ? "" : `needs ${size(one.needs)}`;
    const about = one.source === "hub" ? "about " : ""; // its size is rounded
    const where = one.where === "to pull" ? `${about}${size(one.size)} to download` : `${size(one.size)}, ${one.where}`;
    const text = one.where === "to pull" ? "Pull and use" : "Use";
    const asked = (one.source !== "catalogue" && one.path) || one.name;
    return h("li", { class: one.in_use ? "model-item used" : "model-item", data: { name: one.name } },
      h("div", { class: "model-head" },
        h("span", { class: "model-title", text: one.title }),
        one.in_use
          ? h("span", { class: "badge", text: "in use" }) : this.#use(asked, one.title, busy, text)),
      h("p", { class: "quiet", text: [where, needs, suits, one.license].filter(Boolean).join(" · ") }),
      [fits, one.problem].filter(Boolean).map((words) => h("p", { class: "bad", text: words })),
      one.note && h("p", { class: "quiet", text: one.note }));
  }
}

/** What should be known of the model in use. @param {Status["model"]} model */
export function modelNotes(model) {
  return [model.note, model.template_note].filter(Boolean);
}

/** @param {Status["model"]} model */
function usedWords(model) {
  if (model.state !== "ready") {
    const share = model.progress === null ? "" : ` ${percent(model.progress)}`;
    return [h("p", { class: model.state === "missing" ? "bad" : "", text: `${model.message}${share}` })];
  }
  const thinks = model.efforts.length ? `thinks before it answers (effort: ${model.efforts.join(", ")})`
    : model.thinks ? "thinks before it answers" : "";
  const facts = [
    model.size_bytes ? size(model.size_bytes) : "", `${counted(model.context, "token")} of context`, thinks,
    model.native_tools ? "calls tools in its own format" : "",
  ];
  return [
    h("p", { class: "model-title" }, h("span", { class: "dot ready" }), model.name),
    h("p", { class: "quiet", text: facts.filter(Boolean).join(" · ") }),
    ...modelNotes(model).map((text) => h("p", { class: "model-note", text })),
    ...(model.attention_source ? [h("p", { class: "quiet", text: model.attention_source })] : []),
  ];
}

/** @param {string} title @param {...Node} nodes */
function group(title, ...nodes) {
  return h("section", { class: "group" }, h("h3", { text: title }), nodes);
}
