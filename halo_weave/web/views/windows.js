// The left rail: all windows, and the way into the whole memory.

import { fill, h, icon, iconButton } from "../dom.js";
import { brief, clip, counted, number } from "../words.js";
import { modelNotes } from "./models.js";

const MANY = 6; // windows from which on they can be filtered
const closeRail = () => document.body.classList.remove("rail-open");

export class WindowsView {
  /** @param {import("../app.js").App} app @param {HTMLElement} place @param {() => void} search */
  constructor(app, place, search) {
    this.app = app;
    this.list = h("ul", { class: "windows", "aria-label": "Windows" });
    const find = "Filter windows";
    this.filter = h("input", { type: "search", class: "field", placeholder: find, "aria-label": find, hidden: true });
    this.filter.addEventListener("input", () => this.show());
    this.foot = h("div", { class: "rail-foot" });
    const open = () => {
      closeRail();
      app.newWindow();
    };
    this.fresh = iconButton("plus", "New window", open, { text: true, class: "small" });
    const keys = navigator.platform.startsWith("Mac") ? "⌘K" : "Ctrl K";
    place.append(
      h("div", { class: "brand" }, h("span", { class: "halo small", "aria-hidden": "true" }),
        h("h1", { text: "Halo Weave" }),
        iconButton("close", "Close the list of windows", closeRail, { class: "rail-close" })),
      h("button", { type: "button", class: "search-open", on: { click: search } },
        icon("search"), h("span", { text: "Search memory" }), h("kbd", { text: keys })),
      h("div", { class: "rail-head" }, h("h2", { text: "Windows" }), this.fresh),
      this.filter, this.list, this.foot,
    );
    for (const topic of ["windows", "window"]) app.store.on(topic, () => this.show());
    app.store.on("status", () => this.#showFoot());
    this.show();
    this.#showFoot();
  }

  show() {
    const { store } = this.app;
    const row = this.list.contains(document.activeElement) ? document.activeElement?.closest("li") : null;
    const control = row ? [...row.querySelectorAll("button")].findIndex((one) => one === document.activeElement) : -1;
    this.filter.hidden = store.windows.length < MANY && !this.filter.value;
    const wanted = this.filter.value.trim().toLowerCase();
    const fits = (/** @type {WindowInfo} */ one) => `${one.name} ${one.last_text}`.toLowerCase().includes(wanted);
    const windows = store.windows.filter(fits).sort((a, b) => (a.modified < b.modified ? 1 : -1));
    fill(this.list, windows.map((one) => this.#item(one)));
    if (store.windowsKnown && !windows.length) {
      const none = wanted ? "No window fits this filter." : "No windows yet.";
      this.list.append(h("li", { class: "quiet pad", text: none }));
    }
    if (row && control >= 0) this.#focus(row.dataset.id ?? "", control);
  }

  #showFoot() {
    const { status } = this.app.store;
    if (!status) return fill(this.foot, h("p", { class: "quiet", text: "Connecting…" }));
    const { model, memory, embedder } = status;
    const all = `${counted(memory.chunks, "chunk")}, ${counted(memory.tokens, "token")} in memory`;
    const openModels = () => {
      closeRail();
      this.app.store.tell("panel", "models");
    };
    const unready = embedder.state !== "ready" || embedder.wanted;
    const focused = this.foot.contains(document.activeElement);
    fill(this.foot,
      h("button", { type: "button", class: "model", title: model.sentence, on: { click: openModels } },
        h("span", { class: `dot ${model.state}` }), clip(model.name || "No model", 40),
        h("span", { class: "sr", text: ", choose another" })),
      modelNotes(model).map((text) => h("p", { class: "model-note", text })),
      h("p", { class: "quiet", text: all }),
      unready ? h("p", { class: "quiet", text: embedderWords(embedder) }) : null);
    if (focused) this.foot.querySelector("button")?.focus({ preventScroll: true });
  }

  /**
   * The same control of the same window; if that is gone, the window that is shown.
   * @param {string} id @param {number} control
   */
  #focus(id, control) {
    const same = this.list.querySelector(`li[data-id="${CSS.escape(id)}"]`);
    const other = this.list.querySelector("li.current") ?? this.list.querySelector("li[data-id]");
    const button = same ? same.querySelectorAll("button")[control] : (other?.querySelector("button") ?? this.fresh);
    button.focus({ preventScroll: Boolean(same) });
  }

  /** @param {WindowInfo} one */
  #item(one) {
    const { app } = this;
    const current = one.id === app.store.current;
    const click = () => {
      closeRail();
      app.open(one.id);
    };
    const about = { class: "window-open", "aria-current": current ? "true" : null, on: { click } };
    const writing = h("span", { class: "pulse", title: "Writing" }, h("span", { class: "sr", text: " writing" }));
    const remove = { hint: "Delete…", class: "danger-hover" };
    const counts = `${number(one.live_chunks)} live · ${number(one.asleep_chunks)} asleep`;
    return h("li", { class: current ? "current" : "", data: { id: one.id } },
      h("button", { type: "button", ...about },
        h("span", { class: "window-name" },
          h("span", { class: "name-text", text: one.name }), one.generating && writing),
        h("span", { class: "window-last", text: clip(one.last_text, 90) || "Nothing said yet" }),
        h("span", { class: "window-counts" }, counts,
          h("time", { datetime: one.modified, text: brief(one.modified) }))),
      h("div", { class: "window-acts" },
        iconButton("edit", `Rename ${one.name}`, () => app.renameWindow(one), { hint: "Rename" }),
        iconButton("delete", `Delete ${one.name}`, () => app.deleteWindow(one), remove)));
  }
}

/** @param {Status["embedder"]} embedder */
function embedderWords(embedder) {
  if (embedder.state === "loading") return embedder.sentence || "Search by meaning is being loaded…";
  if (embedder.state === "off") return embedder.sentence || "Search by words only: there is no embedding model.";
  return `${counted(embedder.wanted, "chunk")} not yet searchable by meaning`;
}
