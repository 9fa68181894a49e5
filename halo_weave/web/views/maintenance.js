// Memory as a whole: export, import, clear, and embedding anew, each with its numbers.

import { fill, h, iconButton } from "../dom.js";
import { counted, extent, size } from "../words.js";

const PHRASE = "delete everything";
const ANEW = "Search uses the existing embeddings until all new ones are ready.";

/** @typedef {{ name: string, title: string, about: string, used: boolean }} Embedder */

export class MaintenanceView {
  #timer = 0;
  /** The next look at how far an import is. */
  #reading = 0;
  /** Embedding was under way when it was last looked at. */
  #wasRunning = false;
  /** @type {Embedder[]} */
  #embedders = [];

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.numbers = h("p", { class: "quiet" });
    const label = "File to import";
    const on = { change: () => this.#import() };
    this.file = h("input", { type: "file", class: "sr", tabindex: "-1", "aria-label": label, on });
    this.only = h("input", { type: "checkbox" });
    this.embeddings = h("input", { type: "checkbox", set: { checked: true } });
    const forms = [["halo-weave", "Halo Weave's own"], ["markdown", "Markdown"], ["chatgpt", "ChatGPT's shape"]];
    this.format = h("select", { class: "field", id: "export-format", on: { change: () => this.#suit() } },
      forms.map(([value, text]) => h("option", { value, text })));
    this.words = h("p", { class: "quiet" });
    this.bar = h("progress", { max: "1" });
    this.progress = h("div", { class: "progress", hidden: true }, this.words, this.bar);
    this.meaning = h("div", {});
    this.choice = h("select", { class: "field", "aria-label": "Embedding model", on: { change: () => this.#about() } });
    this.about = h("p", { class: "quiet" });
    this.onlyLine = h("label", { class: "check" }, this.only, h("span", { text: "Only this window" }));
    this.node = h("section", { class: "group" }, h("h3", { text: "Memory as a whole" }), this.numbers,
      h("div", { class: "line" }, h("label", { for: "export-format", class: "label", text: "Export as" }), this.format),
      this.onlyLine,
      h("label", { class: "check" }, this.embeddings, h("span", { text: "With embeddings (larger, ready to search)" })),
      h("div", { class: "answers start" },
        iconButton("download", "Export", () => this.#export(), { text: true }),
        iconButton("upload", "Import…", () => this.file.click(), { text: true, class: "runs" }),
        iconButton("delete", "Clear…", () => this.#clear(), { text: true, class: "danger-hover runs" }), this.file),
      this.progress, h("h3", { text: "Search by meaning" }), this.meaning);
    app.store.on("status", () => this.show());
  }

  shown() {
    this.show();
    this.#watch();
    this.#load();
  }

  show() {
    const { status, current } = this.app.store;
    if (!status) return;
    const { memory, embedder } = status;
    this.onlyLine.hidden = !current;
    const deleted = memory.deleted ? `; ${counted(memory.deleted, "chunk")} deleted` : "";
    const windows = counted(memory.windows, "window");
    this.numbers.textContent = `${extent(memory)} in ${windows}, ${size(memory.bytes)} on disk${deleted}. `
      + idleWords(status.idle_reading);
    if (this.#timer) return; // how far embedding is stands there
    const ready = embedder.state === "ready" || this.#embedders.length > 0;
    fill(this.meaning, h("p", { class: "quiet", text: embedderWords(embedder) }),
      h("div", { class: "runs" }, this.#embedders.length > 0 && [this.choice, this.about],
        ready && iconButton("wake", "Embed everything again", () => this.#reindex(), { text: true, hint: ANEW })));
  }

  /** Which embedding models there are: those of the catalogue and of this machine, then some of the hub. */
  async #load() {
    const listed = this.app.store.guest ? null : await this.app.api.models().catch(() => null);
    if (!listed) return;
    const known = listed.models.filter((one) => one.kind === "embedder");
    this.#embedders = [
      ...known.map((one) => ({
        name: (one.source !== "catalogue" && one.path) || one.name, title: one.title, used: one.in_use,
        about: [one.where === "to pull" ? `${size(one.size)} to download` : "", one.note].filter(Boolean).join(". "),
      })),
      ...Object.entries(listed.embedders).filter(([name]) => !known.some((one) => one.name === name))
        .map(([name, about]) => ({ name, title: name, used: false, about: `From the hub. ${about}` })),
    ];
    const used = this.#embedders.find((one) => one.used);
    fill(this.choice, !used && h("option", { value: "", text: "As it is" }),
      this.#embedders.map((one) => h("option", {
        value: one.name, text: one.used ? `${one.title} (in use)` : one.title,
      })));
    this.choice.value = used?.name ?? "";
    this.#about();
    this.show();
  }

  #about() {
    this.about.textContent = this.#embedders.find((one) => one.name === this.choice.value)?.about ?? "";
  }

  #export() {
    const { store } = this.app;
    const window = this.only.checked && store.current ? store.current : undefined;
    const format = this.format.value;
    return this.app.download({ window, format, embeddings: format === "halo-weave" && this.embeddings.checked });
  }

  /** Markdown is for one window, embeddings for our own form. */
  #suit() {
    const markdown = this.format.value === "markdown";
    if (markdown) this.only.checked = true;
    this.only.disabled = markdown;
    this.embeddings.disabled = this.format.value !== "halo-weave";
  }

  async #import() {
    const file = this.file.files?.[0];
    if (!file) return;
    this.progress.hidden = false;
    this.words.textContent = `Sending ${file.name}, ${size(file.size)}…`;
    this.bar.value = 0;
    const brought = await this.app.attempt(() => this.app.api.import(file, (share) => {
      this.bar.value = share;
      if (share >= 1 && !this.#reading) this.#watchImport();
    }));
    clearTimeout(this.#reading);
    this.#reading = 0;
    this.progress.hidden = true;
    this.file.value = "";
    if (!brought) return;
    this.app.toasts.show(importedWords(brought), { long: true });
    await this.app.refresh();
    if (this.app.store.current) await this.app.reload();
    else await this.app.openNewest();
  }

  /** Shows how far the file is read into memory, after all of it was sent. */
  #watchImport() {
    this.words.textContent = "Reading it into memory…";
    this.bar.removeAttribute("value");
    this.#reading = window.setTimeout(async () => {
      const { done, total } = await this.app.api.importing().catch(() => ({ done: 0, total: 0 }));
      if (!this.#reading) return;
      this.#watchImport();
      if (total) this.bar.value = done / total;
    }, 700);
  }

  async #clear() {
    const memory = this.app.store.status?.memory;
    if (!memory) return;
    const all = `${extent(memory)} in ${counted(memory.windows, "window")}, with notes and structured memory`;
    const phrase = await this.app.dialogs.ask({
      title: "Clear the whole memory?",
      sentence: `Deletes ${all}. This cannot be undone; export first. Type “${PHRASE}” to go on.`,
      label: "Confirm", confirm: "Clear everything", exactly: PHRASE, danger: true,
    });
    if (phrase === null) return;
    await this.app.attempt(async () => {
      await this.app.api.clear(phrase);
      this.app.toasts.show("The memory is empty.");
      await this.app.refresh();
    });
  }

  async #reindex() {
    const chosen = this.#embedders.find((one) => one.name === this.choice.value);
    const other = chosen && !chosen.used ? chosen.name : "";
    const begun = await this.app.attempt(() => this.app.api.reindex(other));
    if (!begun) return;
    this.#wasRunning = true; // it may be over before the first look
    this.#watch();
  }

  /** Shows how far embedding has come, while it runs. */
  async #watch() {
    clearTimeout(this.#timer);
    this.#timer = 0;
    if (!this.node.isConnected || !this.app.store.status) return;
    let now;
    try {
      now = await this.app.api.reindexing();
    } catch {
      return;
    }
    const before = this.#wasRunning;
    this.#wasRunning = now.state === "running";
    if (now.state === "running") {
      this.#showRunning(now);
      this.#timer = window.setTimeout(() => this.#watch(), 700);
      return;
    }
    this.show();
    if (!before) return;
    const failed = now.state === "failed";
    this.app.toasts.show(failed ? now.message : "Everything was embedded again.", failed ? { kind: "bad" } : {});
    this.app.refresh();
    this.#load();
  }

  /** @param {Wire.Answers["GET /api/reindex"]} now */
  #showRunning({ message, model, done, total }) {
    const bar = h("progress", { max: Math.max(1, total), "aria-label": "Embedding" });
    bar.value = done;
    const by = model ? `Embedding with ${model}` : "Embedding";
    const text = message ? `${message}…` : `${by}: ${done} of ${counted(total, "chunk")}`;
    fill(this.meaning, h("p", { class: "quiet", role: "status", text }), bar);
  }
}

/** How much of the memory the model need not read when it is resurrected. @param {Status["idle_reading"]} reading */
function idleWords({ state, done, total }) {
  if (!total || ["off", "unavailable"].includes(state)) return "";
  /** @type {Record<string, string>} */
  const reasons = { "on battery": ", paused on battery", "disk full": ", as much as the disk cache may hold" };
  const why = reasons[state] ?? "";
  return `Read in idle time: ${Math.floor(100 * done / total)} %${why}.`;
}

/** @param {Status["embedder"]} embedder */
function embedderWords({ state, model, pending, message }) {
  if (state !== "ready") return message || "No embedding model: search goes by words.";
  const left = pending ? `${counted(pending, "chunk")} still to embed.` : "Everything is embedded.";
  return `${model}. ${left} ${message}`.trim();
}

/** @param {Wire.Answers["POST /api/import"]} brought */
function importedWords({ turns, chunks, tokens, windows, known_turns: known, program, left, ids }) {
  const came = [
    counted(turns, "turn"), counted(chunks, "chunk"), counted(tokens, "token"), counted(windows, "window"),
  ].join(", ");
  const here = known ? ` ${counted(known, "turn")} ${known === 1 ? "was" : "were"} here already.` : "";
  const reasons = Object.entries(left ?? {}).map(([reason, count]) => `${reason}: ${count}`);
  const rest = reasons.length ? ` Not taken: ${reasons.join("; ")}.` : "";
  const origin = program && program !== "Halo Weave" ? ` from ${program}` : "";
  return `Imported ${came}${origin}.${here}${rest}${ids ? ` ${ids}` : ""}`;
}
