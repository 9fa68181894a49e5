// A field for JSON that says at once where it is wrong.

import { h } from "../dom.js";

let count = 0;

export class JsonField {
  /** @param {string} label @param {unknown} value @param {(value: unknown) => string} [check] a sentence if the value will not do */
  constructor(label, value, check = () => "") {
    this.check = check;
    const id = `json-${++count}`;
    this.problem = h("p", { class: "problem", id, role: "alert" });
    this.input = h("textarea", { class: "field code", rows: "14", spellcheck: "false", "aria-describedby": id });
    this.node = h("label", { class: "stack" }, h("span", { class: "label", text: label }), this.input, this.problem);
    this.input.addEventListener("input", () => this.look());
    this.set(value);
  }

  /** @param {unknown} value */
  set(value) {
    this.input.value = JSON.stringify(value, null, 2);
    this.look();
  }

  look() {
    /** @type {unknown} */
    this.value = undefined;
    let sentence = "";
    try {
      this.value = JSON.parse(this.input.value);
      sentence = this.check(this.value);
    } catch (error) {
      sentence = mistake(this.input.value, /** @type {Error} */ (error).message);
    }
    this.valid = !sentence;
    if (this.problem.textContent !== sentence) this.problem.textContent = sentence;
    this.input.setAttribute("aria-invalid", String(!this.valid));
    this.node.dispatchEvent(new Event("checked"));
  }
}

/** Where the JSON is wrong, as line and column. @param {string} text @param {string} message */
export function mistake(text, message) {
  const said = message.match(/line (\d+) column (\d+)/);
  if (said) return `Not valid JSON: line ${said[1]}, column ${said[2]}.`;
  const at = message.match(/position (\d+)/);
  const place = at ? Number(at[1]) : /end of (JSON )?(input|data)/i.test(message) ? text.length : -1;
  if (place < 0) return "Not valid JSON.";
  const before = text.slice(0, place).split("\n");
  return `Not valid JSON: line ${before.length}, column ${(before.at(-1) ?? "").length + 1}.`;
}
