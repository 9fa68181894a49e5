// The live chunks of a window in time order, and what the events of a turn do to them. No page, no network.

import { range } from "./colour.js";
import { compareIds } from "./words.js";

/** @param {WireChunk} wire @param {Turn} turn @returns {LiveChunk} */
export function liveChunk(wire, turn) {
  const brightness = Float32Array.from(wire.brightness ?? []);
  const pieces = wire.text_pieces ?? [];
  return {
    key: wire.key, turn, start: wire.start, pinned: wire.pinned, pieces, brightness,
    peak: wire.peak ?? peakOf(brightness), mean: wire.mean ?? meanOf(brightness), woken: wire.woken ?? null,
    tool: Boolean(wire.tool), gap: wire.gap ?? null, fresh: false, draft: false, tools: wire.tool ? toolTokens(pieces) : [],
  };
}

/** Which tokens are a tool's answer: the marker, the command and the rest of its line. @param {string[]} pieces */
export function toolTokens(pieces) {
  const ranges = [...pieces.join("").matchAll(/⚙️?【[^】]*】→[^\n]*/gu)].map((match) => [match.index, match.index + match[0].length]);
  if (!ranges.length) return pieces.map(() => true);
  let at = 0;
  return pieces.map((piece) => {
    const from = at;
    at += piece.length;
    return ranges.some(([start, stop]) => from < stop && at > start);
  });
}

/** @param {Float32Array} values */
function peakOf(values) {
  let peak = -Infinity;
  for (let i = 0; i < values.length; i++) if (values[i] > peak) peak = values[i];
  return values.length ? peak : 0;
}

/** @param {Float32Array} values */
function meanOf(values) {
  let sum = 0;
  for (let i = 0; i < values.length; i++) sum += values[i];
  return values.length ? sum / values.length : 0;
}

/** @param {Gap | null} a @param {Gap | null} b @returns {Gap | null} */
function gapSum(a, b) {
  if (!a || !b) return a ?? b;
  return { chunks: a.chunks + b.chunks, tokens: a.tokens + b.tokens };
}

export class Live {
  /** @type {LiveChunk[]} */
  chunks = [];
  /** The reply in progress. @type {LiveChunk | null} */
  draft = null;
  /** @type {Gap | null} */
  tailGap = null;
  low = 0;
  high = 0;
  /** Brightness reports whose length was not that of the live tokens. */
  mismatched = 0;

  /** @param {WireContext} wire @param {Live} [before] what was shown until now @param {string} [speaker] who is replying */
  static from(wire, before, speaker = "") {
    const live = new Live();
    const glowing = new Set(before?.chunks.filter((chunk) => chunk.fresh).map((chunk) => chunk.key));
    for (const turn of wire.turns) {
      const about = turnOf(turn);
      for (const chunk of turn.chunks) {
        const one = liveChunk(chunk, about);
        one.fresh = glowing.has(one.key);
        live.chunks.push(one);
      }
    }
    live.chunks.sort((a, b) => compareIds(a.start, b.start));
    live.tailGap = wire.tail_gap ?? null;
    if (wire.generating) {
      const { turn_id, position, text_pieces, brightness, tool } = wire.generating;
      live.begin(turn_id, position, { window: wire.window, speaker }); // the place of the reply's first token
      const draft = /** @type {LiveChunk} */ (live.draft);
      draft.pieces = [...text_pieces];
      draft.tools = tool ? [...tool] : [];
      draft.brightness = Float32Array.from(brightness ?? []);
    }
    live.rescale();
    return live;
  }

  get tokens() {
    return this.chunks.reduce((sum, chunk) => sum + chunk.pieces.length, this.draft?.pieces.length ?? 0);
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
    const asked = last.role === "assistant" ? here.findLast((chunk) => chunk.turn.turn_id !== last.turn_id)?.turn : undefined;
    const pair = asked?.role === "user" && BigInt(asked.turn_id) + 1n === BigInt(last.turn_id) ? asked.turn_id : "";
    return here.filter((chunk) => chunk.turn.turn_id === last.turn_id || chunk.turn.turn_id === pair);
  }

  /** @param {string} key */
  find(key) {
    return this.chunks.find((chunk) => chunk.key === key) ?? null;
  }

  /** The smallest and largest brightness of now. */
  rescale() {
    ({ low: this.low, high: this.high } = range(this.all.map((chunk) => chunk.brightness)));
  }

  /** Puts a chunk at its place; one that is there already is replaced. @param {LiveChunk} chunk */
  put(chunk) {
    const at = this.chunks.findIndex((other) => other.key === chunk.key);
    if (at >= 0) {
      this.chunks[at] = { ...chunk, gap: this.chunks[at].gap };
      return;
    }
    const next = this.chunks.findIndex((other) => compareIds(other.start, chunk.start) > 0);
    this.chunks.splice(next < 0 ? this.chunks.length : next, 0, chunk);
  }

  /** A chunk leaves; what sleeps around its place becomes one gap. @param {string} key */
  remove(key) {
    const at = this.chunks.findIndex((chunk) => chunk.key === key);
    if (at < 0) return;
    const [gone] = this.chunks.splice(at, 1);
    const gap = gapSum(gone.gap, { chunks: 1, tokens: gone.pieces.length });
    if (at < this.chunks.length) this.chunks[at].gap = gapSum(this.chunks[at].gap, gap);
    else this.tailGap = gapSum(this.tailGap, gap);
  }

  /** @param {string} turnId @param {string} start @param {Partial<Turn>} [about] */
  begin(turnId, start, about = {}) {
    const turn = { turn_id: turnId, role: /** @type {Role} */ ("assistant"), said: new Date().toISOString(), window: "", window_name: "", speaker: "", ...about };
    this.draft = {
      key: "draft", turn, start, pinned: false, pieces: [], brightness: new Float32Array(0), peak: 0, mean: 0,
      woken: null, tool: false, gap: null, fresh: false, draft: true, tools: [],
    };
  }

  /**
   * The reply's next token. Known ones are passed over; false means that some are missing.
   * @param {string} position @param {string} text @param {boolean} tool
   */
  grow(position, text, tool) {
    if (!this.draft) return false;
    const ahead = BigInt(position) - BigInt(this.draft.start) - BigInt(this.draft.pieces.length);
    if (ahead < 0n) return true;
    if (ahead > 0n) return false;
    if (tool) this.draft.tools[this.draft.pieces.length] = true;
    this.draft.pieces.push(text);
    return true;
  }

  /** The brightness of all live tokens, in time order. @param {Float32Array} values */
  brighten(values) {
    const settled = this.chunks.reduce((sum, chunk) => sum + chunk.pieces.length, 0);
    if (values.length < settled || values.length > settled + (this.draft?.pieces.length ?? 0)) {
      this.mismatched += 1;
      return false;
    }
    let at = 0;
    for (const chunk of this.chunks) {
      chunk.brightness = values.subarray(at, (at += chunk.pieces.length));
      chunk.peak = peakOf(chunk.brightness);
      chunk.mean = meanOf(chunk.brightness);
    }
    if (this.draft) {
      this.draft.brightness = values.subarray(at);
      this.draft.peak = peakOf(this.draft.brightness);
      this.draft.mean = meanOf(this.draft.brightness);
    }
    this.rescale();
    return true;
  }

  /** The reply is stored, cut into chunks, which take its place. @param {LiveChunk[]} chunks */
  settle(chunks) {
    this.draft = null;
    for (const chunk of chunks) this.put(chunk);
    this.rescale();
  }
}

/** @param {WireTurn} turn @returns {Turn} */
export function turnOf({ turn_id, role, said, window, window_name, speaker, cut }) {
  return { turn_id, role, said, window, window_name, speaker, cut };
}
