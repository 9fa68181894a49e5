// Keeping: export, import, clear, and a better embedding model, each with its numbers.

import { fill, h, iconButton } from "../dom.js";
import { counted, extent, size } from "../words.js";

const PHRASE = "delete everything";

export class KeepingView {
  #timer = 0;
  wasRunning = false;

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.numbers = h("p", { class: "quiet" });
    this.file = h("input", { type: "file", class: "sr", tabindex: "-1", "aria-label": "File to import", on: { change: () => this.#import() } });
    this.only = h("input", { type: "checkbox" });
    this.embeddings = h("input", { type: "checkbox", set: { checked: true } });
    this.progress = h("div", { class: "progress", hidden: true }, h("p", { class: "quiet" }), h("progress", { max: "1" }));
    this.meaning = h("div", {});
    this.node = h("section", { class: "group" }, h("h3", { text: "Memory as a whole" }), this.numbers,
      h("label", { class: "check" }, this.only, h("span", { text: "Only this window" })),
      h("label", { class: "check" }, this.embeddings, h("span", { text: "With embeddings (larger, ready to search)" })),
      h("div", { class: "answers start" },
        iconButton("download", "Export", () => this.#export(), { text: true }),
        iconButton("upload", "Import…", () => this.file.click(), { text: true }),
        iconButton("delete", "Clear…", () => this.#clear(), { text: true, class: "danger-hover" }), this.file),
      this.progress, h("h3", { text: "Search by meaning" }), this.meaning);
    app.store.on("status", () => this.show());
  }

  shown() {
    this.show();
    this.#watch();
  }

  show() {
    const { status, current } = this.app.store;
    if (!status) return;
    const { memory, embedder } = status;
    /** @type {HTMLElement} */ (this.only.parentElement).hidden = !current;
    this.numbers.textContent = `${extent(memory)} in ${counted(memory.windows, "window")}, ${size(memory.bytes)} on disk${memory.deleted ? `; ${counted(memory.deleted, "chunk")} deleted` : ""}.`;
    if (!this.#timer) {
      fill(this.meaning, h("p", { class: "quiet", text: embedder.state === "ready" ? `${embedder.model}. ${embedder.wanted ? `${counted(embedder.wanted, "chunk")} still to embed.` : "Everything is embedded."}` : embedder.sentence || "No embedding model: search goes by words." }),
        embedder.state === "ready" ? iconButton("wake", "Embed everything anew", () => this.#reindex(), { text: true, hint: "After changing the embedding model. Search goes on with the old one until it is done." }) : null);
    }
  }

  async #export() {
    const { api, store, preferences } = this.app;
    const address = api.exportAddress({ window: this.only.checked && store.current ? store.current : undefined, embeddings: this.embeddings.checked });
    // A link cannot carry the key; a cookie of this session can.
    if (preferences.key && !(await this.app.attempt(() => api.request("POST", "/api/session")))) return;
    const link = h("a", { href: address, download: "" });
    document.body.append(link);
    link.click();
    link.remove();
  }

  async #import() {
    const file = this.file.files?.[0];
    if (!file) return;
    const [words, bar] = /** @type {[HTMLElement, HTMLProgressElement]} */ ([...this.progress.children]);
    this.progress.hidden = false;
    words.textContent = `Sending ${file.name}, ${size(file.size)}…`;
    bar.value = 0;
    const brought = await this.app.attempt(() => this.app.api.import(file, (share) => {
      bar.value = share;
      if (share >= 1) words.textContent = "Reading it into memory…";
    }));
    this.progress.hidden = true;
    this.file.value = "";
    if (!brought) return;
    const known = brought.known_turns ? ` ${counted(brought.known_turns, "turn")} ${brought.known_turns === 1 ? "was" : "were"} here already.` : "";
    this.app.toasts.show(`Imported ${counted(brought.turns, "turn")}, ${counted(brought.chunks, "chunk")}, ${counted(brought.tokens, "token")}, ${counted(brought.windows, "window")}.${known}`, { long: true });
    await this.app.refresh();
    if (this.app.store.current) await this.app.reload();
    else await this.app.openNewest();
  }

  async #clear() {
    const memory = this.app.store.status?.memory;
    if (!memory) return;
    const phrase = await this.app.dialogs.ask({
      title: "Clear the whole memory?",
      sentence: `Deletes ${extent(memory)} in ${counted(memory.windows, "window")}, with notes and structured memory. This cannot be undone; export first. Type “${PHRASE}” to go on.`,
      label: "Confirm", confirm: "Clear everything", exactly: PHRASE, danger: true,
    });
    if (phrase === null) return;
    await this.app.attempt(async () => {
      await this.app.api.clear(phrase);
      this.app.toasts.show("The memory is empty.");
      await this.app.refresh();
      this.app.store.setSettings(await this.app.api.settings()); // they went too
    });
  }

  async #reindex() {
    const begun = await this.app.attempt(() => this.app.api.reindex());
    if (!begun) return;
    this.wasRunning = true; // it may be over before the first look
    this.#watch();
  }

  /** Shows how far embedding has come, while it runs. */
  async #watch() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    if (!this.node.isConnected || !this.app.store.status) return;
    let state;
    try {
      state = await this.app.api.reindexing();
    } catch {
      return;
    }
    if (state.state !== "running") {
      if (this.wasRunning) {
        this.app.toasts.show(state.state === "failed" ? state.sentence : "Everything is embedded anew.", state.state === "failed" ? { kind: "bad" } : {});
        this.app.refresh();
      }
      this.wasRunning = false;
      this.show();
      return;
    }
    this.wasRunning = true;
    const bar = h("progress", { max: Math.max(1, state.total), "aria-label": "Embedding" });
    bar.value = state.done;
    fill(this.meaning, h("p", { class: "quiet", role: "status", text: state.sentence || `Embedding with ${state.model}: ${state.done} of ${counted(state.total, "chunk")}` }), bar);
    this.#timer = window.setTimeout(() => this.#watch(), 700);
  }
}
