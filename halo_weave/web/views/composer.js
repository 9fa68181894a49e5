// The foot: what the user writes, what would wake up for it, and what is going on.

import { debounced, h, icon } from "../dom.js";
import { counted, ending, number, turnSentence } from "../words.js";
import { AttachmentsView } from "./attachments.js";
import { PreviewView } from "./preview.js";

const PREVIEW_AFTER = 350;
const NOTE = 5000;
const CHARACTERS = 4; // of a token, until it is counted
const LONGEST = 19_000; // characters that are asked about while they are typed
const LONG = 1000; // tokens from which on a text is worth a word

export class ComposerView {
  #ticking = 0;
  /** The long text that was told of. */
  #told = 0;
  /** Why Enter did nothing. */
  #note = "";
  /** Whose text stands in the box. */
  #window = "";
  /** The text in the box is sent when the model is ready and no reply is being written. */
  #waiting = false;

  /** @param {import("../app.js").App} app @param {HTMLElement} place */
  constructor(app, place) {
    this.app = app;
    this.input = h("textarea", {
      class: "say", rows: "1", "aria-label": "Your message", placeholder: "Say something…", spellcheck: "true",
    });
    const send = { class: "send", "aria-label": "Send", title: "Send (Enter)" };
    this.send = h("button", { type: "submit", ...send }, icon("send"));
    const stop = { class: "send stop", "aria-label": "Stop", title: "Stop (Esc)", on: { click: () => app.stop() } };
    this.stop = h("button", { type: "button", ...stop }, icon("stop"));
    this.status = h("p", { class: "status", role: "status" });
    this.count = h("span", { class: "draft-count", title: "How many tokens your text takes", hidden: true });
    this.preview = new PreviewView(app, (tokens) => this.#counted(tokens));
    this.form = h("form", { class: "composer", "aria-label": "Say something" },
      h("div", { class: "box" }, this.input, this.count, this.send, this.stop));
    this.closed = h("p", { class: "closed", hidden: true });
    const takeBack = { type: "button", class: "button bare", text: "Take back", on: { click: () => this.#takeBack() } };
    this.waits = h("span");
    this.queued = h("p", { class: "queued", role: "status", hidden: true }, this.waits, h("button", takeBack));
    place.append(this.form, this.closed, this.queued, this.preview.node, this.status);
    this.attachments = new AttachmentsView(app, /** @type {HTMLElement} */ (this.form.querySelector(".box")));
    /** Words on their way. @type {{window: string, text: string, back: boolean} | null} */
    this.unheard = null;
    this.#listen();
    this.input.value = app.preferences.draft(""); // typed before a window was known
    this.show();
  }

  #listen() {
    const { app } = this;
    const { store } = app;
    this.form.addEventListener("submit", (event) => {
      event.preventDefault();
      this.say();
    });
    this.input.addEventListener("keydown", (event) => this.#key(event));
    const look = debounced(() => this.look(), PREVIEW_AFTER);
    this.input.addEventListener("input", () => {
      this.#fit();
      app.preferences.saveDraft(app.store.current, this.input.value);
      look();
    });
    for (const topic of ["turn", "status", "connection", "windows"]) store.on(topic, () => this.show());
    store.on("token", () => this.#tick());
    store.on("window", () => {
      this.preview.forget(); // what was chosen there holds there
      this.#moveTo(store.current);
    });
    store.on("context", () => this.#sendWaiting());
    store.on("compose", () => this.input.focus());
    store.on("given-back", (text) => this.set(this.input.value.trim() ? `${text}\n${this.input.value}` : text));
    store.on("taken-back", (text) => this.input.value === text && this.set("", false));
    store.on("failed", ({ message }) => {
      app.toasts.show(message, { kind: "bad" });
      this.#wait(false); // what waited for the reply stays in the box
      if (this.unheard?.window === store.current) this.#giveBack(this.unheard);
      this.unheard = null;
    });
    store.on("message-stored", () => (this.unheard = null));
    for (const topic of ["done", "failed"]) store.on(topic, () => this.look()); // for what was typed meanwhile
  }

  async say() {
    const { app } = this;
    const text = this.input.value;
    if (!text.trim() || this.#waiting) return;
    if (this.#unusable || this.attachments.reading) return this.#notYet();
    if (this.#starting || app.store.busy) return this.#wait(true);
    const { recall } = this.preview;
    this.set("", false);
    const window = app.store.current || ((await app.newWindow())?.id ?? "");
    const files = this.attachments.take();
    const unheard = (this.unheard = { window, text, back: false });
    if (window && (await app.say(text, window, files, recall))) return;
    this.attachments.giveBack(window, files);
    this.#giveBack(unheard);
    if (this.unheard === unheard) this.unheard = null;
  }

  /** Nothing can be sent until the user, or the network, changes something. */
  get #unusable() {
    const { status, connection } = this.app.store;
    return status?.model.state === "missing" || connection.state === "lost";
  }

  /** The page, the model or the conversation is still being loaded. */
  get #starting() {
    const { status, connection } = this.app.store;
    return connection.state !== "online" || status?.model.state !== "ready" || !this.#placed;
  }

  /** Whether it is known where words go: to a window that is loaded, or to a new one since there is none. */
  get #placed() {
    const { windowsKnown, windows, current, live } = this.app.store;
    return windowsKnown && (current ? Boolean(live) : !windows.length);
  }

  /** The text stays in the box, and in the draft, until it can be sent. @param {boolean} waiting */
  #wait(waiting) {
    this.#waiting = this.input.readOnly = waiting;
    this.queued.hidden = !waiting;
    const loading = this.app.store.status?.model.state === "loading";
    const when = loading ? "the model is ready"
      : this.#starting ? "the conversation is loaded" : "the reply is finished";
    this.waits.textContent = `Your message will be sent when ${when}.`;
    this.show();
  }

  #takeBack() {
    this.#wait(false);
    this.input.focus();
  }

  /** Sends what waited, once the model is ready, the window is known and no reply is being written there. */
  #sendWaiting() {
    const missing = this.app.store.status?.model.state === "missing";
    if (!this.#waiting || ((this.#starting || this.app.store.busy) && !missing)) return;
    this.#wait(false);
    if (!missing) this.say();
  }

  /** Why what was typed is not sent now. It stays in the box. */
  #notYet() {
    this.#note = this.attachments.reading ? "Not sent yet: a file is still being read. Your words stay here."
      : "Not sent yet: the model is not ready. Your words stay here.";
    this.#sentence();
    setTimeout(() => {
      this.#note = "";
      this.#sentence();
    }, NOTE);
  }

  /**
   * Once, though a failure may be told twice: by the answer and by an event.
   * @param {{window: string, text: string, back: boolean}} unheard
   */
  #giveBack(unheard) {
    if (!unheard.back) this.app.giveBack(unheard.window, unheard.text);
    unheard.back = true;
  }

  /** Another window is shown, with its text. What was typed before there was one comes along. @param {string} window */
  #moveTo(window) {
    const { preferences } = this.app;
    const typed = this.#window ? "" : this.input.value.trim() && this.input.value;
    if (typed) preferences.saveDraft("", "");
    if (!typed || preferences.draft(window)) this.#wait(false); // what waits is sent only as it was written
    this.#window = window;
    this.set([preferences.draft(window), typed].filter(Boolean).join("\n"), false);
    // On a touch screen the focus would open the keyboard over the conversation.
    if (matchMedia("(hover: hover)").matches && document.activeElement === document.body) this.input.focus();
  }

  /** @param {string} text @param {boolean} [focus] */
  set(text, focus = true) {
    this.input.value = text;
    this.app.preferences.saveDraft(this.app.store.current, text);
    this.#fit();
    this.look();
    if (!focus) return;
    this.input.focus();
    this.input.setSelectionRange(text.length, text.length);
  }

  #fit() {
    this.input.style.height = "auto";
    this.input.style.height = `${Math.min(this.input.scrollHeight, window.innerHeight * 0.35)}px`;
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    if (event.isComposing) return;
    if (event.key === "Escape" && this.#waiting) {
      event.stopPropagation();
      this.#takeBack();
    } else if (event.key === "Enter" && !event.shiftKey) {
      event.preventDefault();
      this.say();
    } else if (event.key === "ArrowUp" && !this.input.value && !event.shiftKey) {
      event.preventDefault();
      this.app.editLast();
    }
  }

  /** What would wake up for the text as it stands. */
  async look() {
    const text = this.input.value.trim();
    const { store } = this.app;
    this.count.hidden = text.length < 3;
    this.#counted(Math.ceil(text.length / CHARACTERS), true);
    if (!text) this.preview.forget();
    else if (text.length < 3 || text.length > LONGEST || !store.current || !store.writable || store.busy) {
      this.preview.hide();
    } else await this.preview.look(text);
  }

  /** How many tokens the text takes, against what stays live. @param {number} tokens @param {boolean} [about] */
  #counted(tokens, about = false) {
    const { budget } = this.app.store;
    const most = budget?.max_context_tokens || budget?.model_context || 0;
    this.count.textContent = `${about ? "about " : ""}${counted(tokens, "token")}`;
    this.count.classList.toggle("bad", most > 0 && tokens > most);
    if (!most || tokens < LONG || tokens === this.#told) return;
    this.#told = tokens;
    const long = `A long text: ${this.count.textContent} of the ${number(most)} that this window keeps live.`;
    this.#note = tokens > most ? `${long} What does not fit will fall asleep right after the reply.` : long;
    this.#sentence();
    setTimeout(() => {
      this.#note = "";
      this.#sentence();
    }, 2 * NOTE);
  }

  #tick() {
    this.#ticking ||= window.setTimeout(() => {
      this.#ticking = 0;
      this.#sentence();
    }, 250);
  }

  show() {
    const { store } = this.app;
    this.stop.hidden = !store.busy || store.turn.phase === "sending";
    this.send.hidden = !this.stop.hidden;
    this.send.disabled = store.busy || this.#waiting || this.#unusable;
    this.form.hidden = !store.writable;
    this.closed.hidden = store.writable;
    if (!store.writable) this.closed.textContent = `${store.window?.owner} shares this window with you to read.`;
    if (store.busy || !store.writable) this.preview.hide();
    this.#sentence();
    this.#sendWaiting();
  }

  #sentence() {
    const { turn, status, connection } = this.app.store;
    let words = turn.notStored || this.#note || turnSentence(turn, Date.now());
    if (turn.phase === "reading") this.#tick();
    if (connection.state === "lost") words = "Connection lost. Trying again…";
    else if (!words && status?.model.state === "loading") words = status.model.message || "Loading the model…";
    else if (!words && status?.model.state === "missing") words = "There is no model yet.";
    else if (!words && turn.failed) words = turn.failed;
    else if (!words && turn.reason) {
      words = [ending(turn.reason, turn.stats), doneWords(turn)].filter(Boolean).join(" ");
    }
    if (this.status.textContent !== words) this.status.textContent = words;
    this.status.classList.toggle("at-work", turn.phase !== "idle");
    this.status.classList.toggle("bad", connection.state === "lost" || Boolean(turn.notStored) ||
      (turn.phase === "idle" && Boolean(turn.failed)));
  }
}

/** @param {TurnState} turn */
function doneWords(turn) {
  const { tokens, tokens_per_second, computed, resurrected, pruned } = turn.stats;
  const { server_prompt_tokens: prompted, server_cached_tokens: cached, malformed_rows: faults } = turn.stats;
  if (!tokens) return "";
  const speed = tokens_per_second ? ` at ${Math.round(tokens_per_second)} tok/s` : "";
  const kept = prompted ? `, the server had ${cached} of ${counted(prompted, "token")}` : "";
  const blind = faults ? ` Attention that could not be used: ${counted(faults, "row")}.` : "";
  const read = kept || computed === undefined ? kept : `, read ${counted(computed, "token")} anew`;
  const woke = resurrected ? `, woke ${resurrected}` : "";
  const slept = pruned ? `, put ${pruned} to sleep` : "";
  return `Wrote ${counted(tokens, "token")}${speed}${read}${woke}${slept}.${blind}`;
}
