// A window's life: all that was said in it, without the words, and what was live after each turn. Pure.

import { compareIds, parts } from "./words.js";

/** How a chunk was: not said yet, asleep, live, live and pinned. */
export const UNSAID = 0, ASLEEP = 1, LIVE = 2, PINNED = 3;

/** @typedef {Wire.Answers["GET /api/windows/{window_id}/timeline"]} WireTimeline */
/** @typedef {{key: string, turn: number, tokens: number, foreign: boolean}} Lived `turn`: its place among the turns */

export class Timeline {
  /** @type {Lived[]} */
  chunks = [];
  /** @type {Map<string, number>} */
  places = new Map();

  /** @param {WireTimeline} wire */
  constructor(wire) {
    this.turns = [...wire.turns];
    this.events = wire.events;
    this.live = new Set(wire.live);
    this.pinned = new Set(wire.pinned);
    const turns = new Map(wire.turns.map((id, i) => [id, i]));
    const foreign = new Set(wire.foreign);
    wire.keys.forEach((key, i) => {
      const turn = turns.get(parts(key).turn) ?? -1;
      this.chunks.push({ key, turn, tokens: wire.tokens[i], foreign: foreign.has(i) });
      this.places.set(key, i);
    });
  }

  /**
   * What was said since, at the end; what is known already is passed over.
   * @param {LiveChunk[]} chunks @param {string} window
   */
  grow(chunks, window) {
    for (const { key, turn, pieces } of chunks) {
      if (turn.window !== window || turn.role === "system" || this.places.has(key)) continue;
      const last = this.turns.at(-1) ?? "0";
      const at = this.turns.indexOf(turn.turn_id);
      if (at < 0 && compareIds(turn.turn_id, last) < 0) continue; // said elsewhere, or before a change
      if (at < 0) this.turns.push(turn.turn_id);
      this.places.set(key, this.chunks.length);
      const place = at < 0 ? this.turns.length - 1 : at;
      this.chunks.push({ key, turn: place, tokens: pieces.length, foreign: false });
    }
  }

  /**
   * How each chunk was after a turn: as the last event up to then left it, else the opposite of the first one after.
   * @param {number} step @returns {Uint8Array}
   */
  statesAt(step) {
    const { chunks } = this;
    const awake = new Int8Array(chunks.length).fill(-1);
    const held = new Int8Array(chunks.length).fill(-1);
    /** @type {Record<string, [Int8Array, 0 | 1]>} */
    const kinds = { pruned: [awake, 0], resurrected: [awake, 1], pinned: [held, 1], unpinned: [held, 0] };
    const later = { pruned: new Set(), resurrected: new Set(), pinned: new Set(), unpinned: new Set() };
    for (const { step: at, chunk, event } of this.events) {
      const [states, state] = kinds[event];
      if (at <= step) states[chunk] = state;
      else if (states[chunk] < 0 && !this.#known(later, event, chunk)) later[event].add(chunk);
    }
    return Uint8Array.from(chunks, ({ turn }, i) => {
      if (turn > step) return UNSAID;
      const live = awake[i] >= 0 ? awake[i] === 1
        : later.pruned.has(i) || (!later.resurrected.has(i) && this.live.has(i));
      if (!live) return ASLEEP;
      const pinned = held[i] >= 0 ? held[i] === 1
        : later.unpinned.has(i) || (!later.pinned.has(i) && this.pinned.has(i));
      return pinned ? PINNED : LIVE;
    });
  }

  /**
   * Whether an event of that kind, which comes first, is known of a chunk.
   * @param {Record<string, Set<number>>} later @param {string} event @param {number} chunk
   */
  #known(later, event, chunk) {
    const awake = event === "pruned" || event === "resurrected";
    const pair = awake ? [later.pruned, later.resurrected] : [later.pinned, later.unpinned];
    return pair.some((one) => one.has(chunk));
  }

  /** What happened at a turn. @param {number} step */
  at(step) {
    const here = this.events.filter((one) => one.step === step);
    const of = (/** @type {string} */ event) => [...new Set(here.filter((one) => one.event === event)
      .map((one) => this.chunks[one.chunk].key))];
    return { resurrected: of("resurrected"), pruned: of("pruned") };
  }

  /** Chunks that woke up at some time, and the turns for which something from elsewhere did. */
  get sparks() {
    /** @type {Set<number>} */
    const own = new Set();
    /** @type {Set<number>} */
    const lent = new Set();
    for (const { event, chunk, step } of this.events) {
      if (event !== "resurrected") continue;
      if (this.chunks[chunk].foreign) lent.add(step);
      else own.add(chunk);
    }
    return { own, lent };
  }
}
