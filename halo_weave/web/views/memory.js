// The structured memory: a tree that the model and the user keep together. Read, edit, delete, look back, bring in.

import { fill, h, icon, iconButton } from "../dom.js";
import { clip, counted, moment, percent, similarity } from "../words.js";
import { JsonField } from "./json-field.js";

/** @typedef {{heading: string, path: string, version: number | null, modified: string | null, children: Branch[]}} Branch */
/** @typedef {{path: string, content: any, snapshot: {key: string | null, text: string, tokens: number, similarity: number}[], created: string, modified: string, accessed: string, version: number, ended: string | null}} Entry */

export class MemoryView {
  title = "Memory";
  /** @type {Set<string>} */
  #open = new Set();
  /** Headings of the first level are open unless they were closed. @type {Set<string>} */
  #closed = new Set();
  #path = "";
  #stale = true;
  #loading = false;
  /** Counts what was put below the tree: an answer that comes late does not replace what came after. */
  #shown = 0;

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.query = h("input", { type: "search", class: "field", placeholder: "Ask this memory", "aria-label": "Ask this memory" });
    this.form = h("form", { class: "filters", on: { submit: (/** @type {Event} */ event) => { event.preventDefault(); this.#ask(); } } }, this.query,
      iconButton("plus", "New entry", () => this.#edit(null), { text: true, class: "small" }));
    this.tree = h("div", { class: "tree" });
    this.detail = h("div", { class: "entry" });
    this.node = h("div", { class: "drawer-body" }, h("p", { class: "quiet", text: "What the model keeps for itself, under headings. You can read and change all of it." }), this.form, this.tree, this.detail);
    this.query.addEventListener("search", () => !this.query.value && this.load());
    app.store.on("done", () => this.node.isConnected && this.load());
    for (const topic of ["connection", "status"]) app.store.on(topic, () => this.node.isConnected && this.#stale && !this.#loading && app.reachable && this.load());
  }

  shown() {
    this.#stale = true;
    this.load();
  }

  async load() {
    this.#loading = true;
    const root = /** @type {Branch | undefined} */ (await this.app.attempt(() => this.app.api.memory()));
    this.#loading = false;
    if (!root) return;
    this.#stale = false;
    const focused = this.tree.contains(document.activeElement) ? /** @type {HTMLElement} */ (document.activeElement).dataset.path : undefined;
    if (!root.children.length) fill(this.tree, h("p", { class: "quiet pad", text: "Nothing is kept yet. The model saves what it wants to remember; you can add an entry too." }));
    else fill(this.tree, h("ul", { role: "tree", "aria-label": "Structured memory" }, root.children.map((child) => this.#branch(child, 1))));
    this.#roving();
    if (focused !== undefined) this.#focus(focused);
  }

  /** The row of an entry; if it is not to be seen, the next best place. @param {string} path */
  #focus(path) {
    const rows = /** @type {HTMLElement[]} */ ([...this.tree.querySelectorAll(".branch")]).filter((row) => row.offsetParent);
    (rows.find((row) => row.dataset.path === path) ?? rows.find((row) => row.tabIndex === 0) ?? this.query).focus();
  }

  /** @param {Branch} branch @param {number} level @returns {HTMLElement} */
  #branch(branch, level) {
    const open = level === 1 ? !this.#closed.has(branch.path) : this.#open.has(branch.path);
    const leaf = !branch.children.length;
    const item = h("li", { role: "none" });
    const row = h(
      "div", { class: `branch ${branch.path === this.#path ? "chosen" : ""} ${branch.version === null ? "bare-heading" : ""}`, role: "treeitem", tabindex: "-1", "aria-level": level, "aria-expanded": leaf ? null : String(open), "aria-selected": String(branch.path === this.#path), data: { path: branch.path } },
      leaf ? h("span", { class: "leaf", "aria-hidden": "true" }) : icon("chevron"),
      h("span", { class: "heading", text: branch.heading }),
      branch.version !== null && branch.version > 1 ? h("span", { class: "badge", text: `v${branch.version}` }) : null,
      !leaf ? h("span", { class: "quiet", text: String(branch.children.length) }) : null,
    );
    row.style.paddingInlineStart = `${0.4 + (level - 1) * 1.1}rem`;
    const children = leaf ? null : h("ul", { role: "group", hidden: !open }, branch.children.map((child) => this.#branch(child, level + 1)));
    const toggle = (/** @type {boolean} */ to) => {
      if (!children) return;
      children.hidden = !to;
      row.setAttribute("aria-expanded", String(to));
      this.#open[to ? "add" : "delete"](branch.path);
      this.#closed[to ? "delete" : "add"](branch.path);
    };
    const choose = () => {
      if (branch.version !== null) this.show(branch.path);
      else toggle(Boolean(children?.hidden));
    };
    row.addEventListener("click", (event) => {
      if (children && /** @type {Element} */ (event.target).closest("svg")) toggle(children.hidden);
      else {
        choose();
        if (children && branch.version !== null) toggle(true);
      }
    });
    row.addEventListener("keydown", (event) => {
      const act = { Enter: choose, " ": choose, ArrowRight: () => toggle(true), ArrowLeft: () => toggle(false), ArrowDown: () => this.#step(row, 1), ArrowUp: () => this.#step(row, -1), Delete: () => branch.version !== null && this.#delete(branch.path) }[event.key];
      if (!act) return;
      event.preventDefault();
      act();
    });
    item.append(row, ...(children ? [children] : []));
    return item;
  }

  #roving() {
    const rows = /** @type {HTMLElement[]} */ ([...this.tree.querySelectorAll(".branch")]);
    (rows.find((row) => row.dataset.path === this.#path) ?? rows[0])?.setAttribute("tabindex", "0");
  }

  /** @param {HTMLElement} from @param {number} steps */
  #step(from, steps) {
    const rows = /** @type {HTMLElement[]} */ ([...this.tree.querySelectorAll(".branch")]).filter((row) => row.offsetParent);
    const to = rows[rows.indexOf(from) + steps];
    if (!to) return;
    from.setAttribute("tabindex", "-1");
    to.setAttribute("tabindex", "0");
    to.focus();
  }

  /** @param {string} path */
  async show(path) {
    const mine = ++this.#shown;
    const entry = /** @type {Entry | undefined} */ (await this.app.attempt(() => this.app.api.entry(path)));
    if (!entry || mine !== this.#shown) return;
    this.#path = path;
    for (const row of this.tree.querySelectorAll(".branch")) {
      const chosen = /** @type {HTMLElement} */ (row).dataset.path === path;
      row.classList.toggle("chosen", chosen);
      row.setAttribute("aria-selected", String(chosen));
    }
    const snapshot = entry.snapshot.reduce((sum, one) => sum + one.tokens, 0);
    fill(this.detail,
      h("h3", { class: "path", text: path }),
      h("p", { class: "quiet", text: `Version ${entry.version} · changed ${moment(entry.modified)} · read ${moment(entry.accessed)}` }),
      h("pre", { class: "json", text: JSON.stringify(entry.content, null, 2) }),
      h("div", { class: "answers start" },
        iconButton("edit", "Edit", () => this.#edit(entry), { text: true, class: "small" }),
        iconButton("wake", "Bring into this window", () => this.#inject(path), { text: true, class: "small", disabled: !this.app.store.current }),
        iconButton("undo", "History", () => this.#history(path), { text: true, class: "small" }),
        iconButton("delete", "Delete…", () => this.#delete(path), { text: true, class: "small danger-hover" })),
      entry.snapshot.length ? h("details", { class: "snapshot" }, h("summary", { text: `Kept with ${counted(entry.snapshot.length, "chunk")}, ${counted(snapshot, "token")}` }),
        entry.snapshot.map((one) => h("blockquote", {}, h("span", { class: "quiet", text: `${counted(one.tokens, "token")} · ${similarity(one.similarity)}` }), h("p", { text: one.text })))) : null);
  }

  /** @param {Entry | null} entry null: a new one */
  #edit(entry) {
    const mine = ++this.#shown;
    const path = h("input", { class: "field", placeholder: "People/Mochi", spellcheck: "false", set: { value: entry?.path ?? "", readOnly: Boolean(entry) } });
    const field = new JsonField("Content", entry ? entry.content : {});
    const save = h("button", { type: "submit", class: "button primary", text: "Save" });
    fill(this.detail, h("form", { class: "stack", on: { submit: async (/** @type {Event} */ event) => {
      event.preventDefault();
      if (save.disabled) return;
      if (!field.valid) return field.input.focus();
      const at = path.value.trim();
      const saving = (/** @type {boolean} */ now) => {
        save.disabled = field.input.readOnly = now;
        path.readOnly = now || Boolean(entry);
      };
      saving(true);
      const saved = await this.app.attempt(() => this.app.api.saveEntry(at, field.value));
      saving(false);
      if (!saved) return;
      this.app.toasts.show(`Saved ${at}.`);
      const own = this.detail.contains(document.activeElement) || document.activeElement === document.body;
      save.disabled = true;
      await this.load();
      if (mine !== this.#shown) return; // another entry is being written by now
      await this.show(at);
      if (own && document.activeElement === document.body) this.#focus(at);
    } } },
    h("label", { class: "stack" }, h("span", { class: "label", text: "Path" }), path), field.node,
    h("div", { class: "answers" }, h("button", { type: "button", class: "button", text: "Cancel", on: { click: () => (entry ? this.show(entry.path) : this.#empty()) } }), save)));
    (entry ? field.input : path).focus();
  }

  /** Nothing stands below the tree. */
  #empty() {
    this.#shown += 1;
    fill(this.detail);
  }

  /** @param {string} path */
  async #inject(path) {
    const done = await this.app.attempt(() => this.app.api.inject(this.app.store.current, path));
    if (!done) return;
    this.app.refresh();
    await this.app.reload();
    const woken = done.keys?.length ?? 0;
    const slept = done.asleep?.length ?? 0;
    const room = slept ? ` ${counted(slept, "dimmer chunk")} fell asleep to make room.` : "";
    this.app.toasts.show(woken ? `Woke ${counted(woken, "chunk")} of its snapshot${done.cost ? `, ${counted(done.cost, "token")}` : ""}.${room}` : "Everything of its snapshot is live already, or there is no room for it.");
  }

  /** @param {string} path */
  async #history(path) {
    const found = await this.app.attempt(() => this.app.api.entryHistory(path));
    if (!found) return;
    const versions = /** @type {Entry[]} */ (found.versions);
    const { close } = this.app.dialogs.sheet(`History of ${clip(path, 60)}`, "wide", h("div", { class: "versions" }, versions.map((one) => h("section", {},
      h("div", { class: "sleeper-head" }, h("span", { text: `Version ${one.version} · ${moment(one.modified)}${one.ended ? ` until ${moment(one.ended)}` : " · now"}` }),
        one.ended ? iconButton("undo", "Make this the current version", async () => {
          const saved = await this.app.attempt(() => this.app.api.saveEntry(path, one.content));
          if (!saved) return;
          close();
          await this.load();
          await this.show(path);
          this.#focus(path);
        }, { text: true, class: "small" }) : null),
      h("pre", { class: "json", text: JSON.stringify(one.content, null, 2) })))));
  }

  /** @param {string} path */
  async #delete(path) {
    const root = /** @type {Branch | undefined} */ (await this.app.attempt(() => this.app.api.memory()));
    if (!root) return;
    const below = entriesBelow(root, path);
    const sure = await this.app.dialogs.confirm({
      title: `Delete “${clip(path, 80)}”?`,
      sentence: below ? `Deletes this entry and the ${below === 1 ? "entry" : counted(below, "entry", "entries")} below it. Older versions stay in the history.` : "Deletes 1 entry. Its versions stay in the history.",
      confirm: "Delete", danger: true,
    });
    if (!sure) return;
    const before = await this.app.attempt(() => this.app.api.entry(path));
    const done = await this.app.attempt(() => this.app.api.deleteEntry(path, below > 0));
    if (!done) return;
    if (!this.detail.querySelector("form")) this.#empty(); // what is being written stays
    this.#path = "";
    await this.load();
    this.#focus("");
    this.app.toasts.show(`Deleted ${counted(done.deleted ?? 1, "entry", "entries")}.`, before && !below
      ? { label: "Undo", long: true, act: () => this.app.attempt(async () => { await this.app.api.saveEntry(path, before.content); await this.load(); }) } : {});
  }

  async #ask() {
    const text = this.query.value.trim();
    if (!text) return this.load();
    const found = await this.app.attempt(() => this.app.api.queryMemory("", text));
    if (!found) return;
    const matches = /** @type {{entry: Entry, score: number, similarity: number, recency: number}[]} */ (found.matches);
    fill(this.tree, matches.length ? h("ul", { class: "matches", "aria-label": "Entries found" }, matches.map((match) => h("li", {}, h("button", { type: "button", class: "match", on: { click: () => this.show(match.entry.path) } },
      h("span", { class: "heading", text: match.entry.path }), h("span", { class: "quiet", text: `similar ${similarity(match.similarity)} · recent ${percent(match.recency)}` }),
      h("span", { class: "row-text", text: clip(JSON.stringify(match.entry.content), 140) }))))) : h("p", { class: "quiet pad", text: "No entry fits." }));
  }
}

/** How many entries stand below a path; a bare heading is none. @param {Branch} branch @param {string} path @param {boolean} [inside] @returns {number} */
function entriesBelow(branch, path, inside = false) {
  const within = inside || branch.path === path;
  return branch.children.reduce((sum, child) => sum + (within && child.version !== null ? 1 : 0) + entriesBelow(child, path, within), 0);
}
