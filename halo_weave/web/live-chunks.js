// The live chunks of a window in time order, and what the events of a turn do to them. No page, no network.

import { range } from "./colour.js";
import { compareIds } from "./words.js";

/** @param {WireChunk} wire @param {Turn} turn @returns {LiveChunk} */
export function liveChunk(wire, turn) {
  const { key, start, pinned, resurrected, tool, thought = false, text_pieces: pieces } = wire;
  const { pruned_before: prunedBefore, pruned_thoughts: prunedThoughts = 0 } = wire;
  const tools = tool ? toolTokens(pieces) : [];
  const rank = wire.rank ?? 100; // until the end of the turn tells it
  const more = { tools, thinking: [], fresh: false, draft: false, rank, pruned: false, ...lit(wire.brightness) };
  return { key, turn, start, pinned, pieces, resurrected, tool, thought, prunedBefore, prunedThoughts, ...more };
}

/** Brightness with its peak and mean. @param {ArrayLike<number>} values */
function lit(values) {
  const brightness = values instanceof Float32Array ? values : Float32Array.from(values);
  let peak = -Infinity, sum = 0;
  for (let i = 0; i < brightness.length; i++) {
    sum += brightness[i];
    if (brightness[i] > peak) peak = brightness[i];
  }
  return brightness.length ? { brightness, peak, mean: sum / brightness.length } : { brightness, peak: 0, mean: 0 };
}

/** Which tokens are a tool's answer: the marker, the command and the rest of its line. @param {string[]} pieces */
export function toolTokens(pieces) {
  const answers = [...pieces.join("").matchAll(/⚙️?【[^】]*】→[^\n]*/gu)];
  const ranges = answers.map((match) => [match.index, match.index + match[0].length]);
  if (!ranges.length) return pieces.map(() => true);
  let at = 0;
  return pieces.map((piece) => {
    const from = at;
    at += piece.length;
    return ranges.some(([start, stop]) => from < stop && at > start);
  });
}

const LITTLE = 0.05; // of what was written; if less came from before, nothing is lit
const NONE = { chunks: 0, tokens: 0 };

/**
 * @param {PrunedGap | null} gap @param {number} chunks @param {number} tokens so many more
 * @returns {PrunedGap | null}
 */
function gapWith(gap, chunks, tokens) {
  const before = gap ?? NONE;
  const sum = { chunks: before.chunks + chunks, tokens: before.tokens + tokens };
  return sum.chunks > 0 ? sum : null;
}

export class LiveChunks {
  /** @type {LiveChunk[]} */
  chunks = [];
  /** The reply in progress. @type {LiveChunk | null} */
  draft = null;
  /** What sleeps after the last chunk. @type {PrunedGap | null} */
  prunedAfter = null;
  low = 0;
  high = 0;
  /** What the reply in progress took so far from each token before its exchange. */
  attention = new Float32Array(0);
  /** Brightness reports whose length was not that of the live tokens. */
  mismatched = 0;

  /**
   * @param {WireContext} wire @param {LiveChunks} [before] what was shown until now: what glows there goes on glowing
   * @param {string} [speaker] who is replying
   */
  static from(wire, before, speaker = "") {
    const live = new LiveChunks();
    const glowing = new Set(before?.chunks.filter((chunk) => chunk.fresh).map((chunk) => chunk.key));
    for (const { chunks, ...turn } of wire.turns) {
      for (const chunk of chunks) live.chunks.push({ ...liveChunk(chunk, turn), fresh: glowing.has(chunk.key) });
    }
    live.chunks.sort((a, b) => compareIds(a.start, b.start));
    live.prunedAfter = wire.pruned_after;
    if (wire.generating) {
      const { turn_id, position, text_pieces, brightness, tool, thought = [] } = wire.generating;
      live.begin(turn_id, position, { window: wire.window, speaker }); // the place of the reply's first token
      const told = { pieces: [...text_pieces], tools: [...tool], thinking: [...thought] };
      Object.assign(live.draft ?? {}, told, lit(brightness));
    }
    live.rescale();
    return live;
  }

  /** How many tokens are live, those of the reply in progress included. */
  get tokens() {
    return this.all.reduce((sum, chunk) => sum + chunk.pieces.length, 0);
  }

  get all() {
    return this.draft ? [...this.chunks, this.draft] : this.chunks;
  }

  /**
   * The newest exchange of a window as far as it is live: the last that the user said there, and the reply to it.
   * Derived from the chunks alone, so that it is the same while they come and after a reload.
   * @param {string} window
   */
  newest(window) {
    const here = this.all.filter((chunk) => chunk.turn.window === window && chunk.turn.role !== "system");
    const last = here.at(-1)?.turn;
    if (!last) return [];
    const before = here.findLast((chunk) => chunk.turn.turn_id !== last.turn_id)?.turn;
    const asked = last.role === "assistant" && before?.role === "user" ? before.turn_id : "";
    const pair = asked && BigInt(asked) + 1n === BigInt(last.turn_id) ? asked : "";
    return here.filter((chunk) => chunk.turn.turn_id === last.turn_id || chunk.turn.turn_id === pair);
  }

  /** @param {string} key */
  find(key) {
    return this.chunks.find((chunk) => chunk.key === key) ?? null;
  }

  /** The text of a turn, as far as it is live. @param {string} turnId */
  textOf(turnId) {
    return this.chunks.filter((chunk) => chunk.turn.turn_id === turnId).flatMap((chunk) => chunk.pieces).join("");
  }

  /** Finds the smallest and largest brightness of now. */
  rescale() {
    ({ low: this.low, high: this.high } = range(this.all.map((chunk) => chunk.brightness)));
  }

  /** How each chunk stands among all, by its key. @param {Record<string, number>} ranks */
  rank(ranks) {
    for (const chunk of this.chunks) chunk.rank = ranks[chunk.key] ?? chunk.rank;
  }

  /** What the reply in progress took so far from each chunk's tokens, and the most from one token. */
  get looked() {
    /** @type {Map<string, Float32Array>} */
    const shares = new Map();
    let at = 0, most = 0;
    for (const { key, pieces } of this.chunks) {
      if (at >= this.attention.length) break;
      shares.set(key, this.attention.subarray(at, at + pieces.length));
      at += pieces.length;
    }
    for (const share of this.attention) if (share > most) most = share;
    const written = this.draft?.pieces.length ?? 0;
    const sum = this.attention.reduce((one, other) => one + other, 0);
    return { shares, most: sum < LITTLE * written ? 0 : most };
  }

  /** Puts a chunk at its place; one that is there already is replaced. @param {LiveChunk} chunk */
  put(chunk) {
    const at = this.chunks.findIndex((other) => other.key === chunk.key);
    if (at >= 0) {
      this.chunks[at] = { ...chunk, prunedBefore: this.chunks[at].prunedBefore };
      return;
    }
    const next = this.chunks.findIndex((other) => compareIds(other.start, chunk.start) > 0);
    this.chunks.splice(next < 0 ? this.chunks.length : next, 0, chunk);
  }

  /**
   * A chunk wakes up at its place, amid what sleeps there: what does not sleep before it sleeps after it.
   * Of several that wake up, the earliest comes first.
   * @param {LiveChunk} chunk @param {boolean} prunedHere it was pruned in this window
   */
  resurrect(chunk, prunedHere) {
    const known = this.find(chunk.key);
    this.put(chunk);
    if (known) return;
    const own = prunedHere ? chunk.pieces.length : 0;
    const { chunks, tokens } = gapWith(chunk.prunedBefore, prunedHere ? 1 : 0, own) ?? NONE;
    this.#addToGap(this.chunks.indexOf(chunk) + 1, -chunks, -tokens);
  }

  /**
   * So many more sleep before the chunk at an index; after the last, if there is none.
   * @param {number} at @param {number} chunks @param {number} tokens
   */
  #addToGap(at, chunks, tokens) {
    const next = this.chunks[at];
    if (next) next.prunedBefore = gapWith(next.prunedBefore, chunks, tokens);
    else this.prunedAfter = gapWith(this.prunedAfter, chunks, tokens);
  }

  /** A chunk leaves; what sleeps around its place becomes one gap. @param {string} key */
  remove(key) {
    const at = this.chunks.findIndex((chunk) => chunk.key === key);
    if (at < 0) return;
    const [{ prunedBefore, pieces, thought, turn }] = this.chunks.splice(at, 1);
    const { chunks, tokens } = prunedBefore ?? NONE;
    this.#addToGap(at, chunks + 1, tokens + pieces.length);
    const next = this.chunks[at];
    if (thought && next?.turn.turn_id === turn.turn_id) next.prunedThoughts += 1;
  }

  /** A reply begins. @param {string} turnId @param {string} start @param {Partial<Turn>} [about] */
  begin(turnId, start, about = {}) {
    const turn = {
      turn_id: turnId, role: /** @type {Role} */ ("assistant"), said: new Date().toISOString(),
      window: "", window_name: "", speaker: "", interrupted: false, sources: null,
      versions: 1, version: 1, document: false, unfinished: false, ...about,
    };
    this.draft = {
      key: "draft", turn, start, pinned: false, pieces: [], ...lit([]),
      resurrected: null, tool: false, thought: false, prunedBefore: null, prunedThoughts: 0, fresh: false,
      draft: true, rank: 100, pruned: false,
      tools: [], thinking: [],
    };
  }

  /**
   * The reply's next token. Known ones are passed over; false means that some are missing.
   * @param {string} position @param {string} text @param {boolean} tool @param {boolean} [thought]
   */
  grow(position, text, tool, thought = false) {
    if (!this.draft) return false;
    this.draft.start ||= position; // where an answer begins that is given again
    const ahead = BigInt(position) - BigInt(this.draft.start) - BigInt(this.draft.pieces.length);
    if (ahead < 0n) return true;
    if (ahead > 0n) return false;
    if (tool) this.draft.tools[this.draft.pieces.length] = true;
    if (thought) this.draft.thinking[this.draft.pieces.length] = true;
    this.draft.pieces.push(text);
    return true;
  }

  /** The brightness of all live tokens, in time order. @param {Float32Array} values */
  brighten(values) {
    const written = this.draft?.pieces.length ?? 0;
    const settled = this.tokens - written;
    if (values.length < settled || values.length > settled + written) {
      this.mismatched += 1;
      return false;
    }
    let at = 0;
    for (const chunk of this.all) {
      const end = chunk.draft ? values.length : at + chunk.pieces.length;
      Object.assign(chunk, lit(values.subarray(at, end)));
      at = end;
    }
    this.rescale();
    return true;
  }

  /** The reply is stored, cut into chunks, which take its place. @param {LiveChunk[]} chunks */
  settle(chunks) {
    this.draft = null;
    this.attention = new Float32Array(0);
    for (const chunk of chunks) this.put(chunk);
    this.rescale();
  }
}
