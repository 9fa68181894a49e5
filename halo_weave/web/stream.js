// Server-sent events over fetch, so that a key can be sent along and a lost connection resumed where it broke.

const LONGEST_PAUSE = 15_000;
const SILENCE = 40_000; // the server says something at least every 15 s

/** Cuts a text stream into events, however the pieces fall. */
export class EventParser {
  #rest = "";
  #id = "";
  #event = "";
  /** @type {string[]} */
  #lines = [];

  /** @param {string} text @returns {StreamEvent[]} */
  feed(text) {
    /** @type {StreamEvent[]} */
    const events = [];
    this.#rest += text;
    for (;;) {
      const end = this.#rest.search(/\r\n|\n|\r(?!$)/);
      if (end < 0) return events;
      const line = this.#rest.slice(0, end);
      this.#rest = this.#rest.slice(end + (this.#rest.startsWith("\r\n", end) ? 2 : 1));
      const event = this.#take(line);
      if (event) events.push(event);
    }
  }

  /** @param {string} line @returns {StreamEvent | null} */
  #take(line) {
    if (line === "") {
      if (!this.#lines.length) {
        this.#event = "";
        return null;
      }
      const told = { id: this.#id, event: this.#event || "message", data: parsed(this.#lines.join("\n")) };
      this.#lines = [];
      this.#event = "";
      return /** @type {StreamEvent} */ (told);
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
    if (name === "data") this.#lines.push(value);
    else if (name === "event") this.#event = value;
    else if (name === "id" && !value.includes("\0")) this.#id = value;
    return null;
  }
}

/** @param {string} text */
function parsed(text) {
  try {
    return JSON.parse(text);
  } catch {
    return text;
  }
}

/** How long to wait before the next attempt. @param {number} attempt from 1 */
export function pause(attempt) {
  return Math.min(LONGEST_PAUSE, 400 * 2 ** Math.min(attempt, 10));
}

/**
 * Follows a stream until stopped. Reconnects with the last event's id, so nothing is lost or doubled.
 *
 * `open` is asked for a response each time; `told` gets the events; `state` hears how the connection stands.
 */
export class Follower {
  #stopped = new AbortController();
  #lastId;
  #wake = () => {};

  /**
   * @param {(lastId: string, signal: AbortSignal) => Promise<Response>} open
   * @param {(event: StreamEvent) => void} told
   * @param {(state: "connecting" | "online" | "lost" | "locked" | "gone", retryAt: number) => void} state
   * @param {string} [lastId]
   */
  constructor(open, told, state, lastId = "") {
    this.open = open;
    this.told = told;
    this.state = state;
    this.#lastId = lastId;
  }

  async run() {
    const stopped = this.#stopped.signal;
    for (let attempt = 0; !stopped.aborted; ) {
      try {
        await this.#once(() => (attempt = 0));
        if (stopped.aborted) return;
      } catch (error) {
        if (stopped.aborted) return;
        const status = /** @type {{status?: number}} */ (error).status;
        if (status === 401) return this.state("locked", 0);
        if (status === 404) return this.state("gone", 0);
      }
      attempt += 1;
      const wait = pause(attempt);
      this.state("lost", Date.now() + wait);
      await Promise.race([
        new Promise((done) => setTimeout(done, wait)),
        new Promise((done) => (this.#wake = () => done(undefined))),
      ]);
    }
  }

  /** @param {() => void} connected */
  async #once(connected) {
    const attempt = new AbortController();
    const end = () => attempt.abort();
    this.#stopped.signal.addEventListener("abort", end, { once: true });
    let silence = setTimeout(end, SILENCE);
    try {
      this.state("connecting", 0);
      const response = await this.open(this.#lastId, attempt.signal);
      if (!response.body) throw new Error("The stream has no body.");
      connected();
      this.state("online", 0);
      const parser = new EventParser();
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
      for (;;) {
        const { done, value } = await reader.read();
        if (done) return;
        clearTimeout(silence);
        silence = setTimeout(end, SILENCE);
        for (const event of parser.feed(value)) {
          if (this.#stopped.signal.aborted) return;
          if (event.id) this.#lastId = event.id;
          this.told(event);
        }
      }
    } finally {
      clearTimeout(silence);
      this.#stopped.signal.removeEventListener("abort", end);
    }
  }

  get lastId() {
    return this.#lastId;
  }

  retryNow() {
    this.#wake();
  }

  stop() {
    this.#stopped.abort();
    this.#wake();
  }
}
