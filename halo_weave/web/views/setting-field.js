// One setting: its value, range, default and meaning, and why a value will not do.

import { h, iconButton } from "../dom.js";
import { figure, label } from "../words.js";

export class SettingField {
  /** @param {Described} about @param {(value: SettingValue | undefined) => Promise<unknown>} change */
  constructor(about, change) {
    this.about = about;
    this.change = change;
    const id = `setting-${about.name}`;
    this.input = this.#input(id);
    const back = { class: "small", hint: "Back to the default" };
    this.reset = iconButton("undo", `Reset ${label(about.name)}`, () => this.#set(undefined), back);
    this.from = h("span", {});
    this.idle = h("p", { class: "no-effect", id: `${id}-idle`, hidden: true });
    this.problem = h("p", { class: "problem", id: `${id}-problem`, role: "alert" });
    this.node = h("div", { class: `setting ${about.type === "text" ? "lines" : about.type}` },
      h("div", { class: "setting-head" },
        h("label", { for: id, class: "label", text: label(about.name) }), this.reset, this.input),
      h("p", { class: "quiet", id: `${id}-about` }, h("span", { text: `${about.meaning} ` }), this.from), this.idle,
      this.problem);
    this.input.setAttribute("aria-describedby", `${id}-about ${id}-idle ${id}-problem`);
  }

  /** @param {string} id @returns {HTMLInputElement | HTMLSelectElement | HTMLTextAreaElement} */
  #input(id) {
    const { about } = this;
    const on = { change: () => this.#set(this.#read()) };
    if (about.type === "boolean") return h("input", { id, type: "checkbox", class: "switch", role: "switch", on });
    if (about.type === "choice") {
      const values = about.optional ? ["", ...about.choices] : about.choices;
      const options = values.map((value) => h("option", { value, text: value.replaceAll("_", " ") || "default" }));
      return h("select", { id, class: "field", on }, options);
    }
    if (about.type === "day") return h("input", { id, type: "date", class: "field", on });
    if (about.type === "text") return h("textarea", { id, class: "field", rows: "2", maxlength: about.high, on });
    const range = { min: about.low, max: about.high, step: about.type === "integer" ? 1 : "any" };
    const placeholder = about.optional ? "off" : "";
    return h("input", { id, type: "number", class: "field", ...range, placeholder, inputmode: "decimal", on });
  }

  /** @returns {SettingValue} */
  #read() {
    const { input, about } = this;
    if (about.type === "boolean") return /** @type {HTMLInputElement} */ (input).checked;
    if (about.type === "choice" || about.type === "day") return input.value || null;
    if (about.type === "text") return input.value;
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

  /** A setting that changes nothing says so. @param {string} strategy that is chosen */
  showEffect(strategy) {
    const why = this.about.no_effect[strategy];
    this.idle.hidden = !why;
    this.idle.textContent = why ? `No effect with the strategy ${strategy.replaceAll("_", " ")}: ${why}` : "";
  }

  /** @param {string} problem "" if there is none */
  #mark(problem) {
    this.problem.textContent = problem ? aboutField(problem) : "";
    if (problem) this.input.setAttribute("aria-invalid", "true");
    else this.input.removeAttribute("aria-invalid");
  }

  /**
   * @param {SettingValue} value @param {boolean} changed @param {SettingValue} fallback @param {boolean} forWindow
   * @param {{now: SettingValue | undefined, fallback: SettingValue | undefined}} [auto] what an empty value comes to
   */
  show(value, changed, fallback, forWindow, auto) {
    const { input, about } = this;
    const typing = about.type !== "boolean" && about.type !== "choice" && document.activeElement === input;
    if (!typing && !this.problem.textContent) {
      if (about.type === "boolean") /** @type {HTMLInputElement} */ (input).checked = Boolean(value);
      else input.value = value === null ? "" : String(value);
    }
    this.node.classList.toggle("changed", changed);
    if (!changed && document.activeElement === this.reset) input.focus(); // it is about to go
    this.reset.hidden = !changed;
    const bounded = about.low !== null && about.high !== null;
    const range = bounded ? `${figure(about.low ?? 0)} to ${figure(about.high ?? 0)}; ` : "";
    const words = fallback === null && auto ? autoWords(auto.fallback) : valueWords(fallback);
    this.from.textContent = `(${range}${forWindow ? "all windows" : "default"}: ${words})`;
    if (auto) input.setAttribute("placeholder", autoWords(auto.now));
  }
}

/** @param {SettingValue | undefined} value */
function autoWords(value) {
  return typeof value === "number" ? `auto: ${figure(value)}` : "auto";
}

/** @param {SettingValue} value */
function valueWords(value) {
  if (value === null || typeof value === "boolean") return value ? "on" : "off";
  if (value === "") return "none";
  return typeof value === "number" ? figure(value) : value.replaceAll("_", " ");
}

/** Why a number will not do, "" if it will. @param {Described} about @param {number} value */
function refused({ type, low, high }, value) {
  if (Number.isNaN(value)) return "Use a number.";
  if (value < (low ?? -Infinity) || value > (high ?? Infinity)) {
    if (low !== null && high !== null) return `Use ${figure(low)} to ${figure(high)}.`;
    return low !== null ? `Use ${figure(low)} or more.` : `Use ${figure(high ?? 0)} or less.`;
  }
  return type === "integer" && !Number.isInteger(value) ? "Use a whole number." : "";
}

/** The server's sentence without the way to the field: the field is here. @param {string} sentence */
function aboutField(sentence) {
  const bare = sentence.replace(/^[a-z_]+(?:\.\w+)*:\s+/, "");
  return bare.charAt(0).toUpperCase() + bare.slice(1);
}
