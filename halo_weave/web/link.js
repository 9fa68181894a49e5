// Keeps the state in line with the server: loads it, follows its events, and begins again when the line breaks.

import { Api, ApiError } from "./api.js";
import { Store } from "./store.js";
import { Follower } from "./stream.js";

const LET_GO = 30_000; // a hidden tab lets go of its stream after this
const LOOK_AGAIN = 15_000;
const KEPT = "It is kept until you close this tab.";

export class Link {
  store = new Store();
  /** What follows the events of the window that is shown. @type {Follower | null} */
  follower = null;
  /** The context, while it is loaded. @type {Promise<void> | null} */
  #loading = null;
  #again = false;
  /** Events that came while the context was loaded. @type {StreamEvent[]} */
  #waiting = [];
  /** Status and windows, while they are looked at. @type {Promise<void> | null} */
  #refreshing = null;
  #wanted = { status: false, windows: false };
  #hidden = 0;
  #watching = 0;
  /** The question for the key, while it is asked. @type {Promise<void> | null} */
  #unlocking = null;

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
    document.addEventListener("visibilitychange", () => this.#visibility());
    addEventListener("online", () => this.follower?.retryNow());
    setInterval(() => document.hidden || this.refresh(), LOOK_AGAIN);
  }

  /** Shows the window that the address names. */
  followAddress() {}

  /** Leaves a window that does not exist any more. */
  windowGone() {}

  /** Whether the server answers and has its memory. */
  get reachable() {
    return this.store.connection.state === "online" && this.store.windowsKnown;
  }

  /** @returns {Promise<void>} */
  async start() {
    try {
      this.store.setStatus(await this.api.status());
      this.#watchModel(this.store.status?.model);
      this.store.setConnection("online");
      this.store.setSettings(await this.api.settings());
      this.store.setMe(await this.api.me());
      this.store.setWindows(await this.api.windows());
      this.followAddress();
    } catch (error) {
      if (await this.#unlocked(error)) return this.start();
      // While the model is being loaded or is missing, the status is all there is.
      if (error instanceof ApiError && error.status === 503) return this.#startLater(1500);
      this.store.setConnection("lost", Date.now() + 3000);
      return this.#startLater(3000);
    }
  }

  /** @param {number} milliseconds */
  async #startLater(milliseconds) {
    await new Promise((done) => setTimeout(done, milliseconds));
    return this.start();
  }

  /**
   * Runs an act; a refusal becomes a message.
   * @template T @param {() => Promise<T>} act @returns {Promise<T | undefined>}
   */
  async attempt(act) {
    try {
      return await act();
    } catch (error) {
      if (await this.#unlocked(error)) return this.attempt(act);
      this.toasts.show(/** @type {Error} */ (error).message, { kind: "bad" });
      return undefined;
    }
  }

  // Status and windows

  /**
   * Status and windows, quietly. One at a time, so that an older answer never replaces a newer one.
   * @param {{windows?: boolean}} [what] without the windows: the status alone
   */
  refresh({ windows = true } = {}) {
    this.#wanted = { status: true, windows: windows || this.#wanted.windows };
    this.#refreshing ??= this.#lookWhileWanted();
    return this.#refreshing;
  }

  async #lookWhileWanted() {
    while (this.#wanted.status) {
      const { windows } = this.#wanted;
      this.#wanted = { status: false, windows: false };
      await this.#look(windows);
    }
    this.#refreshing = null;
  }

  /** @param {boolean} windows */
  async #look(windows) {
    const { store } = this;
    try {
      const status = await this.api.status();
      const ready = status.model.state === "ready";
      const back = store.status?.model.state !== "ready" && ready;
      const another = ready && (back || store.status?.model.name !== status.model.name);
      store.setStatus(status);
      this.#watchModel(status.model);
      if (!this.follower && store.connection.state === "lost") store.setConnection("online");
      if (windows && store.windowsKnown) await this.#lookAtWindows();
      if (another && store.windowsKnown) store.setSettings(await this.api.settings()); // some follow the model
      if (back && store.current) this.reload();
    } catch (error) {
      const unreachable = error instanceof ApiError && error.status === 0;
      if (!this.follower && unreachable) store.setConnection("lost", Date.now() + LOOK_AGAIN);
    }
  }

  /** While a model is on its way and no events tell of it, the status does. @param {Status["model"]} [model] */
  #watchModel(model) {
    const loading = model?.state === "loading" || model?.change?.state === "loading";
    clearTimeout(this.#watching);
    const look = () => this.refresh({ windows: false });
    if (loading) this.#watching = window.setTimeout(look, this.follower ? 5000 : 1000);
  }

  async #lookAtWindows() {
    const { store } = this;
    const { windows, current } = store;
    const found = await this.api.windows();
    if (windows !== store.windows || current !== store.current) {
      this.#wanted = { status: true, windows: true }; // the answer may be older than what was done meanwhile
      return;
    }
    store.setWindows(found);
    if (current && !store.window) this.windowGone();
  }

  // The key

  /** Asks for the key when the server wants one. @param {unknown} error */
  async #unlocked(error) {
    if (!(error instanceof ApiError) || error.status !== 401) return false;
    this.#unlocking ??= this.#askKey();
    await this.#unlocking;
    return true;
  }

  async #askKey() {
    this.store.setConnection("locked");
    const wrong = this.preferences.key ? "That key is wrong, or no longer valid. " : "";
    const key = await this.dialogs.ask({
      title: "This server is locked",
      sentence: `${wrong}Enter the key it was started with, or the one that you were given. ${KEPT}`,
      label: "Key", secret: true, confirm: "Unlock", must: true,
    });
    this.preferences.key = key ?? "";
    this.#unlocking = null;
  }

  // The context and its events

  /** Another window is about to be shown, or none. */
  leave() {
    this.follower?.stop();
    this.follower = null;
    this.#waiting = [];
  }

  /** The whole context anew. Calls while one is on its way become one more; all end when the last has come. */
  reload() {
    this.#again = true;
    this.#loading ??= this.#loadWhileWanted();
    return this.#loading;
  }

  async #loadWhileWanted() {
    while (this.#again) {
      this.#again = false;
      await this.#load(this.store.current);
    }
    this.#loading = null;
    for (const event of this.#waiting.splice(0)) this.#hear(event);
  }

  /** @param {string} id */
  async #load(id) {
    if (!id) return;
    try {
      const wire = await this.api.context(id);
      if (id !== this.store.current) {
        this.#again = true;
        return;
      }
      this.store.setContext(wire);
      if (!this.follower) this.#follow(id, wire.last_event);
    } catch (error) {
      await this.#notLoaded(id, error);
    }
  }

  /** @param {string} id @param {unknown} error */
  async #notLoaded(id, error) {
    const later = (/** @type {number} */ wait) => setTimeout(() => this.store.current === id && this.reload(), wait);
    const status = error instanceof ApiError ? error.status : -1;
    if (id !== this.store.current || (await this.#unlocked(error))) this.#again = true;
    else if (status === 404) this.refresh();
    else if (status === 503) later(1500);
    else if (status === 0) {
      this.store.setConnection("lost", Date.now() + 3000);
      later(3000);
    } else this.store.tell("unloadable", /** @type {Error} */ (error).message);
  }

  /** @param {string} id @param {string} lastId */
  #follow(id, lastId) {
    this.follower?.stop();
    /** @type {Follower} */
    const follower = new Follower(
      (last, signal) => this.api.events(id, last, signal),
      (event) => follower === this.follower && this.#hear(event),
      (state) => follower === this.follower && this.#connected(state, follower),
      lastId,
    );
    this.follower = follower;
    follower.run();
  }

  /** @param {"connecting" | "online" | "lost" | "locked" | "gone"} state @param {Follower} follower */
  #connected(state, follower) {
    if (state === "gone") return this.refresh();
    if (state === "locked") return this.start();
    if (state === "connecting") return;
    const before = this.store.connection.state;
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
    if (this.store.apply(event)) this.reload();
    // What a turn did is known from its events, but not how large the memory is now and how much is to be embedded.
    if (event.event === "done") this.refresh({ windows: false });
    if (["failed", "changed", "reset", "deleted"].includes(event.event)) this.refresh();
    if (event.event === "model") this.#modelNews(event.data);
  }

  /** @param {Wire.Events["model"]} news */
  #modelNews({ state, message }) {
    if (state !== "loading" && state !== "calibrating") this.refresh({ windows: false });
    if (state === "failed") this.toasts.show(message, { kind: "bad" });
    if (state === "done") this.toasts.show(message);
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
}
