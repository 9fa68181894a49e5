// The budget bar: where the model's room goes, and the figures of this window.

import { fill, h } from "../dom.js";
import { counted, number, percent } from "../words.js";

/** @type {Record<string, string>} */
const PARTS = {
  system: "System prompt", pinned: "Pinned", live: "Live", turn: "This turn", frames: "Turn frames",
  reserve: "Reserve for the reply", free: "Free",
};
/** @type {Record<string, string>} */
const MEANINGS = {
  system: "what the model always reads", pinned: "never falls asleep",
  live: "the part of the conversation that the model sees",
  turn: "your last message and its reply", frames: "the model's own marks around each turn",
  reserve: "kept free for what the model writes", free: "what may still wake up or be said",
};
const USED = "Tokens that the model reads, with system prompt and frames; over the budget the dimmest fall asleep";
const ASLEEP = "Passages of this window that the model does not see now; they wake up when you speak of them";
const KV = "How much of the prompt the model had read before and did not have to read again";

export class BudgetView {
  #soon = 0;

  /** @param {import("../app.js").App} app @param {HTMLElement} place */
  constructor(app, place) {
    this.app = app;
    this.bar = h("div", { class: "bar", role: "img" });
    this.mark = h("div", { class: "mark", hidden: true });
    this.figures = h("dl", { class: "figures" });
    this.over = h("p", { class: "over", role: "status", hidden: true });
    this.words = h("p", { class: "quiet budget-words" });
    const more = h("details", { class: "budget-more" }, h("summary", { text: "Where the tokens go" }), this.words);
    place.append(h("div", { class: "bar-place" }, this.bar, this.mark), this.figures, this.over, more);
    /** @type {Map<string, HTMLElement>} */
    this.parts = new Map(Object.keys(PARTS).map((name) => [name, h("span", { class: "part", data: { part: name } })]));
    fill(this.bar, [...this.parts.values()]);
    for (const topic of ["budget", "turn", "window", "status"]) app.store.on(topic, () => this.show());
    for (const topic of ["token", "brightness", "live"]) app.store.on(topic, () => this.#showSoon());
    this.show();
  }

  #showSoon() {
    this.#soon ||= window.setTimeout(() => {
      this.#soon = 0;
      this.show();
    }, 200);
  }

  show() {
    const { budget, live, current } = this.app.store;
    this.bar.parentElement?.classList.toggle("unknown", !budget);
    if (!budget || !live) {
      fill(this.figures);
      if (!current) this.#empty();
      return;
    }
    const shares = shareOut(budget, live.tokens, unpinned(live.newest(current)), live.tokens - unpinned(live.all));
    this.#showShares(shares, budget.max_context_tokens);
    this.#showFigures(this.#figures(shares, budget.max_context_tokens));
  }

  /** @param {Record<string, number>} shares @param {number} limit */
  #showShares(shares, limit) {
    const total = Math.max(1, Object.values(shares).reduce((sum, one) => sum + one, 0));
    for (const [name, tokens] of Object.entries(shares)) {
      const part = this.parts.get(name);
      if (!part) continue;
      part.style.flexGrow = String(tokens / total);
      part.title = `${PARTS[name]}: ${counted(tokens, "token")}, ${MEANINGS[name]}`;
      part.hidden = !tokens;
    }
    this.mark.hidden = !limit || limit >= total;
    this.mark.style.left = `${(100 * limit) / total}%`;
    this.mark.title = `The dimmest fall asleep above ${counted(limit, "token")}`;
    const words = Object.entries(shares).map(([name, tokens]) => `${PARTS[name]} ${number(tokens)}`);
    this.bar.setAttribute("aria-label", `Budget: ${words.join(", ")} tokens`);
    const told = Object.entries(shares).filter(([, tokens]) => tokens);
    const sentences = told.map(([name, tokens]) => `${PARTS[name]} ${number(tokens)} (${MEANINGS[name]})`);
    const text = `${sentences.join("; ")}.`;
    if (this.words.textContent !== text) this.words.textContent = text;
    const over = shares.system + shares.pinned + shares.live + shares.turn + shares.frames - limit;
    this.over.hidden = !limit || over <= 0;
    const why = `${counted(over, "token")} over the limit. The least used passages go to sleep after the next reply.`;
    if (!this.over.hidden && this.over.textContent !== why) this.over.textContent = why;
  }

  /**
   * Each with its name and meaning.
   * @param {ReturnType<typeof shareOut>} shares @param {number} limit @returns {[string, string, string][]}
   */
  #figures(shares, limit) {
    const { turn, stats, busy } = this.app.store;
    const used = shares.system + shares.pinned + shares.live + shares.turn + shares.frames;
    const seconds = Math.max(0.001, (Date.now() - turn.since) / 1000);
    const writing = turn.phase === "writing" && turn.tokens > 4;
    const speed = writing ? turn.tokens / seconds : stats?.tokens_per_second;
    return [
      ["Tokens", limit ? `${number(used)} of ${number(limit)}` : number(used), USED],
      ["Asleep", number(stats?.pruned_chunks), ASLEEP],
      ["Woken", number(busy ? turn.resurrected : stats?.resurrected_last_turn),
        "Passages that came back for your last message"],
      ["KV reuse", percent(stats?.kv_reuse), KV],
      ["Speed", speed ? `${number(speed)} tok/s` : "–", "Tokens per second of the reply"],
    ];
  }

  /** @param {[string, string, string][]} figures */
  #showFigures(figures) {
    if (this.figures.children.length !== figures.length) {
      const nodes = figures.map(([name, , title]) => h("div", { title }, h("dt", { text: name }), h("dd", {})));
      fill(this.figures, nodes);
    }
    figures.forEach(([, value], i) => {
      const dd = /** @type {HTMLElement} */ (this.figures.children[i].lastElementChild);
      if (dd.textContent !== value) dd.textContent = value;
    });
  }

  /** There is no window. */
  #empty() {
    this.mark.hidden = true;
    for (const part of this.parts.values()) part.hidden = true;
    this.bar.setAttribute("aria-label", "Budget: no window is open");
  }
}

/** How many tokens are not pinned. @param {LiveChunk[]} chunks */
export function unpinned(chunks) {
  return chunks.reduce((sum, chunk) => sum + (chunk.pinned ? 0 : chunk.pieces.length), 0);
}

/**
 * What the server said of the budget, moved on by the tokens that came since.
 * Each token counts once: as pinned, else as of this turn, else as live.
 * @param {Budget} budget @param {number} live all live tokens now
 * @param {number} turn those of this exchange that are not pinned @param {number} pinned
 */
export function shareOut(budget, live, turn, pinned) {
  const { system, frames } = budget;
  const known = system + budget.pinned + budget.live + frames + budget.reserve + budget.free;
  const room = Math.max(budget.max_context_tokens, known);
  const now = Math.min(turn, Math.max(0, live - pinned));
  const other = Math.max(0, live - pinned - now);
  const used = system + frames + pinned + other + now;
  const reserve = Math.max(0, Math.min(budget.reserve, room - used));
  return { system, pinned, live: other, turn: now, frames, reserve, free: Math.max(0, room - used - reserve) };
}
