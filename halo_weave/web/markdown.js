// Markdown becomes a tree of plain values, each text with its place in the source. No page; markup in it stays text.

import "./vendor/markdown-it/markdown-it.min.js";

/**
 * @typedef {{text: string, from: number, whole?: boolean}} Leaf `from`: where its first character stands in the source;
 *   `whole`: all of it stands for what begins there, such as an entity
 * @typedef {{tag: string, props?: Record<string, any>, children: (Leaf | Branch)[]}} Branch
 * @typedef {{source: string, from: number, children: (Leaf | Branch)[]}} Block a top-level part of the text
 */

/** @type {any} */
const parser = /** @type {any} */ (globalThis).markdownit({ html: false, linkify: true, typographer: false });
parser.core.ruler.disable("text_join"); // escapes and entities stay apart, with what stands for them in the source

const FENCE = /^ {0,3}(`{3,}|~{3,})(.*)$/;
const TASK = /^\[([ xX])\][ \t]/;
const SAFE = /^(https?:|mailto:)/i;
/** @type {Record<string, string>} */
const TAGS = {
  paragraph_open: "p", bullet_list_open: "ul", ordered_list_open: "ol", list_item_open: "li", em_open: "em",
  blockquote_open: "blockquote", table_open: "table", thead_open: "thead", tbody_open: "tbody", tr_open: "tr",
  th_open: "th", td_open: "td", strong_open: "strong", s_open: "s",
};

const BREAKS = new Set(["p", "li", "th", "td", "tr", "pre", "h3", "h4", "h5", "h6"]);

/**
 * The fence that is open where a text ends, as a line that opens it again; "" if none is.
 * @param {string} text @param {string} [before] the fence that was open where it began
 */
export function openFence(text, before = "") {
  let open = before;
  for (const line of text.split("\n")) {
    const [, marks = "", rest = ""] = FENCE.exec(line) ?? [];
    if (!marks) continue;
    const opened = FENCE.exec(open)?.[1] ?? "";
    if (!open) open = `${marks}${rest}`;
    else if (opened[0] === marks[0] && marks.length >= opened.length && !rest.trim()) open = "";
  }
  return open;
}

/**
 * The parts of a text, in order. Together they show all of it but its marks.
 * @param {string} text @param {string} [fence] that is open where it begins
 * @returns {Block[]}
 */
export function blocksOf(text, fence = "") {
  const prefix = fence ? `${fence}\n` : "";
  const source = prefix + text;
  const lines = [0];
  for (let at = source.indexOf("\n"); at >= 0; at = source.indexOf("\n", at + 1)) lines.push(at + 1);
  const placeOf = (/** @type {number} */ line) => lines[line] ?? source.length;
  /** @type {Block[]} */
  const blocks = [];
  let first = 0;
  const tokens = parser.parse(source, {});
  tokens.forEach((/** @type {any} */ token, /** @type {number} */ i) => {
    if (token.level !== 0 || token.nesting === 1) return;
    const own = tokens.slice(first, i + 1);
    first = i + 1;
    const [start, stop] = own[0].map ?? [0, lines.length];
    const reader = new Reader(source, placeOf(start), placeOf(stop), prefix.length);
    const from = Math.max(0, placeOf(start) - prefix.length);
    blocks.push({ source: source.slice(placeOf(start), placeOf(stop)), from, children: reader.read(own) });
  });
  return blocks;
}

/** The words of a text without its marks, on one line. @param {string} text */
export function plainOf(text) {
  /** @param {Leaf | Branch} one @returns {string} */
  const words = (one) => ("text" in one ? one.text : one.tag === "br" ? " " : one.children.map(words).join("") +
    (BREAKS.has(one.tag) ? " " : ""));
  return blocksOf(text).map((block) => block.children.map(words).join("")).join(" ").replace(/\s+/g, " ").trim();
}

/** Reads the parser's tokens of one block, and finds each text again in the source. */
class Reader {
  /** @param {string} source @param {number} at @param {number} end @param {number} shift before the text proper */
  constructor(source, at, end, shift) {
    this.source = source;
    this.at = at;
    this.end = end;
    this.shift = shift;
  }

  /** @param {any[]} tokens @returns {(Leaf | Branch)[]} */
  read(tokens) {
    /** @type {Branch} */
    const top = { tag: "", children: [] };
    const open = [top];
    for (const token of tokens) {
      const inside = open[open.length - 1];
      if (token.nesting === 1) {
        const branch = this.#branch(token);
        if (branch) inside.children.push(branch);
        open.push(branch ?? inside);
      } else if (token.nesting === -1) {
        open.pop();
        if (token.type === "link_close") this.#passTarget();
      } else this.#put(token, inside, open[open.length - 2]);
    }
    return top.children;
  }

  /** @param {any} token @returns {Branch | null} null: it is shown without an element of its own */
  #branch(token) {
    if (token.hidden) return null;
    if (token.type === "heading_open") return { tag: `h${Math.min(6, Number(token.tag[1]) + 2)}`, children: [] };
    if (token.type === "link_open") {
      const href = String(token.attrGet("href") ?? "");
      if (!SAFE.test(href)) return null;
      return { tag: "a", props: { href, target: "_blank", rel: "noopener noreferrer" }, children: [] };
    }
    const tag = TAGS[token.type];
    if (!tag) return null;
    const start = token.type === "ordered_list_open" ? Number(token.attrGet("start") ?? 1) : 1;
    const align = /text-align:(\w+)/.exec(String(token.attrGet("style") ?? ""))?.[1];
    const props = start !== 1 ? { start } : align ? { class: `align-${align}` } : {};
    return { tag, props, children: [] };
  }

  /** @param {any} token @param {Branch} place @param {Branch} [outside] */
  #put(token, place, outside) {
    const { children } = place;
    switch (token.type) {
      case "inline": {
        const task = TASK.exec(token.content);
        const first = place.tag === "p" && outside?.tag === "li" && outside.children[0] === place;
        const item = place.tag === "li" || first;
        if (task && item && token.children[0]?.type === "text") this.#task(task, token, place);
        children.push(...this.read(token.children));
        return;
      }
      case "text": children.push(...this.leaves(token.content)); return;
      case "text_special": children.push({ ...this.leaves(token.markup)[0], text: token.content, whole: true }); return;
      case "softbreak": children.push(...this.leaves("\n")); return;
      case "hardbreak": children.push({ tag: "br", children: [] }); return;
      case "code_inline": children.push({ tag: "code", children: this.leaves(token.content) }); return;
      case "hr": children.push({ tag: "hr", children: [] }); return;
      case "image": {
        const text = `[image: ${token.content || token.attrGet("src")}]`; // never loaded: it may lie anywhere
        children.push({ text, from: Math.max(0, this.at - this.shift), whole: true });
        return;
      }
      case "fence":
      case "code_block": {
        if (token.type === "fence") this.#passLine();
        const language = String(token.info ?? "").trim().split(/\s+/)[0] ?? "";
        children.push({ tag: "pre", props: { language }, children: this.leaves(token.content.replace(/\n$/, "")) });
        return;
      }
      default: if (token.content) children.push(...this.leaves(token.content));
    }
  }

  /** @param {RegExpExecArray} task @param {any} token @param {Branch} place */
  #task(task, token, place) {
    const checked = task[1] !== " ";
    place.children.push({ tag: "task", props: { checked }, children: [] });
    token.children[0].content = token.children[0].content.replace(TASK, "");
    const found = this.source.indexOf(task[0], this.at);
    if (found >= 0) this.at = found + task[0].length;
  }

  /** A text at its place. One that does not stand there as it is, is looked for line by line. @param {string} text */
  leaves(text) {
    if (!text) return [];
    const found = this.#find(text);
    if (found) return [found];
    const lines = text.split(/(?<=\n)/);
    if (lines.length === 1) return [{ text, from: Math.max(0, this.at - this.shift), whole: true }];
    /** @type {Leaf[]} */
    const leaves = [];
    for (const line of lines) {
      leaves.push(this.#find(line) ?? { text: line, from: Math.max(0, this.at - this.shift), whole: true });
    }
    return leaves;
  }

  /** @param {string} text @returns {Leaf | null} */
  #find(text) {
    const found = this.source.indexOf(text, this.at);
    if (found < 0 || found + text.length > this.end) return null;
    this.at = found + text.length;
    return { text, from: found - this.shift };
  }

  /** Behind the address of a link, whose words are not the text's. */
  #passTarget() {
    if (!this.source.startsWith("](", this.at)) return;
    const end = this.source.indexOf(")", this.at);
    if (end >= 0 && end < this.end) this.at = end + 1;
  }

  #passLine() {
    const end = this.source.indexOf("\n", this.at);
    this.at = end < 0 || end >= this.end ? this.end : end + 1;
  }
}
