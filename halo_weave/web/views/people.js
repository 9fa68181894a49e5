// People: who you are, what is shared with whom, and who has a key, if the server is yours.

import { fill, h, iconButton, onSubmit } from "../dom.js";
import { brief, clip } from "../words.js";

/** @typedef {Wire.Answers["GET /api/shares"]["shares"][number]} Share */
/** @typedef {Wire.Answers["GET /api/people"]["people"][number]} Person */

const ALL = "All my windows, also future ones";
const FIRST = "Once a person is added, everybody needs a key. Yours is the one that the server was started with.";
const ONCE = "This is shown once: only its hash is kept. Give it to them; they enter it when the page asks for a key.";

export class PeopleView {
  title = "People";
  /** The windows of others, as they were when all was asked for. */
  #seen = "";

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.who = h("p", {});
    this.given = h("ul", { class: "model-list", "aria-label": "What you share" });
    this.got = h("ul", { class: "model-list", "aria-label": "Shared with you" });
    this.form = new ShareForm(app, () => this.shown());
    this.sharing = h("section", { class: "group" }, h("h3", { text: "What you share" }), this.given, this.form.node);
    this.shared = h("section", { class: "group" }, h("h3", { text: "Shared with you" }), this.got);
    this.people = h("ul", { class: "model-list", "aria-label": "Who has a memory here" });
    this.name = h("input", { class: "field", "aria-label": "Name", placeholder: "Name", maxlength: "200",
      autocomplete: "off", required: true });
    this.first = h("p", { class: "quiet", text: FIRST });
    this.keys = h("section", { class: "group" }, h("h3", { text: "Who has a key" }), this.people, this.first,
      h("form", { class: "person-form", on: onSubmit(() => this.#add(this.name.value.trim())) }, this.name,
        h("button", { type: "submit", class: "button", text: "Add" })));
    this.node = h("div", { class: "drawer-body" }, this.who, this.sharing, this.shared, this.keys);
    app.store.on("me", () => this.node.isConnected && this.shown());
    app.store.on("windows", () => this.node.isConnected && this.#windows() !== this.#seen && this.shown());
  }

  async shown() {
    const { api, store } = this.app;
    const { me } = store;
    if (!me) return;
    this.#seen = this.#windows();
    this.who.textContent = me.is_owner ? `You are the ${me.name}: this server is yours.` : `You are ${me.name}.`;
    this.keys.hidden = !me.is_owner;
    this.sharing.hidden = this.shared.hidden = !me.multiple_people;
    const told = await this.app.attempt(() => Promise.all([
      me.multiple_people ? api.shares() : [], me.is_owner ? api.people() : [],
    ]));
    if (!told) return;
    const [shares, people] = told;
    this.form.offer(this.app, knownNames(me.name, shares, people));
    this.#list(this.given, shares.filter((one) => one.owner === me.name).map((one) => this.#mine(one)),
      "Nothing: only you can read what you say.");
    this.#list(this.got, shares.filter((one) => one.person === me.name).map((one) => this.#theirs(one)), "Nothing.");
    this.#list(this.people, people.map((one) => this.#person(one)), "Nobody else.");
    this.first.hidden = me.multiple_people;
  }

  /** What others share now. */
  #windows() {
    return JSON.stringify(this.app.store.windows.map((one) => [one.id, one.name, one.owner, one.writable]));
  }

  /** @param {HTMLElement} list @param {Node[]} items @param {string} none */
  #list(list, items, none) {
    const held = list.contains(document.activeElement);
    fill(list, items.length ? items : h("li", { class: "quiet", text: none }));
    if (held) /** @type {HTMLElement} */ (list.querySelector("button") ?? this.form.person).focus();
  }

  /** @param {Share} one */
  #mine(one) {
    const what = one.window ? `“${clip(one.window_name, 60)}”` : "All your windows";
    const remove = async () => {
      await this.app.attempt(() => this.app.api.unshare(one.person, one.window));
      await this.shown();
    };
    const back = named("Take back", `Do not share ${what} with ${one.person} any more`, remove);
    return item(what, `${one.person} may ${one.can_write ? "read and write" : "read"}`, back);
  }

  /** @param {Share} one */
  #theirs(one) {
    const what = one.window ? `“${clip(one.window_name, 60)}”` : "All windows";
    const there = one.window && this.app.store.windows.some((window) => window.id === one.window);
    const open = () => this.app.open(one.window);
    return item(`${what} of ${one.owner}`, one.can_write ? "to read and write" : "to read",
      there && named("Open", `Open ${what} of ${one.owner}`, open));
  }

  /** @param {Person} one */
  #person(one) {
    const since = one.revoked ? `has no key since ${brief(one.revoked)}` : `since ${brief(one.created)}`;
    const act = one.revoked ? named("New key", `A new key for ${one.name}`, () => this.#add(one.name))
      : named("Revoke", `Revoke the key of ${one.name}`, () => this.#revoke(one.name));
    return item(one.name, since, act);
  }

  /** @param {string} name */
  async #add(name) {
    if (!name) return;
    const told = await this.app.attempt(() => this.app.api.addPerson(name));
    if (!told) return;
    this.name.value = "";
    this.app.store.setMe(await this.app.api.me());
    const key = h("output", { class: "new-key", text: told.key });
    this.app.dialogs.sheet(`The key of ${clip(told.name, 60)}`, "small", h("p", { class: "sentence", text: ONCE }), key,
      h("div", { class: "answers" },
        iconButton("copy", "Copy the key", () => this.app.copy(told.key), { text: true, class: "primary" })));
  }

  /** @param {string} name */
  async #revoke(name) {
    const sure = await this.app.dialogs.confirm({
      title: `Revoke the key of ${clip(name, 60)}?`,
      sentence: "It stops working, and pages that use it are locked at once. What they said stays, and " +
        "is theirs again with a new key.",
      confirm: "Revoke", danger: true,
    });
    if (!sure) return;
    await this.app.attempt(() => this.app.api.revokePerson(name));
    await this.shown();
  }
}

/** Whom to share something with, and what they may do. */
class ShareForm {
  /** @param {import("../app.js").App} app @param {() => unknown} done @param {string} [window] the only one to share */
  constructor(app, done, window) {
    this.window = window;
    const list = `names-${Math.random().toString(36).slice(2)}`;
    this.names = h("datalist", { id: list });
    this.person = h("input", { class: "field", "aria-label": "With whom", placeholder: "With whom: their name",
      maxlength: "200", autocomplete: "off", required: true, list });
    this.what = h("select", { class: "field", "aria-label": "What" });
    this.writes = h("select", { class: "field", "aria-label": "What they may do" },
      h("option", { value: "", text: "to read" }), h("option", { value: "yes", text: "to read and write" }));
    const share = async () => {
      const person = this.person.value.trim();
      if (!person) return;
      const body = { window: window ?? this.what.value, person, can_write: Boolean(this.writes.value) };
      const made = await app.attempt(() => app.api.share(body));
      if (!made) return;
      this.person.value = "";
      const what = made.window ? `“${clip(made.window_name, 40)}”` : "all your windows";
      app.toasts.show(`${made.person} may ${made.can_write ? "read and write in" : "read"} ${what}.`);
      await done();
    };
    this.node = h("form", { class: "person-form", on: onSubmit(share) },
      window === undefined ? this.what : null, this.person, this.writes, this.names,
      h("button", { type: "submit", class: "button", text: "Share" }));
  }

  /** @param {import("../app.js").App} app @param {string[]} names */
  offer(app, names) {
    fill(this.names, names.map((value) => h("option", { value })));
    if (this.window !== undefined) return;
    const own = app.store.windows.filter((one) => !one.owner);
    const chosen = this.what.value;
    fill(this.what, h("option", { value: "", text: ALL }),
      own.map((one) => h("option", { value: one.id, text: clip(one.name, 60) })));
    this.what.value = own.some((one) => one.id === chosen) ? chosen : "";
  }
}

/** With whom one window is shared. @param {import("../app.js").App} app @param {WindowInfo} window */
export async function showSharing(app, window) {
  const list = h("ul", { class: "model-list", "aria-label": "Who may read this window" });
  const load = async () => {
    const me = app.store.me;
    const told = await app.attempt(() => Promise.all([app.api.shares(), me?.is_owner ? app.api.people() : []]));
    if (!told || !me) return;
    const [shares, people] = told;
    form.offer(app, knownNames(me.name, shares, people));
    const mine = shares.filter((one) => one.owner === me.name && (!one.window || one.window === window.id));
    fill(list, mine.map((one) => {
      const remove = async () => {
        await app.attempt(() => app.api.unshare(one.person, one.window));
        await load();
        form.person.focus();
      };
      const may = `may ${one.can_write ? "read and write" : "read"}${one.window ? "" : ", with all your windows"}`;
      const back = named("Take back", `Do not share it with ${one.person} any more`, remove);
      return item(one.person, may, one.window && back);
    }));
    if (!mine.length) list.append(h("li", { class: "quiet", text: "Nobody but you." }));
  };
  const form = new ShareForm(app, load, window.id);
  await load();
  app.dialogs.sheet(`Share “${clip(window.name, 40)}”`, "small", list, form.node);
  form.person.focus();
}

/** @param {string} me @param {Share[]} shares @param {Person[]} people */
function knownNames(me, shares, people) {
  const present = people.filter((one) => !one.revoked).map((one) => one.name);
  const all = new Set([...present, ...shares.flatMap((one) => [one.owner, one.person])]);
  return [...all].filter((name) => name !== me).sort((a, b) => a.localeCompare(b));
}

/** @param {string} title @param {string} about @param {Node | false | "" | null} act */
function item(title, about, act) {
  return h("li", { class: "model-item" },
    h("div", { class: "model-head" }, h("span", { class: "model-title", text: title }), act || null),
    h("p", { class: "quiet", text: about }));
}

/** A button whose name says more than it shows. @param {string} text @param {string} label @param {() => void} click */
function named(text, label, click) {
  return h("button", { type: "button", class: "button small", "aria-label": `${text}: ${label}`, text, on: { click } });
}
