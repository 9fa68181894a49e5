// One chunk on the page: its text, and the light on it, changed by writing only what changed.

import { chunkLevel, shareLevels, tokenLevels } from "../colour.js";
import { fill, h, icon } from "../dom.js";
import { clip, counted, fitWord, isHit, number, speakerOf, resurrectedBy } from "../words.js";
import { Prose } from "./prose.js";

/**
 * @typedef {object} Look how the chunks of a view are lit
 * @property {boolean} original the prototype's two layers, both by brightness
 * @property {number} low @property {number} high of all brightness
 * @property {string} unproven a turn without grounds in the original colours: nobody has looked back at it yet
 * @property {Map<string, ArrayLike<number>>} shares what the reply took from each chunk's tokens
 * @property {number} most of them
 */

const NONE = /** @type {number[]} */ ([]);

export class ChunkView {
  #next = new Uint8Array(0);
  #heat = "";
  #badges = "";
  #how = { raw: false, fence: "" };

  /** @param {LiveChunk} chunk @param {{raw: boolean, fence: string}} [how] its text is shown */
  constructor(chunk, how = { raw: false, fence: "" }) {
    this.chunk = chunk;
    this.#how = how;
    this.text = h("div", { class: "text" });
    this.badges = h("div", { class: "badges" });
    this.thought = h("div", { class: "thought-text" });
    this.length = h("summary", {});
    this.folded = h("details", { class: "thought", hidden: true }, this.length, this.thought);
    this.prose = new Prose(this.text, (at) => (this.chunk.tools[at] ? "tool" : ""));
    this.thinking = new Prose(this.thought, () => "");
    const about = { class: `chunk ${chunk.draft ? "draft" : ""}`, tabindex: "-1", data: { key: chunk.key } };
    this.node = h("article", about, this.badges, this.folded, this.text);
    this.grow();
    this.describe();
  }

  /** Whether the same tokens stand here, so that the node can stay. @param {LiveChunk} chunk */
  shows(chunk) {
    const { start, tool, pieces } = this.chunk;
    return start === chunk.start && tool === chunk.tool && pieces.length === chunk.pieces.length &&
      pieces.every((piece, i) => piece === chunk.pieces[i]);
  }

  /** Whether a chunk is the reply that is written here, further on. @param {LiveChunk} chunk */
  goesOnWith(chunk) {
    const { turn, pieces } = this.chunk;
    return chunk.draft && turn.turn_id === chunk.turn.turn_id && chunk.pieces.length >= pieces.length;
  }

  /** The reply that was written here is stored as this one chunk: it takes the nodes over. @param {LiveChunk} chunk */
  becomes(chunk) {
    const { pieces } = this.chunk;
    const same = pieces.length === chunk.pieces.length && pieces.every((piece, i) => piece === chunk.pieces[i]);
    if (this.chunk.turn.turn_id !== chunk.turn.turn_id || !same) return false;
    if (chunk.thought || this.chunk.thinking.length) return false;
    this.node.classList.remove("draft");
    this.node.dataset.key = chunk.key;
    this.adopt({ ...chunk, tools: this.chunk.tools });
    this.grow();
    return true;
  }

  /** @param {LiveChunk} chunk @param {{raw: boolean, fence: string}} [how] */
  adopt(chunk, how = this.#how) {
    const anew = how.raw !== this.#how.raw || how.fence !== this.#how.fence;
    this.chunk = chunk;
    this.#how = how;
    if (anew) this.reshow();
    this.describe();
  }

  /** The whole text anew: it is shown otherwise, or its code has colours now. */
  reshow() {
    this.prose.forget();
    this.thinking.forget();
    this.grow();
  }

  /** Brings the text up to the tokens. Thought and answer each have their own, at the same places. */
  grow() {
    const { pieces, draft, thought, thinking } = this.chunk;
    const thoughts = thought ? pieces.length : thinking.filter(Boolean).length;
    if (thoughts) {
      const own = thought ? pieces : pieces.map((piece, i) => (thinking[i] ? piece : ""));
      this.thinking.show(own, { ...this.#how, fence: "" });
      const thinks = draft && thinking.at(-1) && thinking.length === pieces.length;
      this.length.textContent = `${thinks ? "Thinking…" : "Thought"}, ${counted(thoughts, "token")}`;
      this.folded.hidden = false;
    }
    if (thoughts < pieces.length) {
      const own = thoughts ? pieces.map((piece, i) => (thinking[i] ? "" : piece)) : pieces;
      this.prose.show(own, this.#how);
    }
    if (this.#next.length < pieces.length) this.#next = new Uint8Array(draft ? 2 * pieces.length : pieces.length);
  }

  /** Name, pin and badges. A screen reader hears the text before the figures. */
  describe() {
    const { chunk } = this;
    const { resurrected } = chunk;
    const { pinned, fresh, rank, pruned, pieces } = chunk;
    const state = JSON.stringify([pinned, resurrected, fresh, rank, pruned, pieces.length]);
    if (state === this.#badges) return;
    this.#badges = state;
    const text = chunk.pieces.join("");
    const why = resurrected ? resurrectedWords(resurrected, text) : "";
    const standing = chunk.pruned ? "asleep" : `standing ${number(chunk.rank)} of 100`;
    const words = chunk.draft ? ["Reply in progress"]
      : [clip(text, 100), speakerOf(chunk.turn), `${number(chunk.pieces.length)} tokens`, standing];
    this.node.setAttribute("aria-label", [...words, chunk.pinned && "pinned", why].filter(Boolean).join(", "));
    this.node.classList.toggle("pinned", chunk.pinned);
    this.node.classList.toggle("asleep", chunk.pruned);
    this.node.title = chunk.pruned ? "Asleep: the model does not see this now. It wakes up when you speak of it." : "";
    if (chunk.fresh) this.node.classList.add("glow");
    fill(
      this.badges,
      chunk.pinned ? h("span", { class: "badge pin-badge" }, icon("pin"), h("span", { text: "pinned" })) : null,
      resurrected && h("span", { class: "badge wake-badge", title: returned(resurrected) },
        icon("wake"), h("span", { text: why })),
    );
  }

  /** @param {Look} look @returns {number} how many nodes were written to */
  recolour(look) {
    let written = 0;
    const { chunk } = this;
    const heat = look.original ? String(chunkLevel(chunk.peak, look.low, look.high) / 31) : String(chunk.rank / 100);
    if (heat !== this.#heat) {
      this.#heat = heat;
      this.node.style.setProperty("--heat", heat);
      written += 1;
    }
    const next = this.#stepsOf(look);
    for (const part of this.prose.parts) {
      const step = next[part.at];
      if (step === part.step || part.kind === "tool") continue;
      part.step = step;
      part.className = step ? `${part.kind} hot${step}` : part.kind;
      written += 1;
    }
    return written;
  }

  /** @param {Look} look */
  #stepsOf(look) {
    const { chunk } = this;
    const next = this.#next;
    if (!look.original) return shareLevels(look.shares.get(chunk.key) ?? NONE, look.most, next);
    next.fill(0);
    if (chunk.turn.turn_id === look.unproven) return next;
    const shown = Math.min(chunk.brightness.length, next.length);
    tokenLevels(chunk.brightness.subarray(0, shown), look.low, look.high, next);
    return next;
  }

  /** The spans of a token. @param {number} at */
  partsAt(at) {
    return this.prose.parts.filter((part) => part.at === at);
  }
}

/** @param {ResurrectionReason} resurrected @param {string} text of the chunk */
export function resurrectedWords(resurrected, text) {
  const why = `woken ${resurrectedBy(resurrected, text)}`;
  const word = isHit(resurrected) && resurrected.similarity && fitWord(resurrected.similarity, resurrected.parts);
  return word ? `${why} · ${word} fit` : why;
}

/** That a chunk came back, and for a pair what woke the other. @param {ResurrectionReason} resurrected */
function returned(resurrected) {
  const back = "Came back from sleep";
  if (resurrected.by === "user" || isHit(resurrected) || !resurrected.words?.length) return back;
  return `${back} with its pair, which was woken by “${resurrected.words.slice(0, 4).join(", ")}”`;
}
