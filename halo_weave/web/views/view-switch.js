// Two views of one thing: the conversation as it was said, and the context as the model sees it.

import { h } from "../dom.js";

/** @typedef {import("./conversation.js").ConversationView} ConversationView */
/** @typedef {import("./context.js").ContextView} ContextView */

/** @type {["conversation" | "context", string, string][]} */
const VIEWS = [
  ["conversation", "Conversation", "Everything that was said in this window, in order"],
  ["context", "Context", "Exactly what the model reads now, and what is asleep in between"],
];

export class ViewSwitch {
  /**
   * @param {import("../app.js").App} app
   * @param {{conversation: ConversationView, context: ContextView}} views
   */
  constructor(app, views) {
    this.app = app;
    this.views = views;
    this.buttons = VIEWS.map(([name, text, title]) => {
      const on = { click: () => app.preferences.set("view", name) };
      return h("button", { type: "button", class: "view-button", text, title, data: { view: name }, on });
    });
    this.node = h("div", { class: "views", role: "group", "aria-label": "View" }, this.buttons);
    app.preferences.addEventListener("change", () => this.show());
    const go = (/** @type {boolean} */ glow) => (/** @type {string} */ key) =>
      requestAnimationFrame(() => this.goto(key, glow));
    app.store.on("goto", go(false));
    app.store.on("resurrected", go(true));
    this.show();
  }

  /** The view that is shown. */
  get active() {
    return this.views[this.app.preferences.values.view] ?? this.views.conversation;
  }

  show() {
    const { active } = this;
    const { conversation, context } = this.views;
    const changed = active.place.hidden || conversation.place.hidden === context.place.hidden;
    for (const one of this.buttons) {
      one.setAttribute("aria-pressed", String(one.dataset.view === this.app.preferences.values.view));
    }
    if (!changed) return;
    for (const view of [conversation, context]) {
      view.place.hidden = view !== active;
      if (view !== active) view.scroll.jump.hidden = true;
    }
    if (active === conversation) conversation.load();
    else {
      context.scroll.following = true;
      context.refresh();
    }
  }

  /**
   * Shows a chunk: in the conversation if it was said here, else in the context.
   * @param {string} key @param {boolean} glow
   */
  async goto(key, glow) {
    const { conversation, context } = this.views;
    if (this.active === context) return context.goto(key, glow);
    if (await conversation.goto(key, glow)) return;
    this.app.preferences.set("view", "context");
    context.goto(key, glow);
  }
}
