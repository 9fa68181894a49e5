// What this browser remembers of the page: theme, heat, drawer, drafts. Works without storage too.

const NAME = "halo-weave";

/**
 * @typedef {object} Saved
 * @property {"auto" | "dark" | "light"} theme
 * @property {"light" | "original" | "off"} heat
 * @property {"light" | "original"} lit what heat is when it is not off
 * @property {"rendered" | "raw"} form of texts
 * @property {"off" | "on"} notify when a reply is done and the tab is hidden
 * @property {"conversation" | "context"} view of the centre
 * @property {"single" | "chunk"} keys whether single letters do something anywhere, or only on a chunk
 * @property {string} drawer
 * @property {"small" | "normal" | "large"} text
 * @property {"window" | "all"} scope whose settings are shown
 * @property {"common" | "all"} level which of them
 * @property {string} tag of the windows that are listed; "": all
 */

/** @type {Saved} */
const FIRST = {
  theme: "auto", heat: "light", lit: "light", form: "rendered", keys: "chunk", view: "conversation",
  notify: "off",
  drawer: "", text: "normal", scope: "window", level: "common", tag: "",
};

export class Preferences extends EventTarget {
  /** @type {Saved} */
  values;

  constructor() {
    super();
    this.values = saved();
    addEventListener("storage", (event) => {
      if (event.key === NAME) this.#adopt(saved());
    });
    this.show();
  }

  /** @template {keyof Saved} K @param {K} name @param {Saved[K]} value */
  set(name, value) {
    const values = { ...this.values, [name]: value };
    if (values.heat !== "off") values.lit = values.heat; // what it comes back to
    this.#adopt(values);
    write(localStorage, NAME, this.values);
  }

  /** @param {Saved} values */
  #adopt(values) {
    this.values = values;
    this.show();
    this.dispatchEvent(new Event("change"));
  }

  show() {
    const { theme, heat, text } = this.values;
    Object.assign(document.documentElement.dataset, { theme, heat, text });
  }

  /** The text not yet sent in a window. @param {string} window */
  draft(window) {
    return String(read(sessionStorage, `${NAME}-draft-${window}`)?.text ?? "");
  }

  /** @param {string} window @param {string} text */
  saveDraft(window, text) {
    write(sessionStorage, `${NAME}-draft-${window}`, text ? { text } : null);
  }

  get key() {
    return String(read(sessionStorage, `${NAME}-key`)?.key ?? "");
  }

  set key(key) {
    write(sessionStorage, `${NAME}-key`, { key });
  }
}

/** What was kept here, or the defaults. @returns {Saved} */
function saved() {
  const values = { ...FIRST, ...read(localStorage, NAME) };
  // "readable" was a name of former versions.
  if (String(values.heat) === "readable") values.heat = "light";
  if (String(values.lit) === "readable") values.lit = "light";
  return values;
}

/** @param {Storage} place @param {string} name */
function read(place, name) {
  try {
    return JSON.parse(place.getItem(name) ?? "null");
  } catch {
    return null;
  }
}

/** @param {Storage} place @param {string} name @param {unknown} value */
function write(place, name, value) {
  try {
    if (value === null) place.removeItem(name);
    else place.setItem(name, JSON.stringify(value));
  } catch {
    // A browser that keeps nothing still shows the page.
  }
}
