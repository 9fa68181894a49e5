// The left rail: all windows, and the way into the whole memory.

import { button, fill, h, icon, iconButton } from "../dom.js";
import { brief, clip, counted, number } from "../words.js";
import { showExport } from "./exporting.js";
import { modelNotes } from "./models.js";
import { showSharing } from "./people.js";
import { showNewWindow } from "./presets.js";
import { askTags } from "./tags.js";

const MANY = 6; // windows from which on they can be filtered
const ARCHIVED = "\0archived"; // chosen as if it were a tag
const MORE = "Pin, tags, sharing, archive, export";
const closeRail = () => document.body.classList.remove("rail-open");

export class WindowsView {
  /** @param {import("../app.js").App} app @param {HTMLElement} place @param {() => void} search */
  constructor(app, place, search) {
    this.app = app;
    this.list = h("ul", { class: "windows", "aria-label": "Windows" });
    const find = "Filter windows";
    this.filter = h("input", { type: "search", class: "field", placeholder: find, "aria-label": find, hidden: true });
    this.filter.addEventListener("input", () => this.show());
    this.tags = h("div", { class: "tags", role: "group", "aria-label": "Tags", hidden: true });
    this.foot = h("div", { class: "rail-foot" });
    const open = () => {
      closeRail();
      app.newWindow();
    };
    this.fresh = iconButton("plus", "New window", open, { text: true, class: "small" });
    const other = "Begin with a card or a preset";
    const ways = iconButton("more", other, () => showNewWindow(app), { class: "small" });
    const keys = navigator.platform.startsWith("Mac") ? "⌘K" : "Ctrl K";
    place.append(
      h("div", { class: "brand" }, h("span", { class: "halo small", "aria-hidden": "true" }),
        h("h1", { text: "Halo Weave" }),
        iconButton("close", "Close the list of windows", closeRail, { class: "rail-close" })),
      h("button", { type: "button", class: "search-open", on: { click: search } },
        icon("search"), h("span", { text: "Search memory" }), h("kbd", { text: keys })),
      h("div", { class: "rail-head" }, h("h2", { text: "Windows" }),
        h("div", { class: "rail-new" }, this.fresh, ways)),
      this.filter, this.tags, this.list, this.foot,
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
    const tag = this.#showTags();
    const fits = (/** @type {WindowInfo} */ one) =>
      (tag === ARCHIVED ? one.archived : !one.archived && (!tag || one.tags.includes(tag))) &&
      `${one.name} ${one.last_text} ${one.tags.join(" ")}`.toLowerCase().includes(wanted);
    const windows = store.windows.filter(fits)
      .sort((a, b) => Number(b.pinned) - Number(a.pinned) || (a.modified < b.modified ? 1 : -1));
    fill(this.list, windows.map((one) => this.#item(one)));
    if (store.windowsKnown && !windows.length) {
      const none = wanted || tag ? "No window fits this filter." : "No windows yet.";
      this.list.append(h("li", { class: "quiet pad", text: none }));
    }
    if (row && control >= 0) this.#focus(row.dataset.id ?? "", control);
  }

  /** The tags of all windows, and the way into the archive. @returns {string} the one that is chosen */
  #showTags() {
    const { store, preferences } = this.app;
    const open = store.windows.filter((one) => !one.archived);
    const names = [...new Set(open.flatMap((one) => one.tags))].sort((a, b) => a.localeCompare(b));
    const archived = store.windows.length - open.length;
    const all = archived ? [...names, ARCHIVED] : names;
    const chosen = all.includes(preferences.values.tag) ? preferences.values.tag : "";
    this.tags.hidden = !all.length;
    const state = JSON.stringify([all, chosen, archived]);
    if (this.tags.dataset.state === state) return chosen;
    this.tags.dataset.state = state;
    const focused = [...this.tags.children].findIndex((one) => one === document.activeElement);
    fill(this.tags, all.map((name) => {
      const click = () => {
        preferences.set("tag", name === chosen ? "" : name);
        this.show();
      };
      const text = name === ARCHIVED ? `Archived (${archived})` : name;
      const pressed = { "aria-pressed": String(name === chosen), on: { click } };
      return h("button", { type: "button", class: "tag", text, ...pressed });
    }));
    if (focused >= 0) /** @type {HTMLElement | undefined} */ (this.tags.children[focused])?.focus();
    return chosen;
  }

  /** What else can be done with a window. @param {WindowInfo} one */
  #more(one) {
    const { app } = this;
    const act = (/** @type {string} */ text, /** @type {() => unknown} */ what) => button(text, () => {
      close();
      what();
    });
    const archive = async () => {
      const changed = await app.changeWindow(one.id, { archived: !one.archived });
      if (!changed) return;
      const said = changed.archived ? `Archived “${clip(one.name, 48)}”. What was said in it stays in memory.`
        : `“${clip(one.name, 48)}” is back in the list.`;
      app.toasts.show(said, { label: "Undo", act: () => app.changeWindow(one.id, { archived: one.archived }) });
    };
    if (one.owner) return showExport(app, one); // the rest is for whoever it belongs to
    const { close } = app.dialogs.sheet(one.name, "small", h("div", { class: "acts" },
      act(one.pinned ? "Unpin" : "Pin to the top", () => app.changeWindow(one.id, { pinned: !one.pinned })),
      act("Tags…", () => this.#tag(one)),
      app.store.me?.multiple_people ? act("Share…", () => showSharing(app, one)) : null,
      act(one.archived ? "Back from the archive" : "Archive", archive),
      act("Export or copy…", () => showExport(app, one)),
      act("Rename…", () => app.renameWindow(one)),
      act("Delete…", () => app.deleteWindow(one))));
  }

  /** @param {WindowInfo} one */
  async #tag(one) {
    const tags = await askTags(this.app, `“${clip(one.name, 48)}”`, one.tags);
    if (tags) await this.app.changeWindow(one.id, { tags });
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
    const unready = embedder.state !== "ready" || embedder.pending;
    const focused = this.foot.contains(document.activeElement);
    fill(this.foot,
      h("button", { type: "button", class: "model", title: model.message, on: { click: openModels } },
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
    const counts = `${number(one.live_chunks)} live · ${number(one.pruned_chunks)} asleep`;
    return h("li", { class: current ? "current" : "", data: { id: one.id } },
      h("button", { type: "button", ...about },
        h("span", { class: "window-name" },
          one.pinned && h("span", { class: "window-pin" }, icon("pin"), h("span", { class: "sr", text: "pinned, " })),
          h("span", { class: "name-text", text: one.name }), one.generating && writing),
        one.owner && h("span", { class: "window-owner",
          text: `Shared with you by ${one.owner}${one.writable ? "" : ", to read"}` }),
        h("span", { class: "window-last", text: clip(one.last_text, 90) || "Nothing said yet" }),
        h("span", { class: "window-counts" }, counts,
          h("time", { datetime: one.modified, text: brief(one.modified) })),
        one.tags.length ? h("span", { class: "window-tags" },
          one.tags.map((tag) => h("span", { class: "window-tag", text: tag }))) : null),
      h("div", { class: "window-acts" },
        iconButton("more", `More about ${one.name}`, () => this.#more(one), { hint: one.owner ? "Export" : MORE }),
        !one.owner && iconButton("edit", `Rename ${one.name}`, () => app.renameWindow(one), { hint: "Rename" }),
        !one.owner && iconButton("delete", `Delete ${one.name}`, () => app.deleteWindow(one), remove)));
  }
}

/** @param {Status["embedder"]} embedder */
function embedderWords(embedder) {
  if (embedder.state === "loading") return embedder.message || "Search by meaning is being loaded…";
  if (embedder.state === "off") return embedder.message || "Search by words only: there is no embedding model.";
  return `${counted(embedder.pending, "chunk")} not yet searchable by meaning`;
}
