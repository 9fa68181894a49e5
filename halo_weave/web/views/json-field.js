// A field for JSON that says at once where it is wrong, and that takes plain words and simple fields too.

import { h } from "../dom.js";

let count = 0;

export class JsonField {
  /**
   * @param {string} label @param {unknown} value
   * @param {(value: unknown) => string} [check] a sentence if the value will not do
   */
  constructor(label, value, check = () => "") {
    this.check = check;
    const id = `json-${++count}`;
    this.problem = h("p", { class: "problem", id, role: "alert" });
    this.input = h("textarea", { class: "field code", rows: "14", spellcheck: "false", "aria-describedby": id });
    const how = h("span", { class: "quiet", text: "Plain words, fields (name: value, one on each line), or JSON." });
    this.node = h("label", { class: "stack" },
      h("span", { class: "label", text: label }), this.input, how, this.problem);
    this.input.addEventListener("input", () => this.look());
    this.set(value);
  }

  /** @param {unknown} value */
  set(value) {
    this.input.value = typeof value === "string" && value ? value : JSON.stringify(value, null, 2);
    this.look();
  }

  look() {
    /** @type {unknown} */
    this.value = undefined;
    let sentence = "";
    try {
      this.value = valueOf(this.input.value);
      sentence = this.check(this.value);
    } catch {
      sentence = mistake(this.input.value);
    }
    this.valid = !sentence;
    if (this.problem.textContent !== sentence) this.problem.textContent = sentence;
    this.input.setAttribute("aria-invalid", String(!this.valid));
    this.node.dispatchEvent(new Event("checked"));
  }
}

/** Where the JSON is wrong, as line and column. @param {string} text */
export function mistake(text) {
  const before = text.slice(0, wrongAt(text)).split("\n");
  return `Not valid JSON: line ${before.length}, column ${(before.at(-1) ?? "").length + 1}.`;
}

const FIELD = /^\s*([^:{}[\]"\n]{1,60}?)\s*:\s+(\S.*)$/;

/**
 * What was typed, as a value: JSON, lines of the form "name: value", or plain words.
 * What begins like JSON must be JSON.
 * @param {string} text
 */
export function valueOf(text) {
  if (/^\s*([{["]|$)/.test(text)) return JSON.parse(text);
  try {
    return JSON.parse(text);
  } catch {
    const lines = text.split("\n").filter((line) => line.trim());
    const fields = lines.map((line) => FIELD.exec(line));
    if (!fields.every((field) => field)) return text.trim();
    return Object.fromEntries(fields.map((field) => [field?.[1] ?? "", simple(field?.[2] ?? "")]));
  }
}

/** A number, yes or no as such, else the words. @param {string} text */
function simple(text) {
  const plain = text.trim();
  return /^(true|false|null|-?\d+(\.\d+)?)$/.test(plain) ? JSON.parse(plain) : plain;
}

const SPACE = /[ \t\n\r]*/y;
const STRING = /"(?:[^"\\\u0000-\u001f]|\\(?:["\\/bfnrt]|u[0-9a-fA-F]{4}))*"/;
const NUMBER = /-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?(?![\w.])/;
const TOKEN = new RegExp(`[{}[\\],:]|${STRING.source}|${NUMBER.source}|(?:true|false|null)(?!\\w)`, "y");

/** The place of the first token that cannot stand where it stands: not every browser tells it. @param {string} text */
function wrongAt(text) {
  /** @type {string[]} */
  const open = [];
  let wanted = "value";
  for (let at = 0; ; ) {
    SPACE.lastIndex = at;
    SPACE.exec(text);
    TOKEN.lastIndex = at = SPACE.lastIndex;
    const token = TOKEN.exec(text)?.[0] ?? "";
    const next = token ? follows(token, wanted, open) : "";
    if (!next) return at;
    wanted = next;
    at += token.length;
  }
}

/**
 * What may come after a token, "" if it may not stand here.
 * @param {string} token @param {string} wanted @param {string[]} open the braces around it
 */
function follows(token, wanted, open) {
  const after = () => (open.length ? "more" : "end");
  if (token === "}" || token === "]") {
    const fits = wanted === "more" || wanted === (token === "}" ? "first key" : "first value");
    return fits && open.pop() === (token === "}" ? "{" : "[") ? after() : "";
  }
  if (token === ":") return wanted === "colon" ? "value" : "";
  if (token === ",") return wanted !== "more" ? "" : open.at(-1) === "{" ? "key" : "value";
  if (wanted === "key" || wanted === "first key") return token.startsWith('"') ? "colon" : "";
  if (wanted !== "value" && wanted !== "first value") return "";
  if (token !== "{" && token !== "[") return after();
  open.push(token);
  return token === "{" ? "first key" : "first value";
}
