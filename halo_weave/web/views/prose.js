// A text on the page: Markdown as nodes, or raw. Every token is one or more spans that know which token they show.

import { h, iconButton } from "../dom.js";
import { isLoaded, languageOf, load, runsOf } from "../highlight.js";
import { blocksOf } from "../markdown.js";
import { highlighted } from "../words.js";

/**
 * @typedef {HTMLSpanElement & {at: number, kind: string, step: number}} Part a token, or what stands of it in one
 *   place; `kind`: its class without light, `step`: of light
 * @typedef {{source: string, from: number, nodes: Node[], parts: Part[]}} ShownBlock
 * @typedef {import("../markdown.js").Leaf} Leaf
 * @typedef {import("../markdown.js").Branch} Branch
 */

/** @type {Record<string, string>} */
const KINDS = { // of Prism's kinds those that have a colour
  keyword: "word", boolean: "word", builtin: "name", "class-name": "name", function: "name", tag: "name",
  selector: "name",
  string: "text", char: "text", "attr-value": "text", "template-string": "text", regex: "text", inserted: "text",
  number: "value", constant: "value", symbol: "value", property: "value", "attr-name": "value", variable: "value",
  comment: "note", prolog: "note", doctype: "note", deleted: "gone",
};

const INLINE = new Set(["em", "strong", "s", "code", "br"]);
const APART = new Set(["p", "li", "th", "td", "pre", "h3", "h4", "h5", "h6"]);

/**
 * The beginning of a text as it stands within a line: emphasis and code are shown, blocks are not.
 * @param {string} text @param {number} most characters of its source
 */
export function phrase(text, most) {
  /** @param {Leaf | Branch} one @returns {(Node | string)[]} */
  const nodes = (one) => {
    if ("text" in one) return [one.text];
    const children = one.children.flatMap(nodes);
    if (!INLINE.has(one.tag)) return APART.has(one.tag) ? [...children, " "] : children;
    return [h(/** @type {keyof HTMLElementTagNameMap} */ (one.tag), {}, children)];
  };
  const shown = text.length > most ? `${text.slice(0, most)}…` : text;
  return blocksOf(shown).flatMap((block) => [...block.children.flatMap(nodes), " "]);
}

export class Prose {
  /** @type {Part[]} */
  parts = [];
  /** @type {ShownBlock[]} */
  #blocks = [];
  /** Where each token begins in the text. @type {number[]} */
  #starts = [];
  #raw = false;
  #shown = 0;

  /** @param {HTMLElement} node @param {(at: number) => string} kindOf a token */
  constructor(node, kindOf) {
    this.node = node;
    this.kindOf = kindOf;
  }

  /**
   * Shows these tokens. What stands there already and did not change stays.
   * @param {string[]} pieces @param {{raw?: boolean, fence?: string}} [how]
   */
  show(pieces, { raw = false, fence = "" } = {}) {
    if (raw !== this.#raw || pieces.length < this.#shown) this.#clear();
    this.#raw = raw;
    if (raw) this.#grow(pieces);
    else this.#render(pieces, fence);
    this.#shown = pieces.length;
    this.node.classList.toggle("rendered", !raw);
  }

  #clear() {
    this.node.replaceChildren();
    this.parts = [];
    this.#blocks = [];
    this.#shown = 0;
  }

  /** @param {string[]} pieces */
  #grow(pieces) {
    const fresh = document.createDocumentFragment();
    for (let at = this.#shown; at < pieces.length; at++) if (pieces[at]) fresh.append(this.#part(pieces[at], at, ""));
    this.node.append(fresh);
  }

  /** @param {string[]} pieces @param {string} fence */
  #render(pieces, fence) {
    const text = pieces.join("");
    this.#starts = [];
    let start = 0;
    for (const piece of pieces) {
      this.#starts.push(start);
      start += piece.length;
    }
    const blocks = blocksOf(text, fence);
    let same = 0;
    while (same < Math.min(blocks.length, this.#blocks.length)) {
      const [now, before] = [blocks[same], this.#blocks[same]];
      if (now.source !== before.source || now.from !== before.from) break;
      same++;
    }
    for (const { nodes } of this.#blocks.slice(same)) for (const node of nodes) node.parentNode?.removeChild(node);
    this.#blocks.length = same;
    this.parts = this.#blocks.flatMap((block) => block.parts);
    for (const { source, from, children } of blocks.slice(same)) {
      const before = this.parts.length;
      const nodes = children.flatMap((child) => this.#nodes(child));
      this.node.append(...nodes);
      this.#blocks.push({ source, from, nodes, parts: this.parts.slice(before) });
    }
  }

  /** @param {Leaf | Branch} value @returns {Node[]} */
  #nodes(value) {
    if ("text" in value) return this.#spans(value, "");
    const { tag, props = {} } = value;
    if (tag === "pre") return [this.#code(value, String(props.language ?? ""))];
    if (tag === "task") {
      const label = props.checked ? "done" : "to do";
      return [h("input", { type: "checkbox", disabled: true, "aria-label": label, set: { checked: props.checked } })];
    }
    const children = value.children.flatMap((child) => this.#nodes(child));
    const node = h(/** @type {keyof HTMLElementTagNameMap} */ (tag), props, children);
    if (tag !== "table") return [node];
    return [h("div", { class: "table-place", tabindex: "0", role: "group", "aria-label": "Table" }, node)];
  }

  /** The spans of a text, cut where a token begins. @param {Leaf} leaf @param {string} kind */
  #spans({ text, from, whole }, kind) {
    let at = this.#tokenAt(from);
    if (whole) return [this.#part(text, at, kind)];
    /** @type {Node[]} */
    const spans = [];
    for (let done = 0; done < text.length;) {
      while (at + 1 < this.#starts.length && this.#starts[at + 1] <= from + done) at++;
      const next = at + 1 < this.#starts.length ? this.#starts[at + 1] - from : text.length;
      const stop = Math.min(text.length, Math.max(next, done + 1));
      spans.push(this.#part(text.slice(done, stop), at, kind));
      done = stop;
    }
    return spans;
  }

  /** @param {string} text @param {number} at @param {string} kind @returns {Part} */
  #part(text, at, kind) {
    const part = /** @type {Part} */ (document.createElement("span"));
    part.textContent = text;
    part.at = at;
    part.step = 0;
    part.kind = this.kindOf(at) || kind;
    if (part.kind) part.className = part.kind;
    this.parts.push(part);
    return part;
  }

  /** The token that a place in the text belongs to. @param {number} place */
  #tokenAt(place) {
    let low = 0, high = this.#starts.length - 1;
    while (low < high) {
      const middle = (low + high + 1) >> 1;
      if (this.#starts[middle] <= place) low = middle;
      else high = middle - 1;
    }
    return low;
  }

  /** @param {Branch} value @param {string} named */
  #code(value, named) {
    const leaves = /** @type {Leaf[]} */ (value.children);
    const language = languageOf(named);
    const code = h("code", {});
    const lines = leaves.map((leaf) => leaf.text).join("");
    const runs = language ? runsOf(lines, language) : undefined;
    if (runs && leaves.length === 1 && !leaves[0].whole) {
      let from = leaves[0].from;
      for (const { text, kind } of runs) {
        code.append(...this.#spans({ text, from }, KINDS[kind] ? `code-${KINDS[kind]}` : ""));
        from += text.length;
      }
    } else for (const leaf of leaves) code.append(...this.#spans(leaf, ""));
    if (language && !isLoaded(language)) this.#later(language);
    const bar = h("div", { class: "code-bar" }, h("span", { text: named || "code" }),
      iconButton("copy", "Copy the code", () => {}, { class: "small code-copy" }),
      iconButton("wrap", "Wrap long lines", () => {}, { class: "small code-wrap" }));
    const label = named ? `Code, ${named}` : "Code";
    return h("div", { class: "code" }, bar, h("pre", { tabindex: "0", role: "group", "aria-label": label }, code));
  }

  /** Once the language is there, its blocks are made anew. @param {string} language */
  async #later(language) {
    try {
      await load(language);
    } catch {
      return; // the code is readable without colours
    }
    this.node.dispatchEvent(new CustomEvent("recolour-code", { bubbles: true }));
  }

  /** Marks where these words stand. @param {string[]} words */
  mark(words) {
    for (const part of this.parts) {
      const pieces = highlighted(part.textContent ?? "", words);
      if (!pieces.some((piece) => piece.hit)) continue;
      part.replaceChildren(...pieces.map(({ text, hit }) => (hit ? h("mark", { text }) : text)));
    }
  }

  /** All blocks anew, the next time that they are shown. */
  forget() {
    if (!this.#raw) this.#clear();
  }
}
