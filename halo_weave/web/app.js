// What the user can do on the page: each act asks the server, then tells the store. Views call these and nothing else.

import { ReplyAttribution } from "./reply-attribution.js";
import { Link } from "./link.js";
import { clip, counted, extent } from "./words.js";

/** @typedef {import("./api.js").ChunkAct} ChunkAct */

const UNNAMED = /^New window( \d+)?$/; // such a window is called after the first words said in it
const NAME = 48; // characters
const GONE = "That window does not exist any more";
const QUOTED = 3; // chunks in a question

export class App extends Link {
  /** The window that this page deletes. */
  #deleting = "";
  /** Changes of settings, one after the other. @type {Promise<unknown>} */
  #changes = Promise.resolve();

  /** @param {ConstructorParameters<typeof Link>} parts */
  constructor(...parts) {
    super(...parts);
    addEventListener("hashchange", () => this.followAddress());
  }

  /** Loads the model again, after what was missing has been put right. */
  async retryModel() {
    await this.attempt(() => this.api.retryModel());
    await this.refresh();
  }

  /** Goes on with another model, once it is here and ready. @param {string} name */
  async chooseModel(name) {
    const model = await this.attempt(() => this.api.chooseModel(name));
    if (model) this.store.setModel(model);
    this.refresh({ windows: false });
    return model;
  }

  /** Leaves the model that is on its way. */
  async stopModel() {
    await this.attempt(() => this.api.stopModel());
    await this.refresh({ windows: false });
  }

  // Addresses

  /** Shows the window that the address names. If there is none, that is said, and the address follows the page. */
  async followAddress() {
    const { hash } = location;
    const named = hash.match(/^#\/w\/([^/]+)/)?.[1];
    const wanted = () => this.store.windows.find((one) => one.id === decoded(named ?? ""));
    if (named && !wanted()) {
      await this.refresh(); // it may be new
      if (location.hash !== hash) return;
      if (!wanted()) this.toasts.show("There is no window at this address any more.");
    }
    const { store } = this;
    const next = wanted() ?? store.window ?? newest(store.windows);
    if (next && next.id !== store.current) this.open(next.id);
    else this.#showAddress(next?.id ?? "");
    if (!next) store.tell("windows");
  }

  /** An address that leads nowhere is replaced, not kept to go back to. @param {string} id */
  #showAddress(id) {
    const address = id ? addressOf(id) : "#";
    if (location.hash === address || (!id && !location.hash)) return;
    const known = this.store.windows.some((one) => addressOf(one.id) === location.hash);
    history[known ? "pushState" : "replaceState"](null, "", address);
  }

  /** @param {string} id @param {string} [key] a chunk to go to */
  async open(id, key) {
    if (id !== this.store.current) {
      this.leave();
      this.store.show(id);
      this.#showAddress(id);
      await this.reload();
    }
    if (key) this.store.tell("goto", key);
  }

  /** The window that was used last, if there is one. */
  async openNewest() {
    const next = newest(this.store.windows);
    if (next) await this.open(next.id);
  }

  /** The window that was shown does not exist any more. */
  windowGone() {
    this.leave();
    const next = newest(this.store.windows);
    if (next && this.store.current !== this.#deleting) {
      this.toasts.show(`${GONE}${this.store.me?.multiple_people ? ", or is not shared with you any more" : ""}.`);
    }
    if (next) this.open(next.id);
    else {
      this.store.show("");
      this.#showAddress("");
    }
  }

  // Windows

  async newWindow() {
    const made = await this.attempt(() => this.api.createWindow({ name: freeName(this.store.windows) }));
    if (!made) return undefined;
    this.store.setWindow(made);
    const opened = this.open(made.id);
    this.store.tell("compose");
    await opened;
    return made;
  }

  /** @param {WindowInfo} window */
  async renameWindow(window) {
    const about = { title: "Rename this window", label: "Name", value: window.name, most: 200, confirm: "Rename" };
    const name = await this.dialogs.ask(about);
    if (name?.trim()) await this.changeWindow(window.id, { name: name.trim() });
  }

  /** @param {string} id @param {import("./api.js").WindowChange} changes */
  async changeWindow(id, changes) {
    const changed = await this.attempt(() => this.api.changeWindow(id, changes));
    if (changed) this.store.setWindow(changed);
    return changed;
  }

  /** @param {WindowInfo} window */
  async deleteWindow(window) {
    const sure = await this.dialogs.confirm({
      title: `Delete the window “${window.name}”?`,
      sentence: `${staying(window)} Its name, system prompt and settings go, and what the lab captured of it.`,
      confirm: "Delete window", danger: true,
    });
    if (!sure) return;
    this.#deleting = window.id;
    await this.attempt(async () => {
      await this.api.deleteWindow(window.id);
      this.store.setWindows(this.store.windows.filter((one) => one.id !== window.id));
      if (window.id === this.store.current) this.windowGone();
      this.toasts.show(`Deleted the window “${clip(window.name, NAME)}”.`);
    });
    this.#deleting = "";
    this.refresh();
  }

  // Speaking

  /**
   * @param {string} text @param {string} [id] the window @param {Attached[]} [documents]
   * @param {import("./views/preview.js").RecallChoice} [recall]
   * @returns {Promise<boolean>} whether it is on its way
   */
  async say(text, id = this.store.current, documents = [], recall = undefined) {
    id ||= (await this.newWindow())?.id ?? "";
    if (!id) return false;
    const window = this.store.windows.find((one) => one.id === id);
    const first = window && UNNAMED.test(window.name) && !window.live_chunks && !window.pruned_chunks;
    if (id === this.store.current) this.store.sending();
    this.store.tell("follow");
    const files = documents.map((one) => ({ name: one.name, text: one.text }));
    const answer = await this.attempt(() => this.api.sendMessage(id, text, files, recall));
    if (!answer && id === this.store.current) this.store.notSent();
    if (answer && first) this.changeWindow(id, { name: clip(text, NAME) });
    return Boolean(answer);
  }

  stop() {
    return this.attempt(() => this.api.stop(this.store.current));
  }

  /**
   * Words go back into the input box of their window, whichever is shown by now.
   * @param {string} window @param {string} text
   */
  giveBack(window, text) {
    if (window === this.store.current) return this.store.tell("given-back", text);
    const draft = this.preferences.draft(window);
    this.preferences.saveDraft(window, draft.trim() ? `${text}\n${draft}` : text);
    const name = this.store.windows.find((one) => one.id === window)?.name;
    if (name) this.toasts.show(`Your words are back in the input box of “${clip(name, NAME)}”.`);
  }

  /**
   * Words that were given back leave the input box again, unless they were changed.
   * @param {string} window @param {string} text
   */
  #takeBack(window, text) {
    if (window === this.store.current) this.store.tell("taken-back", text);
    else if (this.preferences.draft(window) === text) this.preferences.saveDraft(window, "");
  }

  // Turns and their versions. What takes another's place leaves it in the record, as another version.

  /** Answers a message, or an answer's question once more. @param {string} turnId */
  regenerate(turnId) {
    this.store.tell("follow");
    return this.attempt(() => this.api.regenerate(this.store.current, turnId));
  }

  /** The last reply goes on where it ended. */
  continueReply() {
    this.store.tell("follow");
    return this.attempt(() => this.api.continueReply(this.store.current));
  }

  /** The whole text of a turn, asleep or not. @param {string} turnId */
  async textOf(turnId) {
    const found = await this.attempt(() => this.api.turns(this.store.current, { around: turnId, limit: 1 }));
    const turn = found?.turns.find((one) => one.turn_id === turnId);
    return turn?.chunks.filter((one) => !one.thought).flatMap((one) => one.text_pieces).join("");
  }

  /** @param {string} turnId */
  async editTurn(turnId) {
    const window = this.store.current;
    const text = await this.textOf(turnId);
    if (text === undefined || this.store.busy) return false;
    const sentence = "What it said, and what followed it, stays as another version.";
    const about = { title: "Edit", sentence, label: "Text", value: text, confirm: "Save", long: true };
    const changed = await this.dialogs.ask(about);
    if (!changed?.trim() || changed === text) return false;
    const done = await this.attempt(() => this.api.edit(window, turnId, changed));
    return Boolean(done);
  }

  /** The last thing the user said can be said otherwise. */
  async editLast() {
    const { live, current, busy } = this.store;
    const said = live?.chunks.findLast((chunk) => chunk.turn.role === "user" && chunk.turn.window === current);
    return said && !busy ? this.editTurn(said.turn.turn_id) : false;
  }

  /** @param {string} turnId @param {number} number from 1 on */
  async showVersion(turnId, number) {
    const window = this.store.current;
    await this.attempt(async () => {
      const { versions } = await this.api.versions(window, turnId);
      const wanted = versions[number - 1];
      if (wanted) await this.api.checkout(window, wanted.turn_id);
    });
  }

  /** @param {string} turnId */
  async branchOff(turnId) {
    const made = await this.attempt(() => this.api.branch(this.store.current, turnId));
    if (!made) return;
    this.store.setWindow(made);
    await this.open(made.id);
    this.toasts.show(`This is a branch: “${clip(made.name, NAME)}” goes on from there on its own.`);
  }

  /** @param {string} turnId */
  async copyTurn(turnId) {
    const text = await this.textOf(turnId);
    if (text !== undefined) await this.copy(text);
  }

  // Chunks. An act is undone in the window where it was done, whichever is shown by then.

  /**
   * @param {string} window @param {string} key @param {ChunkAct} act @param {string} said
   * @param {{label: string, act: () => void}} [undo]
   */
  async #chunkAct(window, key, act, said, undo) {
    const done = await this.attempt(() => this.api.act(window, key, act));
    if (!done) return false;
    await this.#changed(window);
    this.toasts.show(said, undo ?? {});
    return true;
  }

  /** What is live and what sleeps in a window is another by now. @param {string} window */
  async #changed(window) {
    this.refresh();
    if (window === this.store.current) await this.reload();
    this.store.tell("graveyard");
  }

  /** @param {string} key @param {string} [window] */
  pin(key, window = this.store.current) {
    const undo = { label: "Undo", act: () => this.unpin(key, window) };
    return this.#chunkAct(window, key, "pin", "Pinned: brightest, and never put to sleep.", undo);
  }

  /** @param {string} key @param {string} [window] */
  unpin(key, window = this.store.current) {
    return this.#chunkAct(window, key, "unpin", "Unpinned.");
  }

  /** @param {string} key @param {string} [window] */
  prune(key, window = this.store.current) {
    const undo = { label: "Wake it again", act: () => this.#undoPrune(key, window) };
    return this.#chunkAct(window, key, "prune", "Asleep. It wakes up when you speak of it.", undo);
  }

  /** Takes a sleep back: the chunk is what it was. @param {string} key @param {string} window */
  async #undoPrune(key, window) {
    const done = await this.#chunkAct(window, key, "undo-prune", "Awake again, as before.");
    if (done && window === this.store.current) this.store.tell("resurrected", key);
  }

  /** @param {string} key @param {string} [window] */
  async resurrect(key, window = this.store.current) {
    const done = await this.attempt(() => this.api.act(window, key, "resurrect"));
    if (!done) return false;
    await this.#changed(window);
    const undo = () => this.attempt(async () => {
      for (const one of done.resurrected ?? []) await this.api.act(window, one, "prune");
      for (const one of done.pruned ?? []) await this.api.act(window, one, "undo-prune");
      await this.#changed(window);
    });
    this.toasts.show(resurrectedWords(done), { label: "Put back to sleep", act: undo });
    if (window === this.store.current) this.store.tell("resurrected", key);
    return true;
  }

  /** @param {string} key @param {string} [window] */
  merge(key, window = this.store.current) {
    return this.#chunkAct(window, key, "merge", "Merged with the chunk before it.");
  }

  /**
   * Deletes a chunk with what belongs to it, after a question.
   * @param {string} key
   * @param {{title?: string, confirm?: string, text?: string}} [more] `text` goes into the input box if the server
   *   gives none back
   */
  async delete(key, more = {}) {
    const window = this.store.current;
    const cost = await this.attempt(() => this.api.previewDelete(window, key));
    if (!cost) return false;
    const back = cost.text ? ", and puts your text back into the input box" : "";
    const sure = await this.dialogs.confirm({
      title: more.title ?? "Delete this?",
      sentence: `Deletes ${extent(cost)}${back}. It can be undone right after, and later from the graveyard.`,
      quote: this.#quoted(cost.keys),
      confirm: more.confirm ?? "Delete", danger: true,
    });
    if (!sure) return false;
    const done = await this.attempt(() => this.api.delete(window, key));
    if (!done) return false;
    await this.#changed(window);
    const text = done.text || more.text || "";
    if (text) this.giveBack(window, text);
    const undo = () => this.restore(done.keys, window, text);
    this.toasts.show(`Deleted ${extent(done)}.`, { label: "Undo", long: true, act: undo });
    return true;
  }

  /** The first words of each chunk that is live. @param {string[]} keys */
  #quoted(keys) {
    const texts = keys.map((key) => this.store.live?.find(key)?.pieces.join("") ?? "").filter(Boolean);
    const more = texts.length > QUOTED ? [`… and ${counted(texts.length - QUOTED, "more chunk")}`] : [];
    return [...texts.slice(0, QUOTED).map((text) => `“${clip(text, 120)}”`), ...more];
  }

  /** @param {string[]} keys @param {string} [window] @param {string} [text] that was put into the input box */
  async restore(keys, window = this.store.current, text = "") {
    const done = await this.attempt(() => this.api.restore(window, keys));
    if (!done) return;
    if (text) this.#takeBack(window, text);
    await this.#changed(window);
    this.toasts.show("Deletion undone.");
  }

  /** @param {string} key @param {Hit} [found] the search that led to it */
  async explain(key, found) {
    const why = await this.attempt(() => this.api.explanation(this.store.current, key));
    if (why) this.store.tell("explanation", { ...why, found });
  }

  /** @param {string} text */
  async copy(text) {
    try {
      await navigator.clipboard.writeText(text);
      this.toasts.show("Copied.");
    } catch {
      this.toasts.show("The browser did not allow copying.", { kind: "bad" });
    }
  }

  // Light

  /**
   * A memory has nothing to do with what was asked: it sleeps, and does not wake up for questions like this one.
   * @param {string} key @param {string} turnId the answer that was reminded of it
   */
  async wrongMemory(key, turnId) {
    const window = this.store.current;
    const live = Boolean(this.store.live?.find(key));
    const done = await this.attempt(async () => {
      const { turns } = await this.api.turns(window, { around: turnId, limit: 4 });
      const before = turns.slice(0, turns.findIndex((one) => one.turn_id === turnId));
      const asked = before.findLast((one) => one.role === "user")?.chunks.flatMap((one) => one.text_pieces).join("");
      await this.api.addNegativeFeedback(window, key, asked ?? "");
      if (live) await this.api.act(window, key, "prune");
      return true;
    });
    if (!done) return;
    await this.#changed(window);
    const undo = () => this.attempt(async () => {
      await this.api.removeNegativeFeedback(window, key);
      if (live) await this.api.act(window, key, "undo-prune");
      await this.#changed(window);
    });
    const said = "Noted: it is asleep, and will not wake up for similar questions.";
    this.toasts.show(said, { label: "Undo", long: true, act: undo });
  }

  /** Where the words of a reply came from; asked once. @param {string} turnId */
  async attributionOf(turnId) {
    const { store, api } = this;
    const { current } = store;
    if (!turnId || store.attributions.has(turnId)) return store.attributions.get(turnId) ?? null;
    store.attributions.set(turnId, null);
    try {
      const { start, attribution } = await api.sources(current, turnId);
      const light = attribution && new ReplyAttribution(start, attribution);
      if (current === store.current) store.setAttribution(turnId, light);
      return light;
    } catch {
      store.attributions.delete(turnId); // asked again the next time
      return null;
    }
  }

  /** Saves an export as a file. @param {{window?: string, format?: string, embeddings?: boolean}} query */
  async download(query) {
    const begin = async () => {
      // A link cannot carry the key; a cookie of this session can.
      if (this.preferences.key) await this.api.beginSession();
      return true;
    };
    if (!(await this.attempt(begin))) return;
    const link = Object.assign(document.createElement("a"), { href: this.api.exportAddress(query), download: "" });
    document.body.append(link);
    link.click();
    link.remove();
  }

  // Settings

  /** What is set, in a window or for all, is another by now. */
  async changedSettings() {
    await this.attempt(async () => this.store.setSettings(await this.api.settings()));
    await this.refresh();
    if (this.store.current) await this.reload();
  }

  /**
   * @param {"window" | "all"} scope @param {string} name @param {SettingValue | undefined} value undefined: the default
   * @param {string} [window]
   */
  setSetting(scope, name, value, window = this.store.current) {
    /** @type {any} */
    const reset = value === undefined ? { reset: [name] } : null; // names and values come from the description
    const change = async () => {
      if (scope === "all") this.store.setSettings(await this.api.changeSettings(reset ?? { [name]: value }));
      else this.store.setWindow(await this.api.changeWindow(window, reset ?? { settings: { [name]: value } }));
      await this.refresh();
      if (this.store.current) await this.reload();
    };
    const changed = this.#changes.then(change);
    this.#changes = changed.catch(() => {});
    return changed;
  }
}

/** @param {string} window */
function addressOf(window) {
  return `#/w/${encodeURIComponent(window)}`;
}

/** @param {string} text of an address, perhaps malformed */
function decoded(text) {
  try {
    return decodeURIComponent(text);
  } catch {
    return "";
  }
}

/** @param {WindowInfo[]} windows @returns {WindowInfo | undefined} */
function newest(windows) {
  return [...windows].sort((a, b) => Number(a.archived) - Number(b.archived) || (a.modified < b.modified ? 1 : -1))[0];
}

/** @param {WindowInfo[]} windows */
function freeName(windows) {
  const taken = new Set(windows.map((one) => one.name));
  for (let i = 1; ; i++) {
    const name = i === 1 ? "New window" : `New window ${i}`;
    if (!taken.has(name)) return name;
  }
}

/** What stays in memory when a window is deleted. @param {WindowInfo} window */
function staying({ live_chunks, live_tokens, pruned_chunks }) {
  const kept = [
    live_chunks && `${counted(live_chunks, "live chunk")} (${counted(live_tokens, "token")})`,
    pruned_chunks && counted(pruned_chunks, "sleeping chunk"),
  ].filter(Boolean).join(" and ");
  if (!kept) return "Nothing was said in it.";
  const stays = live_chunks + pruned_chunks === 1 ? "stays" : "stay";
  return `Its ${kept} ${stays} in memory and can wake up in other windows.`;
}

/** @param {{resurrected?: string[], pruned?: string[]}} done what came back with a chunk, and what made room */
function resurrectedWords({ resurrected = [], pruned = [] }) {
  const also = resurrected.length > 1 ? ` ${counted(resurrected.length - 1, "chunk")} came with it.` : "";
  const room = pruned.length ? ` ${counted(pruned.length, "dimmer chunk")} fell asleep to make room.` : "";
  return `Awake at its place, and pinned.${also}${room}`;
}
