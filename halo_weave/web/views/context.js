// The centre: exactly what the model sees, in time order, lit by what it looks at.

import { fill, h, iconButton } from "../dom.js";
import { compareIds, counted, moment, parts, percent, speakerOf } from "../words.js";
import { ChunkView } from "./chunk.js";
import { GapView } from "./gap.js";

const NEAR = 120; // pixels from the end within which the page follows the reply

export class ContextView {
  /** @type {Map<string, ChunkView>} */
  chunks = new Map();
  /** @type {Map<string, {node: HTMLElement, head: HTMLElement, body: HTMLElement}>} */
  turns = new Map();
  /** @type {Map<string, GapView>} */
  gaps = new Map();
  #frame = 0;
  #stale = { live: false, token: false, brightness: false };
  #following = true;
  /** How long the last recolouring took, and how many nodes it wrote. */
  last = { recolour: 0, written: 0 };

  /** @param {import("../app.js").App} app @param {HTMLElement} place the scrolling part @param {HTMLElement} more where the jump button stands */
  constructor(app, place, more) {
    this.app = app;
    this.place = place;
    this.list = h("div", { class: "turns" });
    this.state = h("div", { class: "state" });
    place.append(this.state, this.list);
    this.jump = iconButton("down", "Newest", () => this.toEnd(), { text: true, class: "jump" });
    this.jump.hidden = true;
    more.append(this.jump);
    this.tools = this.#toolbar();
    this.#listen();
    const { store } = app;
    store.on("window", () => this.#clear());
    store.on("live", () => this.#soon("live"));
    store.on("token", () => this.#soon("token"));
    store.on("brightness", () => this.#soon("brightness"));
    store.on("goto", (key) => requestAnimationFrame(() => this.goto(key)));
    store.on("woke", (key) => requestAnimationFrame(() => this.goto(key, true)));
    store.on("heard", () => (this.#following = true));
    store.on("unloadable", (sentence) => this.#say("This window could not be loaded", sentence, "Try again", () => app.reload()));
    for (const topic of ["windows", "status", "connection"]) store.on(topic, () => this.#situation());
    store.on("windows", () => store.live?.all.forEach((chunk) => this.turns.has(chunk.turn.turn_id) && this.#turn(chunk.turn))); // one may be gone
    this.#situation();
  }

  /** @param {"live" | "token" | "brightness"} what */
  #soon(what) {
    this.#stale[what] = true;
    this.#frame ||= requestAnimationFrame(() => this.flush());
  }

  /** Brings the page up to the store, now. */
  flush() {
    cancelAnimationFrame(this.#frame);
    this.#frame = 0;
    const stale = this.#stale;
    this.#stale = { live: false, token: false, brightness: false };
    const { live } = this.app.store;
    if (!live) return;
    if (stale.live) this.#arrange(live);
    if (stale.token) this.chunks.get("draft")?.grow();
    if (stale.live || stale.brightness) this.recolour();
    if (stale.live) this.#situation();
    if (this.#following && (stale.live || stale.token)) this.toEnd();
  }

  recolour() {
    const { live, window } = this.app.store;
    if (!live) return;
    const began = performance.now();
    // The newest reply has not been looked back at yet: all its tokens are as bright as they were born.
    const unproven = window?.effective?.score_current_turn ? "" : live.all.at(-1)?.turn.role === "assistant" ? live.all.at(-1)?.turn.turn_id : "";
    let written = 0;
    for (const chunk of live.all) {
      const view = this.chunks.get(chunk.key);
      if (!view) continue;
      view.chunk = chunk;
      written += view.recolour(live.low, live.high, chunk.turn.turn_id !== unproven);
    }
    this.last = { recolour: performance.now() - began, written };
  }

  /** Every chunk at its place; nodes that are there already stay. @param {import("../live.js").Live} live */
  #arrange(live) {
    const keys = new Set(), turns = new Set(), gaps = new Set();
    /** @type {Map<HTMLElement, Node[]>} */
    const wanted = new Map([[this.list, []]]);
    let before = /** @type {LiveChunk | null} */ (null);
    for (const chunk of live.all) {
      const view = this.#chunk(chunk);
      keys.add(chunk.key);
      const opens = before?.turn.turn_id !== chunk.turn.turn_id;
      const turn = this.#turn(chunk.turn);
      if (chunk.gap) {
        gaps.add(chunk.key);
        wanted.get(opens ? this.list : turn.body)?.push(this.#gap(chunk.key, chunk.gap, before?.start ?? null, chunk.start));
      }
      if (opens && !turns.has(chunk.turn.turn_id)) {
        turns.add(chunk.turn.turn_id);
        wanted.get(this.list)?.push(turn.node);
        wanted.set(turn.body, []);
      }
      wanted.get(turn.body)?.push(view.node);
      before = chunk;
    }
    if (live.tailGap?.chunks) {
      gaps.add("tail");
      wanted.get(this.list)?.push(this.#gap("tail", live.tailGap, before?.start ?? null, null));
    }
    const focused = this.list.contains(document.activeElement) ? document.activeElement?.closest("article") : null;
    const articles = focused ? /** @type {HTMLElement[]} */ ([...this.list.querySelectorAll("article")]) : [];
    for (const [place, nodes] of wanted) settle(place, nodes);
    if (focused && !this.list.contains(document.activeElement)) this.#refocus(focused, articles);
    if (!this.tools.hidden) this.#offer(this.tools.isConnected ? this.tools : this.list.querySelector("article:hover"));
    for (const [key] of this.chunks) if (!keys.has(key)) this.chunks.delete(key);
    for (const [id] of this.turns) if (!turns.has(id)) this.turns.delete(id);
    for (const [key] of this.gaps) if (!gaps.has(key)) this.gaps.delete(key);
    if (!this.list.querySelector("article[tabindex='0']")) this.list.querySelector("article:last-of-type")?.setAttribute("tabindex", "0");
  }

  /** The chunk that had the focus is gone: it goes to the same chunk anew, else to the one before, else after. @param {HTMLElement} gone @param {HTMLElement[]} before all, as they stood */
  #refocus(gone, before) {
    const at = before.indexOf(gone);
    for (const one of [gone, ...before.slice(0, at).reverse(), ...before.slice(at + 1)]) {
      const node = this.chunks.get(one.dataset.key ?? "")?.node;
      if (!node?.isConnected) continue;
      node.focus({ preventScroll: true });
      return;
    }
    this.place.focus({ preventScroll: true });
  }

  /** @param {LiveChunk} chunk */
  #chunk(chunk) {
    let view = this.chunks.get(chunk.key);
    if (view && chunk.draft && view.chunk.turn.turn_id === chunk.turn.turn_id && chunk.pieces.length >= view.spans.length) {
      view.adopt(chunk);
      view.grow();
    } else if (view?.shows(chunk)) view.adopt(chunk);
    else {
      const spoken = !chunk.draft && !view ? this.#ofDraft(chunk) : undefined;
      view = spoken ?? new ChunkView(chunk);
    }
    this.chunks.set(chunk.key, view);
    return view;
  }

  /** A reply of one chunk keeps the nodes it was written into. @param {LiveChunk} chunk */
  #ofDraft(chunk) {
    const draft = this.chunks.get("draft");
    if (!draft || this.app.store.live?.draft || draft.chunk.turn.turn_id !== chunk.turn.turn_id || !draft.shows({ ...chunk, start: draft.chunk.start, tool: draft.chunk.tool })) return undefined;
    this.chunks.delete("draft");
    draft.node.classList.remove("draft");
    draft.node.dataset.key = chunk.key;
    const tools = draft.chunk.tools;
    draft.adopt({ ...chunk, tools });
    return draft;
  }

  /** @param {Turn} turn */
  #turn(turn) {
    const { store } = this.app;
    let view = this.turns.get(turn.turn_id);
    if (!view) {
      const head = h("header", { class: "turn-head" });
      const body = h("div", { class: "turn-body" });
      const node = h("section", { class: `turn ${turn.role}`, data: { turn: turn.turn_id } }, head, body);
      view = { node, head, body };
      this.turns.set(turn.turn_id, view);
    }
    const speaker = speakerOf(turn);
    const elsewhere = turn.window && turn.window !== store.current;
    const known = store.windows.some((one) => one.id === turn.window);
    const state = JSON.stringify([speaker, turn.said, elsewhere && turn.window_name, known, turn.cut]);
    if (view.head.dataset.state !== state) {
      view.head.dataset.state = state;
      view.node.setAttribute("aria-label", `${speaker}, ${moment(turn.said)}`);
      fill(view.head,
        h("span", { class: "speaker", text: speaker }),
        h("time", { datetime: turn.said, title: new Date(turn.said).toLocaleString(), text: moment(turn.said) }),
        elsewhere && known ? h("button", { type: "button", class: "badge origin", text: `from “${turn.window_name || "another window"}”`, title: "Open the window where this was said", on: { click: () => this.app.open(turn.window) } }) : null,
        elsewhere && !known ? h("span", { class: "badge origin", text: turn.window_name ? `from “${turn.window_name}”` : "from a deleted window", title: "The window where this was said does not exist any more" }) : null,
        turn.cut ? h("span", { class: "badge", text: "cut off", title: "The program ended before this reply did. What was stored of it is here." }) : null);
    }
    return view;
  }

  /** @param {string} key @param {Gap} gap @param {string | null} after @param {string | null} before */
  #gap(key, gap, after, before) {
    let view = this.gaps.get(key);
    if (!view) this.gaps.set(key, (view = new GapView(this.app)));
    return view.adopt(gap, after, before).node;
  }

  // Controls of a chunk: one toolbar that goes where it is needed

  #toolbar() {
    const on = (/** @type {(chunk: LiveChunk) => void} */ act) => () => {
      const chunk = this.#chosen();
      if (chunk) act(chunk);
    };
    const { app } = this;
    this.pinButton = iconButton("pin", "Pin", on((chunk) => (chunk.pinned ? app.unpin(chunk.key) : app.pin(chunk.key))));
    this.mergeButton = iconButton("merge", "Merge into previous", on((chunk) => app.merge(chunk.key)), { hint: "Merge into previous (M)" });
    const bar = h(
      "div", { class: "tools", role: "toolbar", "aria-label": "Chunk" },
      this.pinButton, this.mergeButton,
      iconButton("sleep", "Put to sleep", on((chunk) => app.sleep(chunk.key)), { hint: "Put to sleep (S)" }),
      iconButton("copy", "Copy", on((chunk) => app.copy(chunk.pieces.join(""))), { hint: "Copy (C)" }),
      iconButton("why", "Why?", on((chunk) => app.why(chunk.key)), { hint: "Why? (W)" }),
      iconButton("delete", "Delete…", on((chunk) => app.delete(chunk.key)), { hint: "Delete… (Del)", class: "danger-hover" }),
    );
    bar.hidden = true;
    return bar;
  }

  /** @returns {LiveChunk | null} */
  #chosen() {
    const key = this.tools.closest("article")?.dataset.key;
    return key ? (this.app.store.live?.find(key) ?? null) : null;
  }

  /** @param {Element | null} node @param {boolean} [byHover] */
  #offer(node, byHover = false) {
    const article = /** @type {HTMLElement | null} */ (node?.closest?.("article.chunk:not(.draft)") ?? null);
    if (byHover && this.tools.querySelector(":focus-visible")) return; // the keyboard is at work in it
    if (!article) {
      if (!byHover || !this.place.querySelector("article:focus-visible")) this.tools.hidden = true;
      return;
    }
    if (this.tools.parentElement !== article) article.prepend(this.tools);
    this.tools.hidden = false;
    const chunk = this.#chosen();
    if (!chunk) return;
    const label = chunk.pinned ? "Unpin" : "Pin";
    this.pinButton?.setAttribute("aria-label", label);
    this.pinButton?.setAttribute("title", `${label} (P)`);
    this.pinButton?.classList.toggle("on", chunk.pinned);
    if (this.mergeButton) this.mergeButton.disabled = parts(chunk.key).chunk === "0" || !this.#previousOfTurn(chunk);
  }

  /** @param {LiveChunk} chunk */
  #previousOfTurn(chunk) {
    const all = this.app.store.live?.chunks ?? [];
    const before = all[all.findIndex((one) => one.key === chunk.key) - 1];
    return before?.turn.turn_id === chunk.turn.turn_id && !chunk.gap ? before : null;
  }

  #listen() {
    const { list, place } = this;
    list.addEventListener("pointerover", (event) => event.pointerType === "mouse" && this.#offer(/** @type {Element} */ (event.target), true));
    list.addEventListener("pointerleave", (event) => event.pointerType === "mouse" && this.#offer(null, true));
    list.addEventListener("focusin", (event) => {
      const article = /** @type {Element} */ (event.target).closest("article");
      this.#offer(article);
      if (!article || article.getAttribute("tabindex") === "0") return;
      for (const other of list.querySelectorAll("article[tabindex='0']")) other.setAttribute("tabindex", "-1");
      article.setAttribute("tabindex", "0");
    });
    list.addEventListener("focusout", (event) => !list.contains(/** @type {Node | null} */ (event.relatedTarget)) && this.#offer(null));
    list.addEventListener("keydown", (event) => this.#key(event));
    place.addEventListener("scroll", () => {
      const left = place.scrollHeight - place.scrollTop - place.clientHeight;
      this.#following = left < NEAR;
      this.jump.hidden = left < 2 * NEAR;
    }, { passive: true });
    new ResizeObserver(() => this.#following && this.toEnd()).observe(place);
  }

  /** @param {KeyboardEvent} event */
  #key(event) {
    const article = /** @type {HTMLElement} */ (event.target);
    if (!article.matches("article.chunk") || event.ctrlKey || event.metaKey || event.altKey) return;
    const chunk = this.app.store.live?.find(article.dataset.key ?? "");
    /** @type {Record<string, () => unknown>} */
    const keys = {
      ArrowDown: () => this.#step(article, 1), ArrowUp: () => this.#step(article, -1), j: () => this.#step(article, 1), k: () => this.#step(article, -1),
      Home: () => this.#step(article, -Infinity), End: () => this.#step(article, Infinity),
    };
    if (chunk) {
      Object.assign(keys, {
        p: () => (chunk.pinned ? this.app.unpin(chunk.key) : this.app.pin(chunk.key)),
        m: () => this.#previousOfTurn(chunk) && this.app.merge(chunk.key),
        s: () => this.app.sleep(chunk.key), c: () => this.app.copy(chunk.pieces.join("")),
        w: () => this.app.why(chunk.key), Delete: () => this.app.delete(chunk.key),
      });
    }
    const act = keys[event.key.length === 1 ? event.key.toLowerCase() : event.key];
    if (!act) return;
    event.preventDefault();
    act();
  }

  /** @param {HTMLElement} from @param {number} steps */
  #step(from, steps) {
    const all = /** @type {HTMLElement[]} */ ([...this.list.querySelectorAll("article.chunk")]);
    const at = Math.max(0, Math.min(all.length - 1, all.indexOf(from) + steps));
    all[at]?.focus();
  }

  /** @param {string} key @param {boolean} [glow] */
  goto(key, glow = false) {
    this.flush();
    const node = this.chunks.get(key)?.node;
    if (!node && glow) return;
    this.#following = false;
    if (!node) {
      this.#reveal(key);
      return;
    }
    node.scrollIntoView({ block: "center" });
    node.focus({ preventScroll: true });
    node.classList.remove("glow", "found");
    void node.offsetWidth; // the glow starts anew
    node.classList.add(glow ? "glow" : "found");
  }

  /** A chunk that sleeps is shown at its place; if it has none here, what is known of it is told. @param {string} key */
  async #reveal(key) {
    const { store } = this.app;
    const { current } = store;
    const { turn, chunk } = parts(key);
    const next = store.live?.chunks.find((one) => {
      const other = parts(one.key);
      return (compareIds(other.turn, turn) || compareIds(other.chunk, chunk)) > 0;
    });
    const there = await this.gaps.get(next?.key ?? "tail")?.reveal(key);
    if (!there && store.current === current) this.app.why(key);
  }

  toEnd() {
    this.#following = true;
    this.place.scrollTop = this.place.scrollHeight;
  }

  // When there is nothing to show

  #clear() {
    this.chunks.clear();
    this.turns.clear();
    this.gaps.clear();
    if (this.list.contains(document.activeElement)) this.place.focus({ preventScroll: true });
    this.list.replaceChildren();
    this.#following = true;
    this.#situation();
  }

  #situation() {
    const { store } = this.app;
    const model = store.status?.model;
    this.place.setAttribute("aria-busy", String(Boolean(store.current) && !store.live));
    if (store.connection.state === "locked") return this.#say("Locked", "The server wants its key.");
    if (!store.status && store.connection.state === "lost") return this.#say("The server cannot be reached", "Start it with “halo-weave serve”. This page connects by itself as soon as it answers.");
    if (!store.live && model?.state === "missing") return this.#say("There is no model yet", model.sentence || "Fetch one with “halo-weave pull”, or name one with “halo-weave serve --model your.gguf”.", "Try again", () => this.app.retryModel());
    if (!store.live && model?.state === "loading") return this.#say("The model is being loaded", loadingWords(model));
    if (!store.windowsKnown || (store.current && !store.live)) return this.#skeleton();
    if (!store.current) return this.#say("One conversation without an end", "Open a window and speak. What the model looks at stays bright; what it does not use falls asleep, and wakes up when you speak of it again.", "New window", () => this.app.newWindow());
    if (!store.live?.chunks.length && !store.live?.draft && !store.live?.tailGap) {
      const known = store.status?.memory.chunks ?? 0;
      return this.#say(
        "Nothing is live here yet",
        known ? `Say something. ${counted(known, "chunk")} in memory can wake up for it.` : "Say something. Everything you say is kept, nothing leaves this machine.",
      );
    }
    this.state.hidden = true;
  }

  /** @param {string} title @param {string} sentence @param {string} [label] @param {() => void} [act] */
  #say(title, sentence, label, act) {
    this.state.hidden = false;
    fill(this.state, h("div", { class: "empty" }, h("div", { class: "halo", "aria-hidden": "true" }), h("h2", { text: title }), h("p", { text: sentence }),
      label && act ? h("button", { type: "button", class: "button primary", text: label, on: { click: act } }) : null));
  }

  #skeleton() {
    this.state.hidden = false;
    fill(this.state, h("div", { class: "skeleton", role: "status" }, h("span", { class: "sr", text: "Loading the conversation…" }), ...[70, 92, 84, 40].map(() => h("div", { class: "bone" }))));
  }
}

/** @param {Status["model"]} model */
function loadingWords(model) {
  const share = typeof model.progress === "number" ? ` ${percent(model.progress)}` : "";
  return `${model.sentence || "This takes a moment."}${share}`;
}

/** Gives a place exactly these children; those that stay are not touched. @param {HTMLElement} place @param {Node[]} nodes */
function settle(place, nodes) {
  const staying = new Set(nodes);
  for (const node of [...place.childNodes]) if (!staying.has(node)) node.remove();
  let at = place.firstChild;
  for (const node of nodes) {
    if (at === node) at = at.nextSibling;
    else place.insertBefore(node, at);
  }
}
