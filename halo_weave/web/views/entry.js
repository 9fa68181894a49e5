// One entry of the structured memory, below the tree: read, edit, delete, look back, bring into the window.

import { button, fill, h, iconButton, onSubmit } from "../dom.js";
import { clip, counted, moment, similarity } from "../words.js";
import { JsonField } from "./json-field.js";

/**
 * The tree above: it is loaded anew after a change, and knows which entry is shown and where the focus goes.
 * @typedef {{load: () => Promise<void>, chosen: (path: string) => void, focus: (path: string) => void}} Tree
 */

export class EntryView {
  /** Counts what was put here: an answer that comes late does not replace what came after. */
  #shown = 0;

  /** @param {import("../app.js").App} app @param {Tree} tree */
  constructor(app, tree) {
    this.app = app;
    this.tree = tree;
    this.node = h("div", { class: "entry" });
  }

  /** @param {string} path */
  async show(path) {
    if (!(await this.#mayLeave())) return;
    const mine = ++this.#shown;
    const entry = await this.app.attempt(() => this.app.api.entry(path));
    if (!entry || mine !== this.#shown) return;
    this.tree.chosen(path);
    const { version, modified, accessed } = entry;
    const about = `Version ${version} · changed ${moment(modified)} · read ${moment(accessed)}`;
    const inject = { text: true, class: "small writes", disabled: !this.app.store.current };
    fill(this.node,
      h("h3", { class: "path", text: path }),
      h("p", { class: "quiet", text: about }),
      h("pre", { class: "json", text: JSON.stringify(entry.content, null, 2) }),
      h("div", { class: "answers start" },
        iconButton("edit", "Edit", () => this.edit(entry), { text: true, class: "small" }),
        iconButton("wake", "Bring into this window", () => this.#inject(path), inject),
        iconButton("undo", "History", () => this.#history(path), { text: true, class: "small" }),
        iconButton("delete", "Delete…", () => this.delete(path), { text: true, class: "small danger-hover" })),
      entry.snapshot.length > 0 && snapshotOf(entry));
  }

  /** What is typed here and not saved. */
  #unsaved = () => false;

  /** Whether what stands here may be replaced. */
  async #mayLeave() {
    if (!this.node.querySelector("form") || !this.#unsaved()) return true;
    const leave = await this.app.dialogs.confirm({
      title: "Discard your changes?", sentence: "It is not saved.", confirm: "Leave it", danger: true,
    });
    if (leave) this.#unsaved = () => false;
    return leave;
  }

  /** @param {Entry | null} entry null: a new one */
  async edit(entry) {
    if (!(await this.#mayLeave())) return;
    let mine = 0;
    const path = h("input", {
      class: "field", placeholder: "People/Mochi", spellcheck: "false",
      set: { value: entry?.path ?? "", readOnly: Boolean(entry) },
    });
    const field = new JsonField("Content", entry ? entry.content : {});
    const save = h("button", { type: "submit", class: "button primary", text: "Save" });
    const first = field.input.value;
    const cancel = button("Cancel", () => {
      this.#unsaved = () => false;
      if (entry) this.show(entry.path);
      else this.#empty();
    });
    const send = async () => {
      if (save.disabled) return;
      if (!field.valid) return field.input.focus();
      save.disabled = path.readOnly = field.input.readOnly = true;
      this.#unsaved = () => false; // it is on its way, and comes back if it is not saved
      const saved = await this.#save(path.value.trim(), field.value, mine);
      if (saved) return;
      save.disabled = field.input.readOnly = false;
      path.readOnly = Boolean(entry);
      if (mine === this.#shown) this.#unsaved = changed;
      else this.#offerBack(path.value.trim(), put);
    };
    const form = h("form", { class: "stack", on: onSubmit(send) },
      h("label", { class: "stack" }, h("span", { class: "label", text: "Path" }), path), field.node,
      h("div", { class: "answers" }, cancel, save));
    const changed = () => field.input.value !== first || path.value !== (entry?.path ?? "");
    const put = () => {
      mine = ++this.#shown;
      this.#unsaved = changed;
      fill(this.node, form);
      (entry ? field.input : path).focus();
    };
    put();
  }

  /**
   * What was not saved can be written on, though something else stands here by now.
   * @param {string} path @param {() => void} put
   */
  #offerBack(path, put) {
    const act = async () => {
      if (await this.#mayLeave()) put();
    };
    this.app.toasts.show(`${path} was not saved.`, { kind: "bad", label: "Bring it back", long: true, act });
  }

  /** @param {string} path @param {unknown} content @param {number} mine @returns {Promise<boolean>} if it is saved */
  async #save(path, content, mine) {
    const saved = await this.app.attempt(() => this.app.api.saveEntry(path, content));
    if (!saved) return false;
    this.app.toasts.show(`Saved ${path}.`);
    const own = this.node.contains(document.activeElement) || document.activeElement === document.body;
    await this.tree.load();
    if (mine !== this.#shown) return true; // another entry is being written by now
    await this.show(path);
    if (own && document.activeElement === document.body) this.tree.focus(path);
    return true;
  }

  /** Nothing stands here. */
  #empty() {
    this.#shown += 1;
    fill(this.node);
  }

  /** @param {string} path */
  async #inject(path) {
    const { app } = this;
    const { current } = app.store;
    const done = await app.attempt(() => app.api.inject(current, path));
    if (!done) return;
    app.refresh();
    await app.reload();
    const undo = () => app.attempt(async () => {
      for (const key of done.resurrected) await app.api.act(current, key, "prune");
      for (const key of done.pruned) await app.api.act(current, key, "undo-prune");
      await app.reload();
    });
    app.toasts.show(injectedWords(done), done.resurrected.length ? { label: "Undo", long: true, act: undo } : {});
  }

  /** @param {string} path */
  async #history(path) {
    const found = await this.app.attempt(() => this.app.api.entryHistory(path));
    if (!found) return;
    const again = async (/** @type {unknown} */ content) => {
      const saved = await this.app.attempt(() => this.app.api.saveEntry(path, content));
      if (!saved) return;
      close();
      await this.tree.load();
      await this.show(path);
      this.tree.focus(path);
    };
    const versions = found.versions.map((one) => versionOf(one, () => again(one.content)));
    const title = `History of ${clip(path, 60)}`;
    const { close } = this.app.dialogs.sheet(title, "wide", h("div", { class: "versions" }, versions));
  }

  /** @param {string} path */
  async delete(path) {
    const root = await this.app.attempt(() => this.app.api.memory());
    if (!root) return;
    const below = entriesBelow(root, path);
    const them = below === 1 ? "entry" : counted(below, "entry", "entries");
    const sure = await this.app.dialogs.confirm({
      title: `Delete “${clip(path, 80)}”?`,
      sentence: below
        ? `Deletes this entry and the ${them} below it. Older versions stay in the history.`
        : "Deletes 1 entry. Its versions stay in the history.",
      confirm: "Delete", danger: true,
    });
    if (!sure) return;
    const before = await this.app.attempt(() => this.#entriesAt(root, path));
    if (!before) return;
    const done = await this.app.attempt(() => this.app.api.deleteEntry(path, below > 0));
    if (!done) return;
    if (!this.node.querySelector("form")) this.#empty(); // what is being written stays
    this.tree.chosen("");
    await this.tree.load();
    this.tree.focus("");
    const undo = () => this.app.attempt(async () => {
      for (const one of before) await this.app.api.saveEntry(one.path, one.content);
      await this.tree.load();
    });
    const back = { label: "Undo", long: true, act: undo };
    this.app.toasts.show(`Deleted ${counted(done.deleted, "entry", "entries")}.`, back);
  }

  /** The entries at a path and below it. @param {Branch} root @param {string} path @returns {Promise<Entry[]>} */
  #entriesAt(root, path) {
    /** @type {string[]} */
    const paths = [];
    const walk = (/** @type {Branch} */ one) => {
      const within = one.path === path || one.path.startsWith(`${path}/`);
      if (within && one.version !== null) paths.push(one.path);
      one.children.forEach(walk);
    };
    walk(root);
    return Promise.all(paths.map((one) => this.app.api.entry(one)));
  }
}

/** The talk that explains an entry. @param {Entry} entry */
function snapshotOf({ snapshot }) {
  const tokens = snapshot.reduce((sum, one) => sum + one.tokens, 0);
  const summary = `Kept with ${counted(snapshot.length, "chunk")}, ${counted(tokens, "token")}`;
  return h("details", { class: "snapshot" }, h("summary", { text: summary }), snapshot.map((one) => {
    const about = `${counted(one.tokens, "token")} · ${similarity(one.similarity)}`;
    return h("blockquote", {}, h("span", { class: "quiet", text: about }), h("p", { text: one.text }));
  }));
}

/** @param {Entry} entry @param {() => void} again makes it the current version */
function versionOf({ version, modified, ended, content }, again) {
  const until = ended ? ` until ${moment(ended)}` : " · now";
  return h("section", {},
    h("div", { class: "sleeper-head" },
      h("span", { text: `Version ${version} · ${moment(modified)}${until}` }),
      ended && iconButton("undo", "Make this the current version", again, { text: true, class: "small" })),
    h("pre", { class: "json", text: JSON.stringify(content, null, 2) }));
}

/** @param {Wire.Answers["POST /api/windows/{window_id}/inject"]} done */
function injectedWords({ resurrected, cost, pruned }) {
  if (!resurrected.length) return "No chunk of its snapshot is asleep.";
  const tokens = cost ? `, ${counted(cost, "token")}` : "";
  const room = pruned.length ? ` ${counted(pruned.length, "dimmer chunk")} fell asleep to make room.` : "";
  return `Woke ${counted(resurrected.length, "chunk")} of its snapshot${tokens}.${room}`;
}

/**
 * How many entries stand below a path; a bare heading is none.
 * @param {Branch} branch @param {string} path @param {boolean} [inside] @returns {number}
 */
function entriesBelow(branch, path, inside = false) {
  const within = inside || branch.path === path;
  return branch.children.reduce((sum, child) => {
    return sum + (within && child.version !== null ? 1 : 0) + entriesBelow(child, path, within);
  }, 0);
}
