// Where the words of a reply came from. Pure: what the server tells of a reply's use, asked by token and by chunk.

const USED = 0.05; // less of a reply than this is nothing worth a word

/**
 * @typedef {Wire.Answers["GET /api/windows/{window_id}/turns/{turn_id}/sources"]["attribution"]} Attribution
 * @typedef {{key: string, share: number, tokens: Map<number, number>}} Source a chunk: how much came from it, and from
 *   which of its tokens
 */

export class ReplyAttribution {
  /** What was taken from each chunk's tokens, by their place in it. @type {Map<string, Float32Array>} */
  grounds = new Map();
  /** The most that was taken from one token. */
  most = 0;

  /** @param {string} start position of the reply's first token @param {NonNullable<Attribution>} attribution */
  constructor(start, attribution) {
    this.start = BigInt(start);
    this.attribution = attribution;
    /** @type {Map<string, Map<number, number>>} */
    const sums = new Map();
    for (const sources of attribution.tokens) {
      for (const { chunk, offset, share } of sources) {
        const { key } = attribution.chunks[chunk];
        const sum = sums.get(key) ?? new Map();
        sum.set(offset, (sum.get(offset) ?? 0) + share);
        sums.set(key, sum);
      }
    }
    for (const [key, sum] of sums) {
      const shares = new Float32Array(Math.max(...sum.keys()) + 1);
      for (const [offset, share] of sum) {
        shares[offset] = share;
        this.most = Math.max(this.most, share);
      }
      this.grounds.set(key, shares);
    }
    if (!this.used) this.most = 0; // a strongest of nothing is nothing
  }

  /** Whether something worth a word was taken from what was said before. */
  get used() {
    return this.attribution.chunks.some((one) => one.share >= USED);
  }

  /**
   * Where some tokens of the reply came from, the strongest first.
   * @param {string} chunkStart position of the chunk they stand in @param {number} first @param {number} last
   * @returns {Source[]}
   */
  sources(chunkStart, first, last) {
    const shift = Number(BigInt(chunkStart) - this.start);
    /** @type {Map<string, Source>} */
    const found = new Map();
    const count = last - first + 1;
    for (let at = first; at <= last; at++) {
      for (const { chunk, offset, share } of this.attribution.tokens[shift + at] ?? []) {
        const { key } = this.attribution.chunks[chunk];
        const source = found.get(key) ?? { key, share: 0, tokens: new Map() };
        source.share += share / count;
        source.tokens.set(offset, (source.tokens.get(offset) ?? 0) + share / count);
        found.set(key, source);
      }
    }
    return [...found.values()].filter((one) => one.share >= USED).sort((a, b) => b.share - a.share);
  }
}
