// The line at an answer that tells what the program saved or took out because the user asked for it, with a way back.

import { fill, h, icon, iconButton } from "../dom.js";
import { clip } from "../words.js";

/** @typedef {Wire.Events["memory_changed"] & {undone?: boolean}} MemoryChange */

export class MemoryChangesView {
  #shown = "";

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.node = h("div", { class: "kept" });
  }

  /** @param {Turn} turn */
  show({ turn_id }) {
    const kept = this.app.store.memoryChanges.get(turn_id) ?? [];
    const shown = JSON.stringify(kept);
    if (shown === this.#shown) return;
    this.#shown = shown;
    fill(this.node, kept.map((one) => h("p", {}, icon("remembered"),
      h("span", { text: words(one), title: one.path }),
      one.undone ? null : iconButton("back", "Undo", () => this.#undo(one), { text: true, class: "small writes" }))));
  }

  /** @param {MemoryChange} one */
  async #undo(one) {
    const { api } = this.app;
    const saved = one.change === "saved";
    const undo = async () => {
      if (saved) await api.deleteEntry(one.path, false);
      else await api.saveEntry(one.path, one.content);
      return true;
    };
    if (!(await this.app.attempt(undo))) return;
    one.undone = true;
    this.app.store.tell("live");
  }
}

/** @param {MemoryChange} one */
function words({ change, path, undone }) {
  const title = clip(path.split("/").at(-1) ?? path, 60);
  if (undone) return change === "saved" ? `Not saved: ${title}` : `Kept: ${title}`;
  return change === "saved" ? `Saved: ${title}` : `Forgotten: ${title}`;
}
