// Small wire values for the tests.

/** @param {string} key @param {number} start @param {string[]} pieces @param {object} [more] */
export function chunk(key, start, pieces, more = {}) {
  return {
    key, start: String(start), pinned: false, tokens: pieces.length, text_pieces: pieces,
    brightness: pieces.map(() => 10_000), peak: 10_000, mean: 10_000, resurrected: null, tool: false,
    pruned_before: null, ...more,
  };
}

/** @param {string} turn_id @param {string} role @param {object[]} chunks */
export function turn(turn_id, role, chunks) {
  return { turn_id, role, said: "2026-11-15T10:00:00Z", window: "w", window_name: "Window", speaker: "", chunks };
}

export const BUDGET = {
  max_context_tokens: 2000, model_context: 8192, system: 20, pinned: 0, live: 100, frames: 10, reserve: 256, free: 1614,
};

/** @param {object[]} turns @param {object} [more] */
export function context(turns, more = {}) {
  return {
    window: "w", version: 1, last_event: "r-1", size: 0, system_tokens: 0,
    budget: BUDGET, brightness: { low: 0, high: 0, mean: 0 }, turns, pruned_after: null, generating: null,
    stats: { pruned_chunks: 0, pruned_tokens: 0, resurrected_last_turn: 0, kv_reuse: null, tokens_per_second: null },
    ...more,
  };
}

/** A chunk that wakes up. @param {string} key @param {number} start @param {string[]} pieces @param {object} [more] */
export function resurrected(key, start, pieces, more = {}) {
  return {
    ...chunk(key, start, pieces), part: "hit", hit: key, words: [], parts: {}, similarity: 0.8, cost: pieces.length,
    window: "w", window_name: "", said: "2026-11-01T10:00:00Z", pruned_here: true, ...more,
  };
}

/** What the end of a turn tells. @param {object} [stats] @param {object} [budget] */
export function done(stats = {}, budget = {}) {
  return {
    reason: "stop", budget: { ...BUDGET, ...budget },
    stats: {
      tokens: 1, resurrected: 0, pruned: 0, reused: 3, restored: 0, computed: 1, tokens_per_second: 20, ...stats,
    },
  };
}

/** @param {number[]} values */
export function floats(values) {
  return Buffer.from(Float32Array.from(values).buffer).toString("base64");
}

/** A reply that took nothing from what was said before. */
export const USE = { chunks: [], nothing: 1, tokens: [] };
