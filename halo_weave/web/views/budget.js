// The budget bar: where the model's room goes, and the figures of this window.

import { fill, h } from "../dom.js";
import { counted, number, percent } from "../words.js";

export class BudgetView {
  /** @param {import("../app.js").App} app @param {HTMLElement} place */
  constructor(app, place) {
    this.app = app;
    this.bar = h("div", { class: "bar", role: "img" });
    this.mark = h("div", { class: "mark", hidden: true });
    this.figures = h("dl", { class: "figures" });
    place.append(h("div", { class: "bar-place" }, this.bar, this.mark), this.figures);
    /** @type {Map<string, HTMLElement>} */
    this.parts = new Map(["system", "pinned", "live", "turn", "frames", "reserve", "free"].map((name) => [name, h("span", { class: "part", data: { part: name } })]));
    fill(this.bar, [...this.parts.values()]);
    let soon = 0;
    const later = () => (soon ||= window.setTimeout(() => { soon = 0; this.show(); }, 200));
    for (const topic of ["budget", "turn", "window", "status"]) app.store.on(topic, () => this.show());
    for (const topic of ["token", "brightness", "live"]) app.store.on(topic, later);
    this.show();
  }

  show() {
    const { store } = this.app;
    const { budget, live } = store;
    this.bar.parentElement?.classList.toggle("unknown", !budget);
    if (!budget || !live) {
      fill(this.figures);
      if (!store.current) this.#empty();
      return;
    }
    const shares = shareOut(budget, live.tokens, unpinned(live.newest(store.current)), live.tokens - unpinned(live.all));
    const total = Math.max(1, Object.values(shares).reduce((sum, one) => sum + one, 0));
    for (const [name, tokens] of Object.entries(shares)) {
      const part = this.parts.get(name);
      if (!part) continue;
      part.style.flexGrow = String(tokens / total);
      part.title = `${NAMES[name]}: ${counted(tokens, "token")}`;
      part.hidden = !tokens;
    }
    const limit = budget.max_context_tokens;
    this.mark.hidden = !limit || limit >= total;
    this.mark.style.left = `${(100 * limit) / total}%`;
    this.mark.title = `The dimmest fall asleep above ${counted(limit, "token")}`;
    this.bar.setAttribute("aria-label", `Budget: ${Object.entries(shares).map(([name, tokens]) => `${NAMES[name]} ${number(tokens)}`).join(", ")} tokens`);
    const used = shares.system + shares.pinned + shares.live + shares.turn + shares.frames;
    const speed = store.turn.phase === "writing" && store.turn.tokens > 4 ? store.turn.tokens / Math.max(0.001, (Date.now() - store.turn.since) / 1000) : (store.turn.stats.tokens_per_second ?? store.stats?.tokens_per_second);
    const read = store.turn.stats.read;
    const reuse = read ? read.reused + read.restored > 0 || read.computed > 0 ? (read.reused + read.restored) / (read.reused + read.restored + read.computed) : null : store.stats?.kv_reuse;
    this.#figures([
      ["Tokens", limit ? `${number(used)} of ${number(limit)}` : number(used), "Live tokens with system prompt and frames, and the budget above which the dimmest fall asleep"],
      ["Brightness", live.high > live.low ? `${number(live.low)}–${number(live.high)}` : number(live.high), "Dimmest and brightest token"],
      ["Asleep", number(store.stats?.asleep_chunks), "Chunks of this window that sleep"],
      ["Woken", number(store.busy ? store.woken : store.stats?.woken_last_turn), "Chunks woken this turn"],
      ["KV reuse", percent(reuse), "How much of the prompt was in the model's cache already"],
      ["Speed", speed ? `${number(speed)} tok/s` : "–", "Tokens per second of the reply"],
    ]);
  }

  /** There is no window. */
  #empty() {
    this.mark.hidden = true;
    for (const part of this.parts.values()) part.hidden = true;
    this.bar.setAttribute("aria-label", "Budget: no window is open");
  }

  /** @param {[string, string, string][]} figures */
  #figures(figures) {
    if (this.figures.children.length !== figures.length) {
      fill(this.figures, figures.map(([name, , meaning]) => h("div", { title: meaning }, h("dt", { text: name }), h("dd", {}))));
    }
    figures.forEach(([, value], i) => {
      const dd = /** @type {HTMLElement} */ (this.figures.children[i].lastElementChild);
      if (dd.textContent !== value) dd.textContent = value;
    });
  }
}

/** @type {Record<string, string>} */
const NAMES = { system: "System prompt", pinned: "Pinned", live: "Live", turn: "This turn", frames: "Turn frames", reserve: "Reserve for the reply", free: "Free" };

/** @param {LiveChunk[]} chunks */
export function unpinned(chunks) {
  return chunks.reduce((sum, chunk) => sum + (chunk.pinned ? 0 : chunk.pieces.length), 0);
}

/**
 * What the server said of the budget, moved on by the tokens that came since.
 * Each token counts once: as pinned, else as of this turn, else as live.
 * @param {Budget} budget @param {number} live all live tokens now @param {number} turn those of this exchange that are not pinned @param {number} pinned
 */
export function shareOut(budget, live, turn, pinned) {
  const room = Math.max(budget.max_context_tokens, budget.system + budget.pinned + budget.live + budget.frames + budget.reserve + budget.free);
  const now = Math.min(turn, Math.max(0, live - pinned));
  const other = Math.max(0, live - pinned - now);
  const used = budget.system + budget.frames + pinned + other + now;
  const reserve = Math.max(0, Math.min(budget.reserve, room - used));
  return { system: budget.system, pinned, live: other, turn: now, frames: budget.frames, reserve, free: Math.max(0, room - used - reserve) };
}
