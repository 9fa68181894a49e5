// What can be watched turn by turn: a window's life as the record has it, or a capture with a strategy. Pure.

import { ASLEEP, LIVE, UNSAID } from "./life.js";
import { compareIds, parts } from "./words.js";

/** @typedef {import("./life.js").WindowLife} WindowLife */
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
  /** @param {WindowLife} life */
  constructor(life) {
    this.life = life;
  }

  get steps() {
    return this.life.turns.length;
  }

  /** @param {number} step @returns {Scene} */
  at(step) {
    const { life } = this;
    return { turn: life.turns[step], states: life.statesAt(step), light: null, ...life.at(step) };
  }
}

/** A capture, as a strategy would have acted. */
export class Captured {
  /** @param {WindowLife} life @param {WireReplay} replay */
  constructor(life, replay) {
    this.life = life;
    this.turns = replay.turns;
  }

  get steps() {
    return this.turns.length;
  }

  /** @param {number} step @returns {Scene} */
  at(step) {
    const { chunks } = this.life;
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

/** How many chunks and tokens are live, and how many sleep. @param {WindowLife} life @param {Uint8Array} states */
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

