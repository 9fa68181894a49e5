// Why? What is known of one chunk: how bright, since when, and all that happened to it.

import { h, iconButton, sparkline } from "../dom.js";
import { counted, exactly, fit, happening, number, parts, speakerOf } from "../words.js";
import { tagChunk, tagged } from "./tags.js";

/** @typedef {Explanation["history"]} History */

export class ExplanationView {
  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    app.store.on("explanation", (why) => this.show(why));
  }

  /** @param {Explanation & {found?: Hit}} why */
  show(why) {
    const levels = brightnessOf(why);
    const course = `Brightness over time, from ${number(levels[0])} to ${number(levels.at(-1))}`;
    const nodes = [
      h("p", { class: "quiet", text: this.#about(why) }),
      h("blockquote", { class: "why-text", text: why.text }),
      h("p", { text: this.#sentence(why) }),
      why.found && h("p", { class: "quiet", text: `${fit(why.found.similarity, why.found.parts)}.` }),
      levels.length > 1 && sparkline(levels, course),
      why.tags.length > 0 && h("p", { text: tagged(why.tags) }),
      h("h3", { text: "What happened to it" }),
      h("ol", { class: "history" }, historyOf(why).map((one) => h("li", {},
        h("time", { datetime: one.happened, text: exactly(one.happened) }),
        h("span", { text: happening(one.event, one.detail, why.text) })))),
    ].filter((node) => node instanceof Node);
    const act = () => {
      close();
      why.live ? this.app.prune(why.key) : this.app.resurrect(why.key);
    };
    const tag = () => {
      close();
      tagChunk(this.app, why.key);
    };
    const { close } = this.app.dialogs.sheet("Why?", "wide", ...nodes, h("div", { class: "answers" },
      iconButton("tag", "Tags…", tag, { text: true }),
      why.live
        ? iconButton("sleep", "Put to sleep", act, { text: true, class: "writes" })
        : iconButton("wake", "Wake up here, pinned", act, { text: true, class: "primary writes" })));
  }

  /** @param {Explanation} why */
  #about(why) {
    const { turn, chunk, role } = parts(why.key);
    const where = `said ${exactly(why.said)} in “${why.window_name || "another window"}”`;
    const speaker = speakerOf({ role, speaker: why.speaker });
    return `${speaker} · turn ${turn}, chunk ${chunk} · ${counted(why.tokens, "token")} · ${where}`;
  }

  /** @param {Explanation} why */
  #sentence(why) {
    const slept = why.history.find((one) => one.event === "pruned");
    if (!why.live && !slept) return "Not live in this window.";
    if (!why.live && slept) {
      return `Asleep since ${exactly(slept.happened)}: ${happening("pruned", slept.detail).toLowerCase()}.`;
    }
    const bright = `Peak ${number(why.peak)}, mean ${number(why.mean)}.`;
    if (why.pinned) return `${bright} Pinned: it never falls asleep.`;
    const chunks = this.app.store.live?.chunks ?? [];
    const dimmer = chunks.filter((chunk) => !chunk.pinned && chunk.peak < (why.peak ?? 0)).length;
    if (!dimmer) return `${bright} No unpinned chunk is dimmer.`;
    return `${bright} ${counted(dimmer, "unpinned chunk is", "unpinned chunks are")} dimmer and would sleep first.`;
  }
}

/**
 * The newest first, down to when it was said.
 * @param {Explanation} why @returns {Omit<History[number], "window_name">[]}
 */
function historyOf({ history, said, window }) {
  const sorted = [...history].sort((a, b) => (a.happened < b.happened ? 1 : -1));
  if (sorted.some((one) => one.event === "said")) return sorted;
  return [...sorted, { event: "said", happened: said, window, detail: {} }];
}

/** How bright it was at each time that is known, and is now. @param {Explanation} why @returns {number[]} */
function brightnessOf(why) {
  const levels = historyOf(why).map(({ detail }) => detail.peak ?? detail.brightness).reverse();
  if (why.live) levels.push(why.peak);
  return levels.filter((value) => typeof value === "number");
}
