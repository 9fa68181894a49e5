// One turn on the page: who spoke, when and where, its versions, its chunks, and what it was reminded of.

import { fill, h, icon, iconButton } from "../dom.js";
import { moment, speakerOf } from "../words.js";
import { MemoryChangesView } from "./memory-changes.js";
import { SourcesView } from "./sources.js";

const CUT = "The program ended during this reply. This is what was stored of it.";
const UNFINISHED = "The reply was cut off at its longest length.";

export class TurnView {
  #state = "";

  /** @param {import("../app.js").App} app @param {Turn} turn */
  constructor(app, turn) {
    this.app = app;
    this.turn = turn;
    this.name = h("div", { class: "turn-name" });
    this.head = h("header", { class: "turn-head" }, this.name);
    this.body = h("div", { class: "turn-body" });
    // A long file scrolls at its place, and does not stand in the way of the talk.
    const fold = { role: "group", tabindex: "0", "aria-label": `Text of ${turn.speaker}` };
    if (turn.document) for (const [name, value] of Object.entries(fold)) this.body.setAttribute(name, value);
    this.sources = new SourcesView(app);
    this.kept = new MemoryChangesView(app);
    const about = { class: `turn ${turn.document ? "document" : turn.role}`, data: { turn: turn.turn_id } };
    this.ending = h("span");
    this.further = h("p", { class: "unfinished writes", hidden: true }, this.ending,
      h("button", { type: "button", class: "button", text: "Continue", on: { click: () => app.continueReply() } }));
    this.node = h("section", about, this.head, this.body, this.further, this.kept.node, this.sources.node);
    this.show(turn);
  }

  /** @param {Turn} turn */
  show(turn) {
    this.turn = turn;
    this.sources.show(turn);
    this.kept.show(turn);
    const { store } = this.app;
    const speaker = speakerOf(turn);
    const elsewhere = turn.window !== "" && turn.window !== store.current;
    const known = store.windows.some((one) => one.id === turn.window);
    const { versions = 1, version = 1 } = turn;
    const broken = turn.unfinished || turn.interrupted;
    const goesOn = broken && !elsewhere && !store.busy && store.lastTurn === turn.turn_id;
    const state = JSON.stringify(
      [speaker, turn.said, elsewhere && turn.window_name, known, turn.interrupted, goesOn, versions, version,
        store.busy]);
    if (this.#state === state) return;
    this.#state = state;
    this.further.hidden = !goesOn;
    this.ending.textContent = turn.interrupted ? CUT : UNFINISHED;
    this.node.setAttribute("aria-label", `${speaker}, ${moment(turn.said)}`);
    const time = { datetime: turn.said, title: new Date(turn.said).toLocaleString(), text: moment(turn.said) };
    fill(this.name,
      turn.document && icon("document"), h("span", { class: "speaker", text: speaker }), h("time", time),
      turn.document && h("span", { class: "badge", text: "file" }),
      elsewhere && (known ? this.#wayTo(turn) : from(turn.window_name)),
      turn.interrupted && h("span", { class: "badge", text: "cut off", title: CUT }),
      !elsewhere && versions > 1 && store.writable && this.#versions(turn.turn_id, version, versions));
  }

  /** Leaf through the versions of a turn. @param {string} turnId @param {number} at @param {number} of */
  #versions(turnId, at, of) {
    const { app } = this;
    const leaf = (/** @type {number} */ to) => () => app.showVersion(turnId, to);
    const { busy } = app.store;
    return h("span", { class: "versions-line", role: "group", "aria-label": "Versions" },
      iconButton("back", "Previous version", leaf(at - 1), { class: "small", disabled: at < 2 || busy }),
      h("span", { text: `${at} of ${of}` }),
      iconButton("chevron", "Next version", leaf(at + 1), { class: "small", disabled: at >= of || busy }));
  }

  /** Where a chunk was said, if that is another window. @param {Turn} turn */
  #wayTo({ window, window_name }) {
    return h("button", {
      type: "button", class: "badge origin", text: `from “${window_name || "another window"}”`,
      title: "Open the window where this was said", on: { click: () => this.app.open(window) },
    });
  }
}

/** @param {string} name of a window that does not exist any more */
function from(name) {
  const text = name ? `from “${name}”` : "from a deleted window";
  return h("span", { class: "badge origin", text, title: "The window where this was said does not exist any more" });
}
