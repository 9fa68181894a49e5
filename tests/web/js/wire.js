// Small wire values for the tests.

/** @param {string} key @param {number} start @param {string[]} pieces @param {object} [more] */
export function chunk(key, start, pieces, more = {}) {
  return {
    key, start: String(start), pinned: false, tokens: pieces.length, text_pieces: pieces, brightness: pieces.map(() => 10_000),
    peak: 10_000, mean: 10_000, woken: null, tool: false, gap: null, ...more,
  };
}

/** @param {string} turn_id @param {string} role @param {object[]} chunks */
export function turn(turn_id, role, chunks) {
  return { turn_id, role, said: "2026-11-15T10:00:00Z", window: "w", window_name: "Window", speaker: "", chunks };
}

/** @param {object[]} turns @param {object} [more] */
export function context(turns, more = {}) {
  return {
    window: "w", version: 1, last_event: "r-1", size: 0, system_tokens: 0,
    budget: { max_context_tokens: 2000, model_context: 8192, system: 20, pinned: 0, live: 100, frames: 10, reserve: 256, free: 1614 },
    brightness: { low: 0, high: 0, mean: 0 }, turns, tail_gap: null, generating: null,
    stats: { asleep_chunks: 0, asleep_tokens: 0, woken_last_turn: 0, kv_reuse: null, tokens_per_second: null }, ...more,
  };
}

/** @param {number[]} values */
export function floats(values) {
  return Buffer.from(Float32Array.from(values).buffer).toString("base64");
}
