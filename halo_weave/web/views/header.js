// Above the conversation: its name, the brightness legend, the lost connection.

import { button, fill, h, iconButton } from "../dom.js";
import { number } from "../words.js";
import { WhereBadge } from "./engines.js";

const LEGEND = "Background: where the reply's attention goes, while it is written or when you point at it. " +
  "Bar at the edge: the chunk's rank among all live ones, 0 (falls asleep first) to 100.";
const ORIGINAL = "Text: a chunk's brightest token, from dim to gold. Ground: tokens in the top fifth. " +
  "Scaled to what is live now.";
const LOST = "The connection to the server is lost. Everything you sent is stored; " +
  "the page goes on by itself as soon as the server answers.";

export class HeaderView {
  /**
   * @param {import("../app.js").App} app @param {HTMLElement} place
   * @param {{keys: () => void, views: HTMLElement}} acts
   */
  constructor(app, place, acts) {
    this.app = app;
    const { preferences } = app;
    this.name = h("h2", { class: "window-title" });
    this.shared = h("span", { class: "badge shared-badge", hidden: true });
    this.low = h("span", {});
    this.high = h("span", {});
    this.heat = iconButton("heat", "Show brightness", () => this.toggleHeat());
    const theme = iconButton("theme", "Change the theme", () => preferences.set("theme", dark() ? "light" : "dark"));
    this.hot = h("span", { class: "legend-hot hot6" });
    this.legend = h("div", { class: "legend", role: "img" },
      this.hot, this.low, h("span", { class: "ramp" }), this.high,
      h("span", { class: "legend-tool tool", text: "tool" }));
    this.banner = h("div", { class: "banner", role: "alert", hidden: true });
    const openRail = () => document.body.classList.add("rail-open");
    place.append(
      iconButton("menu", "Windows", openRail, { class: "rail-open-button" }), this.name, this.shared,
      new WhereBadge(app).node, acts.views, this.legend,
      h("div", { class: "header-acts" },
        this.heat, theme, iconButton("keys", "Keys", acts.keys, { class: "wide-only" })));
    place.after(this.banner);
    preferences.addEventListener("change", () => this.show());
    const topics = ["windows", "window", "live", "connection", "status", "me"];
    for (const topic of topics) app.store.on(topic, () => this.show());
    app.store.on("brightness", () => this.#scale());
    this.show();
  }

  toggleHeat() {
    const { preferences } = this.app;
    preferences.set("heat", preferences.values.heat === "off" ? preferences.values.lit : "off");
  }

  #scale() {
    const { store, preferences } = this.app;
    const { live } = store;
    const original = preferences.values.heat === "original";
    const range = live?.tokens ? [number(live.low), number(live.high)] : ["dim", "bright"];
    const [low, high] = original ? range : ["0", "100"];
    const hot = original ? "top 20 %" : "this reply";
    const texts = /** @type {[HTMLElement, string][]} */ ([[this.low, low], [this.high, high], [this.hot, hot]]);
    for (const [node, text] of texts) if (node.textContent !== text) node.textContent = text;
    this.legend.title = original ? ORIGINAL : LEGEND;
    const more = "tool results are cyan";
    this.legend.setAttribute("aria-label", original
      ? `Brightness scale from ${low} to ${high}; tokens in the top 20 percent have a ground; ${more}`
      : `${LEGEND} ${more}`);
  }

  show() {
    const { store, preferences } = this.app;
    const name = store.window?.name ?? "Halo Weave";
    if (this.name.textContent !== name) this.name.textContent = name;
    document.title = store.window ? `${name} · Halo Weave` : "Halo Weave";
    const { owner = "", writable = true } = store.window ?? {};
    this.shared.hidden = !owner;
    this.shared.textContent = `of ${owner}${writable ? "" : ", to read"}`;
    this.shared.title = `${owner} shares this window with you to ${writable ? "read and write" : "read"}`;
    document.body.classList.toggle("read-only", !writable);
    document.body.classList.toggle("anothers", Boolean(owner));
    document.body.classList.toggle("guest", store.guest);
    const off = preferences.values.heat === "off";
    this.heat.setAttribute("aria-pressed", String(!off));
    this.heat.classList.toggle("on", !off);
    this.legend.hidden = off || !store.live?.tokens;
    this.#scale();
    this.#banner();
  }

  #banner() {
    const { connection, status, live } = this.app.store;
    const lost = connection.state === "lost" && status;
    const missing = status?.model.state === "missing" && live?.chunks.length;
    this.banner.hidden = !lost && !missing;
    document.body.classList.toggle("lost", connection.state === "lost");
    const retry = () => this.app.follower?.retryNow();
    if (lost) fill(this.banner, h("span", { text: LOST }), button("Try now", retry, "small"));
    else if (missing) fill(this.banner, h("span", { text: status.model.message }));
  }
}

function dark() {
  const chosen = document.documentElement.dataset.theme;
  return chosen === "dark" || (chosen !== "light" && matchMedia("(prefers-color-scheme: dark)").matches);
}
