// The line at an answer that tells from which memories it came: when and where they were said, and how much was used.

import { fill, h, icon, iconButton } from "../dom.js";
import { clip, counted, isHit, moment, percent, resurrectedBy } from "../words.js";
import { fitButton } from "./fit.js";
import { Prose } from "./prose.js";

const USED = 0.05;
const USED_LIVE = 0.15; // of what was live anyway: a reply always takes a little from the messages right before it
const MOST = 600; // characters of a memory
const UNKNOWN = "Still learning this model. Sources appear under later replies.";

export class SourcesView {
  #shown = "";

  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    this.node = h("div", { class: "remembered" });
  }

  /** @param {Turn} turn */
  show({ sources, turn_id }) {
    const { live, unattributed } = this.app.store;
    const unknown = unattributed.has(turn_id) && turn_id === this.app.store.newestReply;
    const shown = JSON.stringify([unknown, sources, sources?.map((one) => Boolean(live?.find(one.key)))]);
    if (shown === this.#shown) return;
    this.#shown = shown;
    if (!sources) fill(this.node, unknown ? h("p", { class: "quiet", text: UNKNOWN }) : null);
    else if (!sources.some(({ share }) => share === null) && !remembered(sources).length) fill(this.node);
    else {
      const open = this.node.querySelector("details")?.open;
      const items = sources.map((one) => this.#item(one, turn_id));
      fill(this.node, h("details", { set: { open: Boolean(open) } },
        h("summary", {}, icon("remembered"), h("span", { text: summary(sources) })), h("ul", {}, items)));
    }
  }

  /** @param {Source} one @param {string} turnId */
  #item(one, turnId) {
    const { app } = this;
    const live = app.store.live?.find(one.key);
    const { share } = one;
    const used = share === null ? "not known whether it was used"
      : share >= USED ? `used, ${percent(share)} of the answer` : "not used";
    const why = one.resurrected ? `woken ${resurrectedBy(one.resurrected, one.text)}` : "was live";
    const fits = one.resurrected && isHit(one.resurrected) ? one.resurrected.similarity : null;
    const where = one.window === app.store.current ? "" : ` in “${one.window_name || "another window"}”`;
    const about = [used, `${one.speaker}, ${moment(one.said)}${where}`, why];
    const text = h("div", { class: "remembered-text" });
    const shown = one.text.length > MOST ? `${one.text.slice(0, MOST)}…` : one.text;
    new Prose(text, () => "").show([shown], { raw: app.preferences.values.form === "raw" });
    return h("li", { class: share === null || share >= USED ? "" : "unused" },
      text, h("p", { class: "quiet", text: about.join(" · ") }, fitButton(fits, one.resurrected?.parts)),
      h("div", { class: "answers start" },
        iconButton("search", "Open", () => this.#open(one), { text: true, class: "small" }),
        live?.pinned ? null : iconButton("pin", "Pin", () => (live ? app.pin(one.key) : app.resurrect(one.key)),
          { text: true, class: "small writes" }),
        one.resurrected && iconButton("sleep", "Wrong memory", () => app.wrongMemory(one.key, turnId),
          { text: true, class: "small writes",
            hint: "Puts it to sleep, and keeps it asleep for similar questions" })));
  }

  /** Where it is live, else where it was said. @param {Source} one */
  #open({ key, window }) {
    const { store } = this.app;
    const known = store.windows.some((other) => other.id === window);
    if (store.live?.find(key) || !known) return store.tell("goto", key);
    this.app.open(window, key);
  }
}

/** Those that are worth a word. @param {Source[]} sources */
function remembered(sources) {
  return sources.filter(({ share, resurrected }) => (share ?? 0) >= (resurrected ? USED : USED_LIVE));
}

/** @param {Source[]} sources */
function summary(sources) {
  if (sources.some((one) => one.share === null)) {
    return `Woke ${counted(sources.length, "memory", "memories")}; which of them it used is not known`;
  }
  const used = remembered(sources);
  const words = used.slice(0, 2).map((one) => `“${clip(one.text, 60)}” ${percent(one.share ?? 0)}`);
  const more = used.length > 2 ? ` and ${used.length - 2} more` : "";
  return `Remembered ${words.join(", ")}${more}`;
}
