// The state of the page. Changes come in as values, views hear of them by topic. No page, no network.

import { decodeFloats } from "./colour.js";
import { Live, liveChunk } from "./live.js";
import { parts, roleName } from "./words.js";

/**
 * Topics: status, windows, window (another one is shown), live (chunks came or went), token, brightness, turn,
 * budget, settings, connection, preferences.
 */
export class Store extends EventTarget {
  /** @type {Status | null} */
  status = null;
  /** @type {SettingsInfo | null} */
  settings = null;
  /** @type {WindowInfo[]} */
  windows = [];
  windowsKnown = false;
  /** The window that is shown. */
  current = "";
  /** null while it is loaded. @type {Live | null} */
  live = null;
  /** @type {Budget | null} */
  budget = null;
  /** @type {ContextStats | null} */
  stats = null;
  /** @type {TurnState} */
  turn = rest();
  /** @type {Connection} */
  connection = { state: "connecting", retryAt: 0 };
  /** Chunks woken for the exchange in progress, or for the last one. */
  woken = 0;

  /** @param {string} topic @param {(detail: any) => void} heard */
  on(topic, heard) {
    this.addEventListener(topic, (event) => heard(/** @type {CustomEvent} */ (event).detail));
  }

  /** @param {string} topic @param {unknown} [detail] */
  tell(topic, detail) {
    this.dispatchEvent(new CustomEvent(topic, { detail }));
  }

  get window() {
    return this.windows.find((one) => one.id === this.current) ?? null;
  }

  /** Who speaks in a window, as far as that is known. @param {Role} role @param {string} [window] */
  nameOf(role, window = this.current) {
    const one = this.windows.find((other) => other.id === window);
    return (role === "user" ? one?.user_name : role === "assistant" ? one?.ai_name : "") || roleName(role);
  }

  get busy() {
    return this.turn.phase !== "idle";
  }

  /** @param {Status} status */
  setStatus(status) {
    this.status = status;
    this.tell("status");
  }

  /** @param {SettingsInfo} settings */
  setSettings(settings) {
    this.settings = settings;
    this.tell("settings");
  }

  /** @param {WindowInfo[]} windows */
  setWindows(windows) {
    this.windows = windows;
    this.windowsKnown = true;
    this.tell("windows");
  }

  /** @param {WindowInfo} window */
  setWindow(window) {
    const at = this.windows.findIndex((one) => one.id === window.id);
    this.setWindows(at < 0 ? [...this.windows, window] : this.windows.with(at, window));
  }

  /** @param {string} id */
  show(id) {
    this.current = id;
    this.live = null;
    this.budget = this.stats = null;
    this.turn = rest();
    this.woken = 0;
    this.tell("window");
    this.tell("turn");
  }

  /** @param {WireContext} wire */
  setContext(wire) {
    if (wire.window !== this.current) return;
    this.live = Live.from(wire, this.live ?? undefined, this.nameOf("assistant"));
    this.budget = wire.budget;
    this.stats = wire.stats;
    if (wire.generating && !this.busy) this.#phase("writing", { since: Date.now() });
    if (!wire.generating && this.busy && this.turn.phase !== "sending") this.turn = { ...this.turn, phase: "idle" };
    this.tell("live");
    this.tell("budget");
    this.tell("turn");
  }

  /** @param {Connection["state"]} state @param {number} [retryAt] */
  setConnection(state, retryAt = 0) {
    if (this.connection.state === state && this.connection.retryAt === retryAt) return;
    this.connection = { state, retryAt };
    this.tell("connection");
  }

  /** The user's words are on their way. @param {string} text */
  sending(text) {
    this.turn = { ...rest(), phase: "sending", text };
    this.tell("turn");
  }

  /** They did not arrive. */
  notSent() {
    if (this.turn.phase !== "sending") return; // another turn is going on
    this.turn = { ...this.turn, phase: "idle" };
    this.tell("turn");
  }

  /** @param {Phase} phase @param {Partial<TurnState>} [more] */
  #phase(phase, more = {}) {
    this.turn = { ...this.turn, ...more, phase };
    this.tell("turn");
  }

  /**
   * One event of the window's stream. True: the context has to be loaded anew.
   * @param {StreamEvent} event
   */
  apply({ event, data }) {
    const live = this.live;
    switch (event) {
      case "searching":
        this.woken = 0;
        this.turn = { ...rest(), phase: "searching", text: this.turn.phase === "sending" ? this.turn.text : "" };
        this.tell("turn");
        return false;
      case "woken":
        return this.#woken(data);
      case "asleep":
        for (const { key } of data.chunks) live?.remove(key);
        live?.rescale();
        this.#asleep(data.chunks.length);
        this.#phase(data.before_turn ? "sleeping" : "finishing", { slept: data.chunks.length });
        this.tell("live");
        return false;
      case "heard":
        return this.#heard(data);
      case "to_read":
        this.#phase("reading", { toRead: data.computed });
        return false;
      case "reading":
        this.#phase("writing", { since: Date.now(), tokens: this.turn.tokens, stats: { ...this.turn.stats, read: data } });
        return false;
      case "token":
        return this.#token(data);
      case "brightened":
        if (live?.brighten(decodeFloats(data.data))) this.tell("brightness");
        return false;
      case "tool_called":
        this.#phase("tool", { command: data.command });
        return false;
      case "tool_answered":
        this.#phase("writing", { command: "" });
        return false;
      case "spoken":
        return this.#spoken(data);
      case "done":
        this.turn = { ...this.turn, phase: "idle", reason: data.reason, stats: { ...this.turn.stats, ...data.stats } };
        this.tell("turn");
        this.tell("done", data);
        return true;
      case "failed":
        this.turn = { ...this.turn, phase: "idle", reason: "error", failed: data.sentence };
        this.tell("turn");
        this.tell("failed", data);
        return true;
      case "changed":
      case "reset":
        return true;
      default:
        return false;
    }
  }

  /** @param {any} data */
  #woken(data) {
    const live = this.live;
    for (const one of data.chunks) {
      const turn = turnOfKey(one.key, { ...one, speaker: one.speaker || this.nameOf(/** @type {Role} */ (parts(one.key).role), one.window || this.current) });
      const chunk = liveChunk({ ...one, woken: one.woken ?? { words: one.words, similarity: one.similarity, part: one.part } }, turn);
      chunk.fresh = true;
      live?.put(chunk);
    }
    live?.rescale();
    this.woken += data.chunks.length;
    this.#asleep(-data.chunks.filter((/** @type {{slept: boolean}} */ one) => one.slept).length);
    this.#phase("waking", { woken: this.turn.woken + data.chunks.length });
    this.tell("live");
    return false;
  }

  /** So many more chunks sleep. @param {number} more */
  #asleep(more) {
    if (this.stats) this.stats = { ...this.stats, asleep_chunks: this.stats.asleep_chunks + more };
  }

  /** @param {any} data */
  #heard(data) {
    const live = this.live;
    if (!live) return false;
    const tokens = data.chunks.reduce((/** @type {number} */ sum, /** @type {WireChunk} */ chunk) => sum + chunk.tokens, 0);
    for (const one of data.chunks) live.put(liveChunk(one, turnOfKey(one.key, { said: data.said, window: this.current, speaker: this.nameOf("user") })));
    const first = live.find(data.chunks[0]?.key);
    if (first && live.tailGap) first.gap = live.tailGap;
    live.tailGap = null;
    if (this.budget && data.frames !== undefined) this.budget = { ...this.budget, frames: data.frames };
    const start = data.chunks.length ? String(BigInt(data.chunks[0].start) + BigInt(tokens)) : "0";
    if (live.draft?.turn.turn_id !== data.reply_turn) {
      live.begin(data.reply_turn, start, { window: this.current, speaker: this.nameOf("assistant") });
    }
    live.rescale();
    this.#phase("reading", { text: "" });
    this.tell("live");
    this.tell("heard", data);
    return false;
  }

  /** @param {any} data */
  #token(data) {
    if (!this.live) return false;
    if (!this.live.grow(data.position, data.text, Boolean(data.tool))) return true;
    const first = this.turn.tokens === 0;
    this.turn = { ...this.turn, tokens: this.turn.tokens + 1, phase: this.turn.phase === "tool" && data.tool ? "tool" : "writing", since: first ? Date.now() : this.turn.since };
    this.tell("token");
    return false;
  }

  /** @param {any} data */
  #spoken(data) {
    const live = this.live;
    if (!live) return false;
    const turn = live.draft?.turn ?? turnOfKey(`${data.turn_id}.0.assistant`, { window: this.current, speaker: this.nameOf("assistant") });
    live.settle(data.chunks.map((/** @type {WireChunk} */ one) => liveChunk(one, turn)));
    this.#phase("finishing");
    this.tell("live");
    return false;
  }
}

/** @returns {TurnState} */
function rest() {
  return {
    phase: "idle", woken: 0, toRead: 0, tokens: 0, since: 0, command: "", reason: "",
    stats: {}, failed: "", slept: 0, text: "",
  };
}

/** @param {string} key @param {Partial<Turn> & Record<string, any>} about @returns {Turn} */
function turnOfKey(key, about) {
  const { turn, role } = parts(key);
  return {
    turn_id: turn, role: /** @type {Role} */ (role), said: about.said ?? new Date().toISOString(),
    window: about.window ?? "", window_name: about.window_name ?? "", speaker: about.speaker ?? "",
  };
}
