// What stands in the centre when there is no conversation to show: what is missing, and what to do.

import { button, fill, h } from "../dom.js";
import { counted, percent } from "../words.js";

const UNREACHABLE = "Start it with “halo-weave serve”. This page connects by itself as soon as it answers.";
const NO_MODEL = "Fetch one with “halo-weave pull”, or name one with “halo-weave serve --model your.gguf”.";
const WELCOME = "Open a window and write. What the model uses stays bright; what it does not use falls asleep, " +
  "and wakes up when you speak of it again.";
const FIRST_WORDS = "Everything you say is kept, and nothing leaves this machine.";

export class EmptyStateView {
  /** @param {import("../app.js").App} app @param {HTMLElement} place is marked as busy while it is loaded */
  constructor(app, place) {
    this.app = app;
    this.place = place;
    this.node = h("div", { class: "state" });
    place.prepend(this.node);
    for (const topic of ["windows", "status", "connection", "window", "live"]) app.store.on(topic, () => this.show());
    app.store.on("unloadable", (sentence) => {
      this.#say("This window could not be loaded", sentence, "Try again", () => app.reload());
    });
    this.show();
  }

  show() {
    const { app } = this;
    const { store } = app;
    const { live, current, connection, status } = store;
    const model = live ? null : status?.model;
    this.place.setAttribute("aria-busy", String(Boolean(current) && !live));
    if (connection.state === "locked") return this.#say("Locked", "The server needs its key.");
    if (!status && connection.state === "lost") return this.#say("The server cannot be reached", UNREACHABLE);
    if (model?.state === "missing") {
      const choose = button("Choose a model", () => app.store.tell("panel", "models"));
      const words = model.message || NO_MODEL;
      return this.#say("There is no model yet", words, "Try again", () => app.retryModel(), choose);
    }
    if (model?.state === "loading") return this.#say("The model is being loaded", loadingWords(model));
    if (!store.windowsKnown || (current && !live)) return this.#skeleton();
    if (!current) {
      this.#say("One endless conversation", WELCOME, "New window", () => app.newWindow());
      const steps = button("Try the one-minute demo", () => store.tell("first-steps"));
      this.node.querySelector(".empty")?.append(" ", steps);
      return;
    }
    if (!live?.all.length && !live?.prunedAfter) {
      const known = status?.memory.chunks ?? 0;
      const wakeable = `What you said in other chats is available here (${counted(known, "passage")}).`;
      return this.#say("New chat", known ? wakeable : FIRST_WORDS);
    }
    this.node.hidden = true;
  }

  /**
   * @param {string} title @param {string} sentence @param {string} [label] @param {() => void} [act]
   * @param {Node} [more]
   */
  #say(title, sentence, label, act, more) {
    this.node.hidden = false;
    fill(this.node, h("div", { class: "empty" },
      h("div", { class: "halo", "aria-hidden": "true" }), h("h2", { text: title }), h("p", { text: sentence }),
      label && act && button(label, act, "primary"), more));
  }

  #skeleton() {
    this.node.hidden = false;
    fill(this.node, h("div", { class: "skeleton", role: "status" },
      h("span", { class: "sr", text: "Loading the conversation…" }),
      [1, 2, 3, 4].map(() => h("div", { class: "bone" }))));
  }
}

/** @param {Status["model"]} model */
function loadingWords({ message, progress }) {
  return `${message || "This takes a moment."}${typeof progress === "number" ? ` ${percent(progress)}` : ""}`;
}
