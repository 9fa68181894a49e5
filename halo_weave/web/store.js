// The state of the page. Changes come in as values, views hear of them by topic. No page, no network.

import { decodeFloats } from "./colour.js";
import { ReplyAttribution } from "./reply-attribution.js";
import { LiveChunks, liveChunk } from "./live-chunks.js";
import { compareIds, parts, roleName } from "./words.js";

const ENOUGH = 50; // tokens from which on reading tells how fast it is

/**
 * Topics of the state: status, me (who uses the page), windows, window (another one is shown), context (all of it was
 * loaded), live (chunks came or went), token, brightness, turn, budget, settings, connection, attribution (of a
 * reply). Of what happened: message-stored, done, failed, graveyard (what sleeps is another), memory (the model's
 * notes or structured memory may have changed). To do: goto and resurrected (show a chunk), follow (what comes now),
 * explanation (of a chunk), compose, given-back and taken-back (the user's words), unloadable, panel (one to open).
 */
export class Store extends EventTarget {
  /** @type {Status | null} */
  status = null;
  /** @type {SettingsInfo | null} */
  settings = null;
  /** Who uses the page. @type {Me | null} */
  me = null;
  /** @type {WindowInfo[]} */
  windows = [];
  windowsKnown = false;
  /** The window that is shown. */
  current = "";
  /** null while it is loaded. @type {LiveChunks | null} */
  live = null;
  /** @type {Budget | null} */
  budget = null;
  /** @type {ContextStats | null} */
  stats = null;
  /** @type {TurnState} */
  turn = rest();
  /**
   * Where the words of replies came from, by turn; null: it is not known.
   * @type {Map<string, ReplyAttribution | null>}
   */
  attributions = new Map();
  /** Replies of which it is not known what they used, since the model was not calibrated yet. @type {Set<string>} */
  unattributed = new Set();
  /**
   * What was saved or forgotten on request, by reply.
   * @type {Map<string, import("./views/memory-changes.js").MemoryChange[]>}
   */
  memoryChanges = new Map();
  /** The reply whose light is shown, "" for the newest. */
  pointed = "";
  /** @type {Connection} */
  connection = { state: "connecting", retryAt: 0 };

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

  /** What is told of the model is another by now. @param {Status["model"]} model */
  setModel(model) {
    if (!this.status) return;
    this.status = { ...this.status, model };
    this.tell("status");
  }

  /** @param {Me} me */
  setMe(me) {
    this.me = me;
    this.tell("me");
  }

  /** Whether one may write in the window that is shown. */
  get writable() {
    return this.window?.writable ?? true;
  }

  /** Whether one uses the server of somebody else. */
  get guest() {
    return this.me?.is_owner === false;
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
    this.attributions.clear();
    this.pointed = "";
    this.tell("window");
    this.tell("turn");
  }

  /** @param {WireContext} wire */
  setContext(wire) {
    if (wire.window !== this.current) return;
    this.live = LiveChunks.from(wire, this.live ?? undefined, this.nameOf("assistant"));
    this.budget = wire.budget;
    this.stats = wire.stats;
    if (wire.generating && !this.busy) this.turn = { ...this.turn, phase: "writing", since: Date.now() };
    if (!wire.generating && this.turn.phase !== "sending") {
      this.turn = { ...this.turn, phase: wire.reply_not_stored ? "finishing" : "idle" };
    }
    this.turn = { ...this.turn, notStored: wire.reply_not_stored ?? "" };
    this.tell("context", wire);
    this.tell("live");
    this.tell("budget");
    this.tell("turn");
  }

  /** @param {string} turnId @param {ReplyAttribution | null} light */
  setAttribution(turnId, light) {
    this.attributions.set(turnId, light);
    this.tell("attribution");
  }

  /** Shows the light of another reply. @param {string} turnId */
  point(turnId) {
    if (this.pointed === turnId) return;
    this.pointed = turnId;
    this.tell("attribution");
  }

  /** The newest reply that stands in the window. */
  get newestReply() {
    const own = this.live?.chunks.findLast((one) => one.turn.role === "assistant" && one.turn.window === this.current);
    return own?.turn.turn_id ?? "";
  }

  /** The last turn that was said in this window. */
  get lastTurn() {
    return this.live?.chunks.findLast((one) => one.turn.window === this.current)?.turn.turn_id ?? "";
  }

  /** What the reply in progress, or the one that is shown, took from each chunk's tokens. */
  get lit() {
    const { live } = this;
    if (live?.draft && !this.pointed) return live.looked;
    const light = this.attributions.get(this.pointed || this.newestReply);
    return { shares: light?.grounds ?? new Map(), most: light?.most ?? 0 };
  }

  /** @param {Connection["state"]} state @param {number} [retryAt] */
  setConnection(state, retryAt = 0) {
    if (this.connection.state === state && this.connection.retryAt === retryAt) return;
    this.connection = { state, retryAt };
    this.tell("connection");
  }

  /** The user's words are on their way. */
  sending() {
    this.#turn({ ...rest(), readSpeed: this.turn.readSpeed, phase: "sending" });
  }

  /** They did not arrive. */
  notSent() {
    if (this.turn.phase === "sending") this.#turn({ phase: "idle" }); // else another turn is going on
  }

  /** @param {Partial<TurnState>} changes */
  #turn(changes) {
    this.turn = { ...this.turn, ...changes };
    this.tell("turn");
  }

  /** @param {Partial<ContextStats>} changes */
  #figures(changes) {
    if (this.stats) this.stats = { ...this.stats, ...changes };
  }

  /**
   * One event of the window's stream. True: it does not add up to what is known here, so the context has to be loaded.
   * @param {StreamEvent} event
   * @returns {boolean}
   */
  apply(event) {
    switch (event.event) {
      case "searching": return this.#searching();
      case "resurrected": return this.#resurrected(event.data);
      case "pruned": return this.#pruned(event.data);
      case "message_stored": return this.#messageStored(event.data);
      case "regenerating": return this.#regenerating(event.data);
      case "prefill_planned": return this.#phase("reading", { toRead: event.data.computed, readSince: Date.now() });
      case "prefill": return this.#prefill(event.data);
      case "token": return this.#token(event.data);
      case "brightness": return this.#brightness(event.data);
      case "tool_called": return this.#phase("tool", { command: event.data.command, tools: this.turn.tools + 1 });
      case "tool_answered": return this.#phase("writing", { command: "" });
      case "memory_changed": return this.#memoryChanged(event.data);
      case "reply_stored": return this.#replyStored(event.data);
      case "done": return this.#done(event.data);
      case "reply_not_stored": return this.#replyNotStored(event.data);
      case "failed": return this.#failed(event.data);
      case "model": return this.#news(event.data);
      default: return event.event === "changed" || event.event === "reset";
    }
  }

  /** @param {Phase} phase @param {Partial<TurnState>} [more] */
  #phase(phase, more = {}) {
    this.#turn({ ...more, phase });
    return false;
  }

  /** A turn begins; if chunks had to make room for it, they fell asleep just before. */
  #searching() {
    const pruned = this.turn.phase === "sleeping" ? this.turn.pruned : 0;
    return this.#phase("searching", { ...rest(), pruned, readSpeed: this.turn.readSpeed });
  }

  /** @param {Wire.Events["resurrected"]} data */
  #resurrected({ chunks }) {
    for (const one of [...chunks].sort((a, b) => compareIds(a.start, b.start))) {
      const chunk = liveChunk(one, this.#turnOf(one.key, one));
      chunk.resurrected ??= { words: one.words, similarity: one.similarity, part: one.part };
      chunk.fresh = true;
      this.live?.resurrect(chunk, one.pruned_here);
    }
    this.live?.rescale();
    this.#sleepers(-1, chunks.filter((one) => one.pruned_here));
    this.#phase("waking", { resurrected: this.turn.resurrected + chunks.length });
    this.tell("live");
    return false;
  }

  /** @param {Wire.Events["pruned"]} data */
  #pruned({ chunks, before_turn }) {
    for (const { key } of chunks) this.live?.remove(key);
    this.live?.rescale();
    this.#sleepers(1, chunks);
    const before = before_turn ? 0 : this.turn.pruned; // such an event is the first of a turn
    this.#phase(before_turn ? "sleeping" : "finishing", { pruned: before + chunks.length });
    this.tell("live");
    return false;
  }

  /** These sleep now, or do not any more. @param {1 | -1} sign @param {{tokens: number}[]} chunks */
  #sleepers(sign, chunks) {
    const tokens = chunks.reduce((sum, chunk) => sum + chunk.tokens, 0);
    const { pruned_chunks = 0, pruned_tokens = 0 } = this.stats ?? {};
    this.#figures({
      pruned_chunks: pruned_chunks + sign * chunks.length, pruned_tokens: pruned_tokens + sign * tokens,
    });
  }

  /** @param {Wire.Events["message_stored"]} data */
  #messageStored(data) {
    const { live } = this;
    if (!live) return false;
    for (const one of data.chunks) live.put(liveChunk(one, this.#turnOf(one.key, data)));
    const first = live.find(data.chunks[0]?.key);
    if (first && live.prunedAfter) first.prunedBefore = live.prunedAfter;
    live.prunedAfter = null;
    if (this.budget) this.budget = { ...this.budget, frames: data.frames };
    if (live.draft?.turn.turn_id !== data.reply_turn_id) {
      const tokens = data.chunks.reduce((sum, chunk) => sum + chunk.tokens, 0);
      const start = data.chunks.length ? String(BigInt(data.chunks[0].start) + BigInt(tokens)) : "0";
      live.begin(data.reply_turn_id, start, this.#turnOf(`${data.reply_turn_id}.0.assistant`));
    }
    live.rescale();
    this.#phase("reading");
    this.#list();
    this.tell("live");
    this.tell("message-stored", data);
    return false;
  }

  /** Something that was said before is answered, perhaps again. @param {Wire.Events["regenerating"]} data */
  #regenerating({ turn_id, reply_turn_id }) {
    const { live } = this;
    if (live && live.draft?.turn.turn_id !== reply_turn_id) {
      live.begin(reply_turn_id, "", this.#turnOf(`${reply_turn_id}.0.assistant`));
    }
    this.tell("live");
    this.tell("message-stored");
    return this.#phase("reading", { regenerating: turn_id });
  }

  /** @param {Wire.Events["prefill"]} data */
  #prefill(data) {
    this.#figures({ kv_reuse: reuse(data) });
    const speed = data.computed >= ENOUGH && data.seconds > 0 ? data.computed / data.seconds : this.turn.readSpeed;
    return this.#phase("writing", { since: Date.now(), readSpeed: speed });
  }

  /** @param {Wire.Events["token"]} data */
  #token({ position, text, tool, thought }) {
    if (!this.live) return false;
    if (!this.live.grow(position, text, Boolean(tool), Boolean(thought))) return true;
    const { turn } = this;
    const phase = turn.phase === "tool" && tool ? "tool" : "writing";
    this.turn = { ...turn, phase, tokens: turn.tokens + 1, since: turn.tokens ? turn.since : Date.now() };
    this.tell("token");
    return false;
  }

  /** @param {Wire.Events["brightness"]} data */
  #brightness({ brightness, attention }) {
    if (this.live?.draft) this.live.attention = decodeFloats(attention);
    if (this.live?.brighten(decodeFloats(brightness))) this.tell("brightness");
    return false;
  }

  /** @param {Wire.Events["memory_changed"]} data */
  #memoryChanged(data) {
    if (data.moved_from) {
      for (const changes of this.memoryChanges.values()) {
        for (const one of changes) if (one.path === data.moved_from) one.path = data.path;
      }
      this.tell("live");
      return false;
    }
    const reply = this.newestReply;
    this.memoryChanges.set(reply, [...(this.memoryChanges.get(reply) ?? []), data]);
    this.tell("live");
    return false;
  }

  /** @param {Wire.Events["reply_stored"]} data */
  #replyStored(data) {
    const { live } = this;
    if (!live) return false;
    const turn = this.#turnOf(`${data.turn_id}.0.assistant`, data);
    const start = live.draft?.start ?? data.chunks[0]?.start ?? "0";
    this.attributions.set(data.turn_id, data.attribution && new ReplyAttribution(start, data.attribution));
    if (!data.attribution) this.unattributed.add(data.turn_id);
    live.settle(data.chunks.map((one) => liveChunk(one, turn)));
    this.#phase("finishing");
    this.tell("live");
    return false;
  }

  /** @param {Wire.Events["done"]} data */
  #done(data) {
    const { stats, budget, reason, ranks } = data;
    this.live?.rank(ranks ?? {});
    this.tell("brightness");
    const { turn } = this;
    this.#turn({ phase: "idle", reason, stats });
    const { resurrected, tokens_per_second } = stats;
    this.#figures({ resurrected_last_turn: resurrected, tokens_per_second, kv_reuse: reuse(stats) });
    this.budget = budget;
    this.#list();
    this.tell("budget");
    if (turn.resurrected || turn.pruned) this.tell("graveyard");
    if (turn.tools) this.tell("memory");
    this.tell("done", data);
    // If an event was missed, or one of them did not fit, what is shown here is not what the server holds.
    const { live } = this;
    if (!live || live.draft || live.mismatched) return true;
    if (resurrected !== turn.resurrected || stats.pruned !== turn.pruned) return true;
    return budget.live + budget.pinned !== live.tokens;
  }

  /** @param {Wire.Events["reply_not_stored"]} data */
  #replyNotStored({ message }) {
    this.#turn({ notStored: message });
    return false;
  }

  /** A model on its way; once it is ready, the whole status is asked for. @param {Wire.Events["model"]} change */
  #news(change) {
    const model = this.status?.model;
    const { message, progress } = change;
    if (model?.state === "ready") this.setModel({ ...model, change });
    else if (model) this.setModel({ ...model, change, message, progress });
    return false;
  }

  /** @param {Wire.Events["failed"]} data */
  #failed(data) {
    this.#turn({ phase: "idle", reason: "error", failed: data.message, notStored: "" });
    this.tell("failed", data);
    return true;
  }

  /** What the list of windows says of this one follows from its events. */
  #list() {
    const { window, live, stats } = this;
    const last = live?.chunks.findLast((chunk) => chunk.turn.window === this.current);
    if (!window || !live || !last) return;
    this.setWindow({
      ...window, modified: last.turn.said, generating: this.busy, last_text: last.pieces.join(""),
      live_chunks: live.chunks.length, live_tokens: live.tokens, pruned_chunks: stats?.pruned_chunks ?? 0,
    });
  }

  /** The turn of a chunk that an event tells of. @param {string} key @param {Partial<Turn>} [told] @returns {Turn} */
  #turnOf(key, told = {}) {
    const { turn, role } = parts(key);
    const { said = new Date().toISOString(), window = this.current, window_name = "" } = told;
    const known = /** @type {Role} */ (role);
    const speaker = told.speaker || this.nameOf(known, window);
    const { sources = null } = told;
    const more = { interrupted: false, sources, versions: told.versions ?? 1, version: told.version ?? 1,
      document: told.document ?? false, unfinished: told.unfinished ?? false };
    return { turn_id: turn, role: known, said, window, window_name, speaker, ...more };
  }
}

/**
 * The share of a prompt that did not have to be computed.
 * @param {{reused: number, restored: number, computed: number}} read
 */
function reuse({ reused, restored, computed }) {
  const whole = reused + restored + computed;
  return whole ? (reused + restored) / whole : null;
}

/** @returns {TurnState} */
function rest() {
  return {
    phase: "idle", resurrected: 0, pruned: 0, toRead: 0, readSince: 0, readSpeed: 0, tokens: 0, since: 0, command: "",
    tools: 0, reason: "", regenerating: "", stats: {}, failed: "", notStored: "",
  };
}
