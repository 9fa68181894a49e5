// Why? What is known of one chunk: how bright, since when, and all that happened to it.

import { h, iconButton, sparkline } from "../dom.js";
import { counted, exactly, fit, happening, number, parts, speakerOf } from "../words.js";

export class WhyView {
  /** @param {import("../app.js").App} app */
  constructor(app) {
    this.app = app;
    app.store.on("why", (why) => this.show(why));
  }

  /** @param {Why & {found?: Hit}} why */
  show(why) {
    const { turn, chunk, role } = parts(why.key);
    const levels = brightnessOf(why);
    const window = this.app.store.windows.find((one) => one.id === why.window)?.name ?? why.window_name ?? "another window";
    const history = [...why.history].sort((a, b) => (a.happened < b.happened ? 1 : -1));
    if (!history.some((one) => one.event === "said")) history.push({ event: "said", happened: why.said, window: why.window, detail: {} });
    const { close } = this.app.dialogs.sheet("Why?", "wide",
      h("p", { class: "quiet", text: `${speakerOf({ role, speaker: why.speaker })} · turn ${turn}, chunk ${chunk} · ${counted(why.tokens, "token")} · said ${exactly(why.said)} in “${window}”` }),
      h("blockquote", { class: "why-text", text: why.text }),
      h("p", { text: this.#sentence(why) }),
      ...(why.found ? [h("p", { class: "quiet", text: `${fit(why.found.similarity, why.found.parts)}.` })] : []),
      levels.length > 1 ? sparkline(levels, `Brightness over time, from ${number(levels[0])} to ${number(levels.at(-1))}`) : h("span", {}),
      h("h3", { text: "What happened to it" }),
      h("ol", { class: "history" }, history.map((one) => h("li", {}, h("time", { datetime: one.happened, text: exactly(one.happened) }), h("span", { text: happening(one.event, one.detail ?? {}, why.text) })))),
      h("div", { class: "answers" },
        why.live
          ? iconButton("sleep", "Put to sleep", () => { close(); this.app.sleep(why.key); }, { text: true })
          : iconButton("wake", "Wake up here, pinned", () => { close(); this.app.wake(why.key); }, { text: true, class: "primary" })));
  }

  /** @param {Why} why */
  #sentence(why) {
    const live = this.app.store.live;
    if (!why.live) {
      const slept = why.history.find((one) => one.event === "slept");
      return slept ? `Asleep since ${exactly(slept.happened)}: ${happening("slept", slept.detail).toLowerCase()}.` : "Not live in this window.";
    }
    if (why.pinned) return `Peak ${number(why.peak)}, mean ${number(why.mean)}. Pinned: it never falls asleep by itself.`;
    const dimmer = live ? live.chunks.filter((chunk) => !chunk.pinned && chunk.peak < why.peak).length : 0;
    return `Peak ${number(why.peak)}, mean ${number(why.mean)}. ${dimmer ? `${counted(dimmer, "unpinned chunk is", "unpinned chunks are")} dimmer and would sleep first.` : "No unpinned chunk is dimmer."}`;
  }
}

/** @param {Why} why @returns {number[]} */
function brightnessOf(why) {
  const levels = [...why.history].sort((a, b) => (a.happened < b.happened ? -1 : 1)).map((one) => one.detail?.peak ?? one.detail?.brightness).filter((value) => typeof value === "number");
  return why.live && typeof why.peak === "number" ? [.../** @type {number[]} */ (levels), why.peak] : /** @type {number[]} */ (levels);
}
