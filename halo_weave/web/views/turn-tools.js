// What can be done with a whole turn: one toolbar that goes into the head of the turn under the pointer or the focus.

import { h, iconButton } from "../dom.js";

const WRITES = { class: "writes" }; // not for someone who may only read

export class TurnTools {
  #turn = "";

  /**
   * @param {import("../app.js").App} app @param {HTMLElement} list
   * @param {(turnId: string) => Turn | undefined} find a turn of this window that is shown
   */
  constructor(app, list, find) {
    this.app = app;
    this.list = list;
    this.find = find;
    const act = (/** @type {(turnId: string) => unknown} */ what) => () => what(this.#turn);
    this.again = iconButton("again", "Answer again", act((turn) => app.regenerate(turn)), WRITES);
    this.answer = iconButton("send", "Answer this", act((turn) => app.regenerate(turn)), WRITES);
    this.further = iconButton("further", "Continue", act(() => app.continueReply()), WRITES);
    this.edit = iconButton("edit", "Edit", act((turn) => app.editTurn(turn)), WRITES);
    const branch = "Branch off: a new window from here";
    this.branch = iconButton("branch", branch, act((turn) => app.branchOff(turn)), { class: "owns" });
    this.copy = iconButton("copy", "Copy this turn", act((turn) => app.copyTurn(turn)));
    this.bar = h("div", { class: "turn-tools", role: "toolbar", "aria-label": "Turn", hidden: true },
      this.again, this.answer, this.further, this.edit, this.branch, this.copy);
    list.addEventListener("pointerover", (event) => {
      // A finger comes with its tap, and nothing may move under it before.
      if (event.pointerType === "mouse") this.#offer(/** @type {Element} */ (event.target));
    });
    list.addEventListener("click", (event) => this.#offer(/** @type {Element} */ (event.target)));
    list.addEventListener("focusin", (event) => {
      const node = /** @type {Element} */ (event.target);
      if (node.matches(":focus-visible")) this.#offer(node);
    });
    for (const topic of ["turn", "live"]) app.store.on(topic, () => this.#suit());
  }

  /** @param {Element} target */
  #offer(target) {
    const section = /** @type {HTMLElement | null} */ (target.closest("section.turn"));
    if (!section || (section.contains(this.bar) && !this.bar.hidden)) return;
    this.#turn = section.dataset.turn ?? "";
    section.querySelector(".turn-head")?.append(this.bar);
    this.#suit();
  }

  /** Shows what fits the turn. */
  #suit() {
    const turn = this.find(this.#turn);
    const { store } = this.app;
    this.bar.hidden = !turn || store.busy || turn.role === "system";
    if (!turn || this.bar.hidden) return;
    const last = this.list.querySelector("section.turn:last-of-type") === this.bar.closest("section");
    this.again.hidden = turn.role !== "assistant";
    // An unfinished reply has a button of its own below it.
    this.further.hidden = turn.role !== "assistant" || !last || turn.unfinished || turn.interrupted;
    this.answer.hidden = turn.role !== "user" || turn.document || !last;
    this.edit.hidden = turn.document; // it is a file
  }
}
