// Attention and brightness become steps of light. Pure: numbers in, small whole numbers out.

export const CHUNK_LEVELS = 32; // steps of a chunk's text colour
export const TOKEN_LEVELS = 8; // steps of a token's ground, within the top of the range
const TOP = 0.8; // the range above this share gets a ground

/** The smallest and the largest of many. @param {Iterable<Float32Array>} arrays */
export function range(arrays) {
  let low = Infinity, high = -Infinity;
  for (const values of arrays) {
    for (let i = 0; i < values.length; i++) {
      const value = values[i];
      if (value < low) low = value;
      if (value > high) high = value;
    }
  }
  return low <= high ? { low, high } : { low: 0, high: 0 };
}

/**
 * Where a brightness stands between the dimmest and the brightest. When all are equal they are all bright:
 * nothing has been found dim yet.
 * @param {number} value @param {number} low @param {number} high
 */
export function place(value, low, high) {
  if (!(high > low)) return 1;
  return Math.min(1, Math.max(0, (value - low) / (high - low)));
}

/** Step 0 (dimmest) to 31 of a chunk's text. @param {number} peak @param {number} low @param {number} high */
export function chunkLevel(peak, low, high) {
  return Math.round(place(peak, low, high) * (CHUNK_LEVELS - 1));
}

/** Step 1 to 8 of a token's ground, or 0 for none. @param {number} value @param {number} low @param {number} high */
export function tokenLevel(value, low, high) {
  if (!(high > low)) return 0;
  const above = ((value - low) / (high - low) - TOP) / (1 - TOP);
  return above <= 0 ? 0 : Math.max(1, Math.min(TOKEN_LEVELS, Math.ceil(above * TOKEN_LEVELS)));
}

/**
 * Steps of all tokens of a chunk at once, into `levels`.
 * @param {Float32Array} brightness @param {number} low @param {number} high @param {Uint8Array} levels
 */
export function tokenLevels(brightness, low, high, levels) {
  const from = low + (high - low) * TOP, per = TOKEN_LEVELS / ((high - low) * (1 - TOP));
  const flat = !(high > low);
  for (let i = 0; i < brightness.length; i++) {
    const above = brightness[i] - from;
    levels[i] = flat || above <= 0 ? 0 : Math.max(1, Math.min(TOKEN_LEVELS, Math.ceil(above * per - 1e-6)));
  }
  return levels;
}

const FAINT = 0.06; // of the strongest; what is less gets no ground

/**
 * Steps of a chunk's tokens by what a reply took from each, against the most that it took from any.
 * @param {ArrayLike<number>} shares @param {number} most @param {Uint8Array} levels
 */
export function shareLevels(shares, most, levels) {
  for (let i = 0; i < levels.length; i++) {
    const share = most > 0 ? (shares[i] ?? 0) / most : 0;
    const step = Math.ceil(Math.sqrt(share) * TOKEN_LEVELS - 1e-6);
    levels[i] = share < FAINT ? 0 : Math.max(1, Math.min(TOKEN_LEVELS, step));
  }
  return levels;
}

/** Little-endian float32 in base64. @param {string} text */
export function decodeFloats(text) {
  const binary = atob(text);
  const bytes = new Uint8Array(binary.length);
  for (let i = 0; i < binary.length; i++) bytes[i] = binary.charCodeAt(i);
  const whole = bytes.length >> 2;
  if (LITTLE) return new Float32Array(bytes.buffer, 0, whole);
  const view = new DataView(bytes.buffer), floats = new Float32Array(whole);
  for (let i = 0; i < whole; i++) floats[i] = view.getFloat32(4 * i, true);
  return floats;
}

const LITTLE = new Uint8Array(new Uint32Array([1]).buffer)[0] === 1;

/**
 * How many fall into each of `count` equal parts of the range.
 * @param {Iterable<Float32Array>} arrays @param {number} low @param {number} high @param {number} count
 */
export function histogram(arrays, low, high, count) {
  const bins = new Array(count).fill(0);
  for (const values of arrays) {
    for (const value of values) bins[Math.min(count - 1, Math.floor(place(value, low, high) * count))]++;
  }
  return bins;
}
