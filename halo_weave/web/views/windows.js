// The left rail: all windows, and the way into the whole memory.

import { fill, h, icon, iconButton } from "../dom.js";
import { brief, clip, counted, number } from "../words.js";

export class WindowsView {
  /** @param {import("../app.js").App} app @param {HTMLElement} place @param {() => void} search */
  constructor(app, place, search) {
    this.app = app;
    this.list = h("ul", { class: "windows", "aria-label": "Windows" });
    this.foot = h("div", { class: "rail-foot" });
    this.fresh = iconButton("plus", "New window", () => { document.body.classList.remove("rail-open"); app.newWindow(); }, { text: true, class: "small" });
    place.append(
      h("div", { class: "brand" }, h("span", { class: "halo small", "aria-hidden": "true" }), h("h1", { text: "Halo Weave" }),
        iconButton("close", "Close the list of windows", () => document.body.classList.remove("rail-open"), { class: "rail-close" })),
      h("button", { type: "button", class: "search-open", on: { click: search } }, icon("search"), h("span", { text: "Search memory" }), h("kbd", { text: navigator.platform.startsWith("Mac") ? "⌘K" : "Ctrl K" })),
      h("div", { class: "rail-head" }, h("h2", { text: "Windows" }), this.fresh),
      this.list, this.foot,
    );
    for (const topic of ["windows", "window", "status"]) app.store.on(topic, () => this.show());
    this.show();
  }

  show() {
    const { store } = this.app;
    const row = this.list.contains(document.activeElement) ? document.activeElement?.closest("li") : null;
    const control = row ? [...row.querySelectorAll("button")].findIndex((one) => one === document.activeElement) : -1;
    const windows = [...store.windows].sort((a, b) => (a.modified < b.modified ? 1 : -1));
    fill(this.list, windows.map((one) => this.#item(one)));
    if (row && control >= 0) this.#focus(row.dataset.id ?? "", control);
    if (store.windowsKnown && !windows.length) fill(this.list, h("li", { class: "quiet pad", text: "No windows yet." }));
    const { status } = store;
    fill(this.foot, status
      ? [h("p", { class: "model", title: status.model.sentence }, h("span", { class: `dot ${status.model.state}` }), clip(status.model.name || "No model", 40)),
        h("p", { class: "quiet", text: `${counted(status.memory.chunks, "chunk")}, ${counted(status.memory.tokens, "token")} in memory` }),
        status.embedder.state !== "ready" || status.embedder.wanted ? h("p", { class: "quiet", text: embedderWords(status.embedder) }) : null]
      : h("p", { class: "quiet", text: "Connecting…" }));
  }

  /** The same control of the same window; if that is gone, the window that is shown. @param {string} id @param {number} control */
  #focus(id, control) {
    const same = this.list.querySelector(`li[data-id="${CSS.escape(id)}"]`);
    const other = this.list.querySelector("li.current") ?? this.list.querySelector("li[data-id]");
    (same ? same.querySelectorAll("button")[control] : (other?.querySelector("button") ?? this.fresh)).focus({ preventScroll: Boolean(same) });
  }

  /** @param {WindowInfo} one */
  #item(one) {
    const { app } = this;
    const current = one.id === app.store.current;
    const open = h(
      "button", { type: "button", class: "window-open", "aria-current": current ? "true" : null, on: { click: () => { document.body.classList.remove("rail-open"); app.open(one.id); } } },
      h("span", { class: "window-name" }, h("span", { class: "name-text", text: one.name }), one.generating ? h("span", { class: "pulse", title: "Writing" }, h("span", { class: "sr", text: " writing" })) : null),
      h("span", { class: "window-last", text: clip(one.last_text ?? "", 90) || "Nothing said yet" }),
      h("span", { class: "window-counts" }, `${number(one.live_chunks)} live · ${number(one.asleep_chunks)} asleep`, h("time", { datetime: one.modified, text: brief(one.modified) })),
    );
    return h("li", { class: current ? "current" : "", data: { id: one.id } }, open,
      h("div", { class: "window-acts" },
        iconButton("edit", `Rename ${one.name}`, () => app.renameWindow(one), { hint: "Rename" }),
        iconButton("delete", `Delete ${one.name}`, () => app.deleteWindow(one), { hint: "Delete…", class: "danger-hover" })));
  }
}

/** @param {Status["embedder"]} embedder */
function embedderWords(embedder) {
  if (embedder.state === "loading") return embedder.sentence || "Search by meaning is being loaded…";
  if (embedder.state === "off") return embedder.sentence || "Search by words only: there is no embedding model.";
  return `${counted(embedder.wanted, "chunk")} not yet searchable by meaning`;
}
