// What can be watched turn by turn: a window's timeline as the record has it, or a capture with a strategy. Pure.

import { ASLEEP, LIVE, UNSAID } from "./timeline.js";
import { compareIds, parts } from "./words.js";

/** @typedef {import("./timeline.js").Timeline} Timeline */
/** @typedef {Wire.Answers["GET /api/windows/{window_id}/replay"]} WireReplay */

/**
 * @typedef {object} Scene what was so after a turn
 * @property {string} turn its id
 * @property {Uint8Array} states of the life's chunks
 * @property {Float32Array | null} light of each, 0 to 1 by rank among what is live; null: it is not known
 * @property {string[]} resurrected @property {string[]} pruned
 */

/** As it happened, by the record. How bright chunks were is not in it. */
export class Recorded {
  /** @param {Timeline} timeline */
  constructor(timeline) {
    this.timeline = timeline;
  }

  get steps() {
    return this.timeline.turns.length;
  }

  /** @param {number} step @returns {Scene} */
  at(step) {
    const { timeline } = this;
    return { turn: timeline.turns[step], states: timeline.statesAt(step), light: null, ...timeline.at(step) };
  }
}

/** A capture, as a strategy would have acted. */
export class Captured {
  /** @param {Timeline} timeline @param {WireReplay} replay */
  constructor(timeline, replay) {
    this.timeline = timeline;
    this.turns = replay.turns;
  }

  get steps() {
    return this.turns.length;
  }

  /** @param {number} step @returns {Scene} */
  at(step) {
    const { chunks } = this.timeline;
    const { turn, brightness, pruned, resurrected } = this.turns[step];
    const ranked = Object.entries(brightness).sort(([, a], [, b]) => a - b);
    const most = Math.max(1, ranked.length - 1);
    const ranks = new Map(ranked.map(([key], i) => [key, i / most]));
    const states = new Uint8Array(chunks.length);
    const light = new Float32Array(chunks.length);
    chunks.forEach(({ key }, i) => {
      const rank = ranks.get(key);
      const said = compareIds(parts(key).turn, turn) <= 0;
      states[i] = rank !== undefined ? LIVE : said ? ASLEEP : UNSAID;
      light[i] = rank ?? 0;
    });
    return { turn, states, light, resurrected, pruned };
  }
}

/** How many chunks and tokens are live, and how many sleep. @param {Timeline} timeline @param {Uint8Array} states */
export function sums({ chunks }, states) {
  const sum = { live: 0, liveTokens: 0, pruned: 0 };
  chunks.forEach(({ tokens, foreign }, i) => {
    if (states[i] >= LIVE) {
      sum.live += 1;
      sum.liveTokens += tokens;
    } else if (states[i] === ASLEEP && !foreign) sum.pruned += 1; // what another window lent sleeps there
  });
  return sum;
}

