// Files that go with the next message: chosen by a button or dropped on the page, read by the server, counted here.

import { fill, h, icon, iconButton } from "../dom.js";
import { clip, counted, number } from "../words.js";

const MOST = 20;
const HINT = "Attach files: texts, PDF, DOCX. They can also be dropped on the page.";
const KINDS = ".txt,.md,.csv,.json,.log,.py,.js,.ts,.c,.h,.cpp,.rs,.go,.java,.html,.css,.xml,.yaml,.yml,.toml,.tex," +
  ".pdf,.docx,text/*";

/** @typedef {{name: string, file: Attached | null, reading: AbortController}} Attachment */

export class AttachmentsView {
  /** What is attached, by window. @type {Map<string, Attachment[]>} */
  #all = new Map();

  /** @param {import("../app.js").App} app @param {HTMLElement} box of the composer */
  constructor(app, box) {
    this.app = app;
    const on = { change: () => this.#chosen() };
    this.file = h("input", { type: "file", multiple: true, accept: KINDS, class: "sr", tabindex: "-1",
      "aria-label": "Files to attach", on });
    this.button = iconButton("attach", "Attach files", () => this.file.click(), { hint: HINT, class: "attach" });
    this.list = h("ul", { class: "attachments", "aria-label": "Attached files", hidden: true });
    this.total = h("p", { class: "attachments-total", role: "status", hidden: true });
    box.prepend(this.button);
    box.append(this.file);
    box.before(this.list, this.total);
    app.store.on("window", () => this.show());
    for (const topic of ["budget", "live"]) app.store.on(topic, () => this.#showTotal());
    this.#receive();
  }

  get #own() {
    const { current } = this.app.store;
    const own = this.#all.get(current) ?? [];
    this.#all.set(current, own);
    return own;
  }

  /** Whether one of them is still being read. */
  get reading() {
    return this.#own.some((one) => !one.file);
  }

  /** Takes what is attached, to be sent. @returns {Attached[]} */
  take() {
    const files = this.#own.flatMap((one) => one.file ?? []);
    this.#all.set(this.app.store.current, []);
    this.show();
    return files;
  }

  /** Attaches again what could not be sent. @param {string} window @param {Attached[]} files */
  giveBack(window, files) {
    const back = files.map((file) => ({ name: file.name, file, reading: new AbortController() }));
    this.#all.set(window, [...back, ...(this.#all.get(window) ?? [])]);
    this.show();
  }

  /** Files can be dropped anywhere on the page. */
  #receive() {
    const carries = (/** @type {DragEvent} */ event) => event.dataTransfer?.types.includes("Files") ?? false;
    let within = 0; // elements that the pointer has entered and not left
    const mark = () => document.body.classList.toggle("dropping", within > 0);
    addEventListener("dragenter", (event) => {
      if (!carries(event) || document.querySelector("dialog[open]")) return;
      within += 1;
      mark();
    });
    addEventListener("dragleave", (event) => {
      if (!carries(event)) return;
      within = Math.max(0, within - 1);
      mark();
    });
    addEventListener("dragover", (event) => carries(event) && event.preventDefault());
    addEventListener("drop", (event) => {
      if (!carries(event)) return;
      event.preventDefault(); // else the browser would open the file in place of the page
      within = 0;
      mark();
      if (!document.querySelector("dialog[open]")) this.add([...(event.dataTransfer?.files ?? [])]);
    });
  }

  #chosen() {
    const files = [...(this.file.files ?? [])];
    this.file.value = "";
    this.add(files);
    this.app.store.tell("compose");
  }

  /** Reads files. @param {File[]} files */
  async add(files) {
    const { app } = this;
    if (!app.store.current && !(await app.newWindow())) return;
    const { current } = app.store;
    const room = MOST - this.#own.length;
    if (files.length > room) {
      app.toasts.show(`A message can have ${MOST} files. Send the others with the next one.`, { kind: "bad" });
    }
    await Promise.all(files.slice(0, room).map((file) => this.#read(file, current)));
  }

  /** @param {File} file @param {string} window */
  async #read(file, window) {
    /** @type {Attachment} */
    const one = { name: file.name, file: null, reading: new AbortController() };
    this.#all.get(window)?.push(one);
    this.show();
    try {
      one.file = await this.app.api.readDocument(file, window, one.reading.signal);
    } catch (error) {
      this.#drop(one, window);
      const { name, message } = /** @type {Error} */ (error);
      if (name !== "AbortError") this.app.toasts.show(message, { kind: "bad", long: true });
    }
    this.show();
  }

  /** @param {Attachment} one @param {string} window */
  #drop(one, window) {
    this.#all.set(window, (this.#all.get(window) ?? []).filter((other) => other !== one));
  }

  show() {
    const own = this.#own;
    this.list.hidden = !own.length;
    fill(this.list, own.map((one) => this.#item(one)));
    this.#showTotal();
  }

  /** How much all of it takes, against what the window keeps live. */
  #showTotal() {
    const files = this.#own.flatMap((one) => one.file ?? []);
    const tokens = files.reduce((sum, one) => sum + one.tokens, 0);
    this.total.hidden = !files.length;
    if (!files.length) return;
    const { budget } = this.app.store;
    const live = budget?.max_context_tokens || budget?.model_context || 0;
    const room = budget ? budget.model_context - budget.reserve - budget.system - budget.pinned : 0;
    const whole = files.length > 1 ? `${files.length} files, ${counted(tokens, "token")}` : counted(tokens, "token");
    let words = `${whole} will be read before your words.`;
    if (room && tokens > room) {
      words = `${whole}: more than the model has room for (${number(room)}). It reads the beginning; ` +
        "the rest is asleep at first, and wakes up when you speak of it.";
    } else if (live && tokens > live) {
      words = `${whole} will be read whole for this answer. This window keeps ${number(live)} live: ` +
        "what does not fit falls asleep right after it.";
    }
    if (this.total.textContent !== words) this.total.textContent = words;
  }

  /** @param {Attachment} one */
  #item(one) {
    const { current } = this.app.store;
    const remove = () => {
      one.reading.abort();
      this.#drop(one, current);
      this.show();
      this.app.store.tell("compose");
    };
    const about = one.file ? counted(one.file.tokens, "token") : "Reading…";
    return h("li", { class: one.file ? "attachment" : "attachment reading" }, icon("document"),
      h("span", { class: "attachment-name", text: clip(one.file?.name ?? one.name, 60) }),
      h("span", { class: "quiet", text: about }),
      iconButton("close", `Remove ${one.name}`, remove, { class: "small", hint: "Remove" }));
  }
}
