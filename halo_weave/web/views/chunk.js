// One chunk on the page: its tokens as spans, recoloured by writing only what changed.

import { chunkLevel, tokenLevels } from "../colour.js";
import { fill, h, icon } from "../dom.js";
import { counted, isHit, number, parts, similarity, speakerOf, wokenBy } from "../words.js";

export class ChunkView {
  /** @type {HTMLSpanElement[]} */
  spans = [];
  /** What stands in them. @type {string[]} */
  #texts = [];
  #levels = new Uint8Array(0);
  #next = new Uint8Array(0);
  #level = -1;
  #badges = "";

  /** @param {LiveChunk} chunk */
  constructor(chunk) {
    this.chunk = chunk;
    this.text = h("div", { class: "text" });
    this.badges = h("div", { class: "badges" });
    this.thought = h("div", { class: "thought-text" });
    this.length = h("summary", {});
    this.folded = h("details", { class: "thought", hidden: true }, this.length, this.thought);
    const about = { class: `chunk ${chunk.draft ? "draft" : ""}`, tabindex: "-1", data: { key: chunk.key } };
    this.node = h("article", about, this.badges, this.folded, this.text);
    this.grow();
    this.describe();
  }

  /** Whether the same tokens stand here, so that the node can stay. @param {LiveChunk} chunk */
  shows(chunk) {
    return this.chunk.start === chunk.start && this.chunk.tool === chunk.tool && this.#reads(chunk.pieces);
  }

  /** @param {string[]} pieces */
  #reads(pieces) {
    return this.#texts.length === pieces.length && this.#texts.every((text, i) => text === pieces[i]);
  }

  /** Whether a chunk is the reply that is written here, further on. @param {LiveChunk} chunk */
  goesOnWith(chunk) {
    return chunk.draft && this.chunk.turn.turn_id === chunk.turn.turn_id && chunk.pieces.length >= this.spans.length;
  }

  /** The reply that was written here is stored as this one chunk: it takes the nodes over. @param {LiveChunk} chunk */
  becomes(chunk) {
    if (this.chunk.turn.turn_id !== chunk.turn.turn_id || !this.#reads(chunk.pieces)) return false;
    if (chunk.thought || this.chunk.thinking.length) return false;
    this.node.classList.remove("draft");
    this.node.dataset.key = chunk.key;
    this.adopt({ ...chunk, tools: this.chunk.tools });
    return true;
  }

  /** @param {LiveChunk} chunk */
  adopt(chunk) {
    this.chunk = chunk;
    this.describe();
  }

  /** Tokens that came since the last time. */
  grow() {
    const { pieces, tools, thought, thinking } = this.chunk;
    const fresh = document.createDocumentFragment(), thoughts = document.createDocumentFragment();
    for (let i = this.spans.length; i < pieces.length; i++) {
      const span = document.createElement("span");
      span.textContent = pieces[i];
      if (tools[i]) span.className = "tool";
      this.spans.push(span);
      this.#texts.push(pieces[i]);
      (thought || thinking[i] ? thoughts : fresh).append(span);
    }
    this.text.append(fresh);
    if (thoughts.childNodes.length) {
      this.thought.append(thoughts);
      const thinks = this.chunk.draft && thinking.at(-1) && thinking.length === pieces.length;
      const length = counted(this.thought.childNodes.length, "token");
      this.length.textContent = `${thinks ? "Thinking…" : "Thought"}, ${length}`;
      this.folded.hidden = false;
    }
    if (this.#levels.length < this.spans.length) {
      const room = this.chunk.draft ? 2 * this.spans.length : this.spans.length;
      const levels = new Uint8Array(room);
      levels.set(this.#levels);
      this.#levels = levels;
      this.#next = new Uint8Array(room);
    }
  }

  /** Name, pin and badge. */
  describe() {
    const { chunk } = this;
    const { woken } = chunk;
    const state = JSON.stringify([chunk.pinned, woken, chunk.fresh, Math.round(chunk.peak)]);
    if (state === this.#badges) return;
    this.#badges = state;
    const why = woken ? wokenWords(woken, chunk.pieces.join("")) : "";
    const words = [
      nameOf(chunk), `${number(chunk.pieces.length)} tokens`, `peak brightness ${number(chunk.peak)}`,
      chunk.pinned && "pinned", why,
    ];
    this.node.setAttribute("aria-label", words.filter(Boolean).join(", "));
    this.node.classList.toggle("pinned", chunk.pinned);
    if (chunk.fresh) this.node.classList.add("glow");
    fill(
      this.badges,
      chunk.pinned ? h("span", { class: "badge pin-badge" }, icon("pin"), h("span", { text: "pinned" })) : null,
      woken && h("span", { class: "badge wake-badge", title: returned(woken) }, icon("wake"), h("span", { text: why })),
    );
  }

  /**
   * @param {number} low @param {number} high @param {boolean} grounded whether its tokens may get a ground
   * @returns {number} how many nodes were written to
   */
  recolour(low, high, grounded) {
    let written = 0;
    const level = chunkLevel(this.chunk.peak, low, high);
    if (level !== this.#level) {
      this.#level = level;
      this.node.style.setProperty("--heat", String(level / 31));
      written += 1;
    }
    const { brightness, tools } = this.chunk;
    const shown = Math.min(brightness.length, this.spans.length);
    const next = this.#next, levels = this.#levels;
    if (grounded) tokenLevels(brightness.subarray(0, shown), low, high, next);
    else next.fill(0, 0, shown);
    for (let i = 0; i < shown; i++) {
      if (next[i] === levels[i]) continue;
      levels[i] = next[i];
      if (tools[i]) continue;
      this.spans[i].className = next[i] ? `hot${next[i]}` : "";
      written += 1;
    }
    return written;
  }
}

/** @param {WhyWoken} woken @param {string} text of the chunk */
export function wokenWords(woken, text) {
  const why = `woken ${wokenBy(woken, text)}`;
  return isHit(woken) && woken.similarity ? `${why} · ${similarity(woken.similarity)}` : why;
}

/** That a chunk came back, and for a pair what woke the other. @param {WhyWoken} woken */
function returned(woken) {
  const back = "Came back from sleep";
  if (woken.by === "user" || isHit(woken) || !woken.words?.length) return back;
  return `${back} with its pair, which was woken by “${woken.words.slice(0, 4).join(", ")}”`;
}

/** @param {LiveChunk} chunk */
function nameOf({ key, turn, draft }) {
  const { chunk, turn: id } = parts(key);
  return draft ? "Reply in progress" : `Chunk ${chunk} of turn ${id}, ${speakerOf(turn)}`;
}
