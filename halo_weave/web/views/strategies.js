// Captures of a window, and strategies side by side on one: what each would have put to sleep, and how far they agree.

import { fill, h, iconButton, onSubmit } from "../dom.js";
import { counted, label, number, percent } from "../words.js";

const ABOUT = "While it is on, the model's attention is written to your data folder with every turn, so that other " +
  "strategies and budgets can be tried on it. It costs some speed. A capture is deleted with its window.";
const NOTHING = "There is nothing to compare until a turn is captured.";
/** @type {Record<string, string>} */
const CHOICES = {
  off: "Off", mean: "The mean of all heads", retrieval: "Also each retrieval head", all: "Every head (large)",
};
/** @type {[keyof Outcome, string, string][]} */
const COLUMNS = [
  ["pruned", "Asleep", "Chunks that fell asleep"], ["resurrected", "Woke", "Chunks that woke up again"],
  ["live", "Live", "Chunks that are live at the end"],
  ["median_age", "Age", "Median age of what fell asleep, in turns"],
];

/** @typedef {Wire.Answers["GET /api/windows/{window_id}/compare"]} Comparison */
/** @typedef {Comparison["strategies"][string]} Outcome */

export class StrategiesView {
  #asked = 0;

  /**
   * @param {import("../app.js").App} app
   * @param {(strategy: string, query: Record<string, string | number | null>) => void} watch
   */
  constructor(app, watch) {
    this.app = app;
    this.watch = watch;
    this.capture = h("select", { class: "field owns", "aria-label": "Capture this window", on: {
      change: () => this.#setCapture(),
    } });
    this.captured = h("p", { class: "quiet", role: "status" });
    this.which = h("select", { class: "field", "aria-label": "Capture" });
    this.budget = h("input", {
      type: "number", class: "field", min: 0, max: 1_000_000, placeholder: "as captured",
      "aria-label": "Budget in tokens",
    });
    this.strategies = h("fieldset", { class: "strategies" });
    this.compare = h("button", { type: "submit", class: "button", text: "Compare" });
    this.form = h("form", { class: "stack", hidden: true, on: onSubmit(() => this.look()) },
      this.strategies,
      h("label", { class: "line" }, h("span", { class: "label", text: "Capture" }), this.which),
      h("label", { class: "line" }, h("span", { class: "label", text: "Budget in tokens" }), this.budget),
      h("div", { class: "answers start" }, this.compare));
    this.result = h("div", { class: "comparison", role: "status" });
    this.node = h("div", {},
      h("section", { class: "group" }, h("h3", { text: "Capture" }),
        h("p", { class: "quiet", text: ABOUT }), this.capture, this.captured),
      h("section", { class: "group" }, h("h3", { text: "Strategies compared" }), this.form, this.result));
  }

  /** Brings the choices up to the window. */
  async load() {
    const { api, store } = this.app;
    const { current, settings } = store;
    const described = (/** @type {string} */ name) =>
      settings?.described.find((one) => one.name === name)?.choices ?? [];
    const own = String(store.window?.effective.capture ?? "off");
    fill(this.capture, described("capture").map((value) =>
      h("option", { value, text: CHOICES[value] ?? value, set: { selected: value === own } })));
    if (!this.strategies.children.length) {
      fill(this.strategies, h("legend", { class: "label", text: "Strategies" }), described("strategy").map((value) =>
        h("label", { class: "check" }, h("input", { type: "checkbox", value, set: { checked: true } }),
          h("span", { text: label(value) }))));
    }
    const mine = ++this.#asked;
    const found = current ? await this.app.attempt(() => api.captures(current)) : undefined;
    if (mine !== this.#asked || current !== store.current) return;
    const captures = found?.captures ?? [];
    const last = captures.at(-1);
    this.captured.textContent = last
      ? `Captured: ${counted(last.turns, "turn")}, ${last.megabytes} MB, with ${last.model}.`
      : "Nothing of this window was captured yet.";
    this.form.hidden = !last;
    if (!last) fill(this.result, h("p", { class: "quiet", text: NOTHING }));
    else if (!this.result.querySelector("table")) fill(this.result);
    fill(this.which, captures.map((one) => h("option", {
      value: one.name, text: `${one.name}: ${counted(one.turns, "turn")}`, set: { selected: one === last },
    })));
  }

  async #setCapture() {
    const value = this.capture.value;
    await this.app.attempt(() => this.app.setSetting("window", "capture", value));
    await this.load();
  }

  get #query() {
    return { budget: this.budget.value ? Number(this.budget.value) : null, name: this.which.value };
  }

  async look() {
    const chosen = [...this.strategies.querySelectorAll("input")].filter((one) => one.checked).map((one) => one.value);
    if (!chosen.length) return fill(this.result, h("p", { class: "problem", text: "Tick at least one strategy." }));
    const { api, store } = this.app;
    const { current } = store;
    const query = this.#query;
    this.compare.disabled = true;
    fill(this.result, h("p", { class: "quiet", text: "Replaying…" }));
    const told = await this.app.attempt(() => api.compare(current, { strategies: chosen.join(","), ...query }));
    this.compare.disabled = false;
    if (current !== store.current) return;
    if (told) this.#show(told, query);
    else fill(this.result);
  }

  /** @param {Comparison} told @param {{budget: number | null, name: string}} query */
  #show({ strategies, agreement }, query) {
    const head = h("tr", {}, h("th", { scope: "col", text: "Strategy" }),
      COLUMNS.map(([, text, title]) => h("th", { scope: "col", text, title })), h("th", { scope: "col" },
        h("span", { class: "sr", text: "Watch" })));
    const rows = Object.entries(strategies).map(([name, one]) => h("tr", {},
      h("th", { scope: "row", text: label(name) }),
      COLUMNS.map(([column]) => h("td", { text: one[column] === null ? "–" : number(one[column]) })),
      h("td", {}, iconButton("further", `Watch ${label(name)}`, () => this.watch(name, query), { class: "small" }))));
    const pairs = Object.entries(agreement).sort(([, a], [, b]) => a - b);
    fill(this.result,
      h("div", { class: "table-place", tabindex: "0", role: "group", "aria-label": "Outcome by strategy" },
        h("table", { class: "outcomes" }, h("thead", {}, head), h("tbody", {}, rows))),
      pairs.length ? h("details", {},
        h("summary", { text: `How far they agree on what stays live: ${percent(pairs[0][1])} to ` +
          `${percent(pairs[pairs.length - 1][1])}` }),
        h("dl", { class: "facts" }, pairs.map(([names, share]) => h("div", {},
          h("dt", { text: names.split(", ").map(label).join(", ") }), h("dd", { text: percent(share) }))))) : null);
  }
}
