// What the page can do: each act asks the server, then tells the store. Views call these and nothing else.

import { Api, ApiError } from "./api.js";
import { Store } from "./store.js";
import { Follower } from "./stream.js";
import { clip, counted, extent, parts } from "./words.js";

const LET_GO = 30_000; // a hidden tab lets go of its stream after this
const LOOK_AGAIN = 15_000;
const COUNTS = new Set(["heard", "done", "failed", "changed", "reset"]); // after these the list of windows is another
const UNNAMED = /^New window( \d+)?$/; // such a window is called after the first words said in it
const NAME = 48; // characters

export class App {
  store = new Store();
  api;
  /** @type {Follower | null} */
  follower = null;
  /** @type {Promise<void> | null} */
  #loading = null;
  #again = false;
  /** @type {StreamEvent[]} */
  #waiting = [];
  #hidden = 0;
  /** @type {Promise<void> | null} */
  #refreshing = null;
  #refreshAgain = false;
  /** The window that this page deletes. */
  #deleting = "";
  /** The question for the key, while it is asked. @type {Promise<void> | null} */
  #unlocking = null;
  /** Changes of settings, one after the other. @type {Promise<unknown>} */
  #changes = Promise.resolve();

  /**
   * @param {import("./preferences.js").Preferences} preferences
   * @param {import("./views/toasts.js").Toasts} toasts
   * @param {import("./views/dialogs.js").Dialogs} dialogs
   */
  constructor(preferences, toasts, dialogs) {
    this.preferences = preferences;
    this.toasts = toasts;
    this.dialogs = dialogs;
    this.api = new Api(undefined, () => preferences.key);
    addEventListener("hashchange", () => this.#followHash());
    document.addEventListener("visibilitychange", () => this.#visibility());
    addEventListener("online", () => this.follower?.retryNow());
    setInterval(() => document.hidden || this.refresh(), LOOK_AGAIN);
  }

  /** Whether the server answers and has its model. */
  get reachable() {
    return this.store.connection.state === "online" && this.store.status?.model.state === "ready";
  }

  // Loading

  /** @returns {Promise<void>} */
  async start() {
    try {
      this.store.setStatus(await this.api.status());
      this.store.setConnection("online");
      this.store.setSettings(await this.api.settings());
      this.store.setWindows(await this.api.windows());
      this.#followHash();
    } catch (error) {
      if (await this.#unlocked(error)) return this.start();
      // While the model is being loaded or is missing, the status is all there is.
      if (/** @type {ApiError} */ (error).status === 503) return this.#later(1500);
      this.store.setConnection("lost", Date.now() + 3000);
      return this.#later(3000);
    }
  }

  /** @param {number} milliseconds */
  async #later(milliseconds) {
    await new Promise((done) => setTimeout(done, milliseconds));
    return this.start();
  }

  /** Loads the model again, after what was missing has been put right. */
  async retryModel() {
    await this.attempt(() => this.api.json("POST", "/api/model/retry"));
    await this.refresh();
  }

  /** Status and windows, quietly. One at a time, so that an older answer never replaces a newer one. */
  async refresh() {
    if (this.#refreshing) {
      this.#refreshAgain = true;
      return this.#refreshing;
    }
    this.#refreshing = (async () => {
      do {
        this.#refreshAgain = false;
        await this.#look();
      } while (this.#refreshAgain);
    })();
    await this.#refreshing;
    this.#refreshing = null;
  }

  async #look() {
    try {
      const status = await this.api.status();
      const back = this.store.status?.model.state !== "ready" && status.model.state === "ready";
      this.store.setStatus(status);
      if (!this.follower && this.store.connection.state === "lost") this.store.setConnection("online");
      if (!this.store.windowsKnown) return;
      const { windows, current } = this.store;
      const found = await this.api.windows();
      if (back && this.store.current) this.reload();
      if (windows !== this.store.windows || current !== this.store.current) {
        this.#refreshAgain = true; // the answer may be older than what was done meanwhile
        return;
      }
      this.store.setWindows(found);
      if (current && !this.store.window) this.#windowGone();
    } catch (error) {
      if (!this.follower && error instanceof ApiError && error.status === 0) this.store.setConnection("lost", Date.now() + LOOK_AGAIN);
    }
  }

  /** Asks for the key when the server wants one. @param {unknown} error */
  async #unlocked(error) {
    if (!(error instanceof ApiError) || error.status !== 401) return false;
    this.#unlocking ??= this.#askKey();
    await this.#unlocking;
    return true;
  }

  async #askKey() {
    this.store.setConnection("locked");
    const wrong = this.preferences.key ? "That key was not right. " : "";
    const key = await this.dialogs.ask({
      title: "This server is locked", sentence: `${wrong}Enter the key it was started with. It is kept until you close this tab.`,
      label: "Key", secret: true, confirm: "Unlock", must: true,
    });
    this.preferences.key = key ?? "";
    this.#unlocking = null;
  }

  /** Shows the window that the address names. If there is none, that is said, and the address follows the page. */
  async #followHash() {
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

  /** The window that was used last, if there is one. */
  async openNewest() {
    const next = newest(this.store.windows);
    if (next) await this.open(next.id);
  }

  /** @param {string} id @param {string} [key] a chunk to go to */
  async open(id, key) {
    if (id === this.store.current) {
      if (key) this.store.tell("goto", key);
      return;
    }
    this.follower?.stop();
    this.#waiting = [];
    this.store.show(id);
    this.#showAddress(id);
    await this.reload();
    if (key) this.store.tell("goto", key);
  }

  #windowGone() {
    this.follower?.stop();
    this.follower = null;
    const next = newest(this.store.windows);
    if (next && this.store.current !== this.#deleting) this.toasts.show("That window does not exist any more.");
    if (next) this.open(next.id);
    else {
      this.store.show("");
      this.#showAddress("");
    }
  }

  /** The whole context anew. Calls while one is on its way become one more; all end when the last has come. */
  async reload() {
    if (this.#loading) {
      this.#again = true;
      return this.#loading;
    }
    this.#loading = (async () => {
      do {
        this.#again = false;
        await this.#load(this.store.current);
      } while (this.#again);
    })();
    await this.#loading;
    this.#loading = null;
    for (const event of this.#waiting.splice(0)) this.#hear(event);
  }

  /** @param {string} id */
  async #load(id) {
    if (!id) return;
    const later = (/** @type {number} */ wait) => setTimeout(() => this.store.current === id && this.reload(), wait);
    try {
      const wire = await this.api.context(id);
      if (id !== this.store.current) {
        this.#again = true;
        return;
      }
      this.store.setContext(wire);
      if (!this.follower || this.followed !== id) this.#follow(id, wire.last_event);
    } catch (error) {
      if (id !== this.store.current) this.#again = true;
      else if (await this.#unlocked(error)) this.#again = true;
      else if (error instanceof ApiError && error.status === 404) this.refresh();
      else if (error instanceof ApiError && error.status === 503) later(1500);
      else if (error instanceof ApiError && error.status === 0) {
        this.store.setConnection("lost", Date.now() + 3000);
        later(3000);
      } else this.store.tell("unloadable", /** @type {Error} */ (error).message);
    }
  }

  /** @param {string} id @param {string} lastId */
  #follow(id, lastId) {
    this.follower?.stop();
    this.followed = id;
    const follower = new Follower(
      (last, signal) => this.api.events(id, last, signal),
      (event) => follower === this.follower && this.#hear(event),
      (state) => {
        if (follower !== this.follower) return;
        if (state === "gone") this.refresh();
        else if (state === "locked") this.start();
        else this.#connected(state, follower);
      },
      lastId,
    );
    this.follower = follower;
    follower.run();
  }

  /** @param {"connecting" | "online" | "lost"} state @param {Follower} follower */
  #connected(state, follower) {
    const before = this.store.connection.state;
    if (state === "connecting") return;
    this.store.setConnection(state, state === "lost" ? Date.now() + 1000 : 0);
    if (before === "lost" && state === "online") {
      this.refresh();
      if (!follower.lastId) this.reload();
    }
  }

  /** @param {StreamEvent} event */
  #hear(event) {
    if (this.#loading) {
      this.#waiting.push(event);
      return;
    }
    if (event.event === "deleted") {
      this.refresh();
      return;
    }
    if (this.store.apply(event)) this.reload();
    if (COUNTS.has(event.event)) this.refresh();
  }

  #visibility() {
    clearTimeout(this.#hidden);
    if (document.hidden) {
      this.#hidden = window.setTimeout(() => this.follower?.stop(), LET_GO);
    } else if (this.follower && this.store.current) {
      this.#follow(this.store.current, this.follower.lastId);
      this.refresh();
    }
  }

  /** Runs an act; a refusal becomes a message. @template T @param {() => Promise<T>} act @returns {Promise<T | undefined>} */
  async attempt(act) {
    try {
      return await act();
    } catch (error) {
      if (await this.#unlocked(error)) return this.attempt(act);
      this.toasts.show(/** @type {Error} */ (error).message, { kind: "bad" });
      return undefined;
    }
  }

  // Speaking

  /** @param {string} text @param {string} [id] the window @returns {Promise<boolean>} whether it is on its way */
  async say(text, id = this.store.current) {
    id ||= (await this.newWindow())?.id ?? "";
    if (!id) return false;
    const window = this.store.windows.find((one) => one.id === id);
    if (id === this.store.current) this.store.sending(text);
    const answer = await this.attempt(() => this.api.say(id, text));
    if (!answer && id === this.store.current) this.store.notSent();
    if (answer && window && UNNAMED.test(window.name) && !window.live_chunks && !window.asleep_chunks) this.changeWindow(id, { name: clip(text, NAME) });
    return Boolean(answer);
  }

  /** Words go back into the input box of their window, whichever is shown by now. @param {string} window @param {string} text */
  giveBack(window, text) {
    if (window === this.store.current) return this.store.tell("given-back", text);
    const draft = this.preferences.draft(window);
    this.preferences.saveDraft(window, draft.trim() ? `${text}\n${draft}` : text);
    const name = this.store.windows.find((one) => one.id === window)?.name;
    if (name) this.toasts.show(`Your words are back in the input box of “${clip(name, NAME)}”.`);
  }

  abort() {
    return this.attempt(() => this.api.abort(this.store.current));
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
    const name = await this.dialogs.ask({ title: "Rename this window", label: "Name", value: window.name, most: 200, confirm: "Rename" });
    if (name?.trim()) await this.changeWindow(window.id, { name: name.trim() });
  }

  /** @param {string} id @param {Record<string, unknown>} changes */
  async changeWindow(id, changes) {
    const changed = await this.attempt(() => this.api.changeWindow(id, changes));
    if (changed) this.store.setWindow(changed);
    return changed;
  }

  /** @param {WindowInfo} window */
  async deleteWindow(window) {
    const kept = [
      window.live_chunks && `${counted(window.live_chunks, "live chunk")} (${counted(window.live_tokens, "token")})`,
      window.asleep_chunks && counted(window.asleep_chunks, "sleeping chunk"),
    ].filter(Boolean).join(" and ");
    const sure = await this.dialogs.confirm({
      title: `Delete the window “${window.name}”?`,
      sentence: `${kept ? `Its ${kept} ${window.live_chunks + window.asleep_chunks === 1 ? "stays" : "stay"} in memory and can wake up in other windows.` : "Nothing was said in it."} Its name, system prompt and settings go.`,
      confirm: "Delete window", danger: true,
    });
    if (!sure) return;
    this.#deleting = window.id;
    await this.attempt(async () => {
      await this.api.deleteWindow(window.id);
      this.store.setWindows(this.store.windows.filter((one) => one.id !== window.id));
      if (window.id === this.store.current) this.#windowGone();
      this.toasts.show(`Deleted the window “${clip(window.name, NAME)}”.`);
    });
    this.#deleting = "";
    this.refresh();
  }

  // Chunks

  // What is undone is undone in the window where it was done, whichever is shown by then.

  /** @param {string} window @param {string} key @param {"pin" | "unpin" | "sleep" | "wake" | "merge"} act @param {string} said @param {{label: string, act: () => void}} [undo] */
  async #chunkAct(window, key, act, said, undo) {
    const done = await this.attempt(async () => {
      await this.api.act(window, key, act);
      return true;
    });
    if (!done) return false;
    this.refresh();
    if (window === this.store.current) await this.reload();
    this.store.tell("graveyard");
    this.toasts.show(said, undo ? { label: undo.label, act: undo.act } : {});
    return true;
  }

  /** @param {string} key @param {string} [window] */
  pin(key, window = this.store.current) {
    return this.#chunkAct(window, key, "pin", "Pinned: brightest, and never put to sleep.", { label: "Undo", act: () => this.unpin(key, window) });
  }

  /** @param {string} key @param {string} [window] */
  unpin(key, window = this.store.current) {
    return this.#chunkAct(window, key, "unpin", "Unpinned.");
  }

  /** @param {string} key @param {string} [window] */
  sleep(key, window = this.store.current) {
    return this.#chunkAct(window, key, "sleep", "Asleep. It can still wake up when you speak of it.", { label: "Wake it again", act: () => this.wake(key, window) });
  }

  /** @param {string} key @param {string} [window] */
  async wake(key, window = this.store.current) {
    const done = await this.#chunkAct(window, key, "wake", "Awake at its place, and pinned.", { label: "Put back to sleep", act: () => this.sleep(key, window) });
    if (done && window === this.store.current) this.store.tell("woke", key);
    return done;
  }

  /** @param {string} key @param {string} [window] */
  merge(key, window = this.store.current) {
    return this.#chunkAct(window, key, "merge", "Merged with the chunk before it.");
  }

  /** @param {string} key @param {{title?: string, confirm?: string, text?: string}} [more] `text` goes into the input box if the server gives none back */
  async delete(key, more = {}) {
    const window = this.store.current;
    const cost = await this.attempt(() => this.api.wouldDelete(window, key));
    if (!cost) return false;
    const sure = await this.dialogs.confirm({
      title: more.title ?? "Delete this?",
      sentence: `Deletes ${extent(cost)}${cost.text ? ", and puts your text back into the input box" : ""}. It can be undone right after.`,
      confirm: more.confirm ?? "Delete", danger: true,
    });
    if (!sure) return false;
    const done = await this.attempt(() => this.api.delete(window, key));
    if (!done) return false;
    this.refresh();
    if (window === this.store.current) await this.reload();
    const text = done.text || more.text || "";
    if (text) this.giveBack(window, text);
    this.store.tell("graveyard");
    const keys = done.keys ?? cost.keys ?? [key];
    this.toasts.show(`Deleted ${extent(done)}.`, {
      label: "Undo", long: true,
      act: () => this.attempt(async () => {
        await this.api.undelete(window, keys);
        if (text && window === this.store.current) this.store.tell("taken-back", text);
        else if (text && this.preferences.draft(window) === text) this.preferences.saveDraft(window, "");
        this.refresh();
        await this.reload();
        this.store.tell("graveyard");
        this.toasts.show("Deletion undone.");
      }),
    });
    return true;
  }

  /** The last thing the user said goes back into the input box. */
  async editLast() {
    const said = this.store.live?.chunks.findLast((chunk) => chunk.turn.role === "user" && chunk.turn.window === this.store.current);
    if (!said || this.store.busy) return false;
    const { turn } = parts(said.key);
    const first = this.store.live?.chunks.find((chunk) => chunk.turn.turn_id === turn) ?? said;
    const text = this.store.live?.chunks.filter((chunk) => chunk.turn.turn_id === turn).map((chunk) => chunk.pieces.join("")).join("") ?? "";
    return this.delete(first.key, { title: "Edit your last message?", confirm: "Edit", text });
  }

  /** @param {string} key @param {Hit} [found] the search that led to it */
  async why(key, found) {
    const why = await this.attempt(() => this.api.why(this.store.current, key));
    if (why) this.store.tell("why", { ...why, found });
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

  // Settings

  /** @param {"window" | "all"} scope @param {string} name @param {SettingValue | undefined} value undefined: back to the default @param {string} [window] */
  setSetting(scope, name, value, window = this.store.current) {
    const change = async () => {
      if (scope === "all") this.store.setSettings(await this.api.changeSettings(value === undefined ? { reset: [name] } : { [name]: value }));
      else this.store.setWindow(await this.api.changeWindow(window, value === undefined ? { reset: [name] } : { settings: { [name]: value } }));
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

/** @param {WindowInfo[]} windows */
function newest(windows) {
  return windows.reduce((/** @type {WindowInfo | null} */ best, one) => (!best || one.modified > best.modified ? one : best), null);
}

/** @param {WindowInfo[]} windows */
function freeName(windows) {
  const taken = new Set(windows.map((one) => one.name));
  for (let i = 1; ; i++) {
    const name = i === 1 ? "New window" : `New window ${i}`;
    if (!taken.has(name)) return name;
  }
}
