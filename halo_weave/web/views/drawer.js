// The right drawer: one panel at a time, sources, closed with the same button that opened it.

import { fill, h, icon, iconButton } from "../dom.js";

/** @typedef {{title: string, node: HTMLElement, shown: () => void}} Panel */

/** Where there is little room the drawer lies over the conversation. */
const over = matchMedia("(max-width: 1099px)");

export class DrawerView {
  /** @type {Map<string, Panel>} */
  #panels = new Map();

  /**
   * @param {import("../app.js").App} app @param {HTMLElement} drawer @param {HTMLElement} dock
   * @param {Record<string, () => Panel>} panels made when first opened
   */
  constructor(app, drawer, dock, panels) {
    this.app = app;
    this.drawer = drawer;
    this.makers = panels;
    this.heading = h("h2", {});
    this.body = h("div", { class: "drawer-place" });
    const close = iconButton("close", "Close the panel", () => this.toggle(this.open));
    drawer.append(h("header", { class: "drawer-head" }, this.heading, close), this.body);
    this.buttons = new Map(Object.keys(panels).map((name) => [name, this.#button(name)]));
    fill(dock, [...this.buttons.values()]);
    this.open = "";
    const before = app.preferences.values.drawer;
    this.show(before in panels && !over.matches ? before : "");
    for (const topic of ["goto", "resurrected"]) app.store.on(topic, () => over.matches && this.open && this.show(""));
    app.store.on("panel", (name) => this.open !== name && this.toggle(name));
    document.addEventListener("keydown", (event) => event.key === "Escape" && this.#escape(event));
  }

  /** The panel that is open. */
  get panel() {
    return this.#panels.get(this.open);
  }

  /** @param {string} name */
  #button(name) {
    const about = { class: "dock-button", "aria-expanded": "false", "aria-controls": this.drawer.id };
    const label = name[0].toUpperCase() + name.slice(1);
    const on = { click: () => this.toggle(name) };
    return h("button", { type: "button", ...about, on }, icon(name), h("span", { text: label }));
  }

  /**
   * Where it lies over the conversation, Esc closes it, unless there is something nearer to stop or close.
   * @param {KeyboardEvent} event
   */
  #escape(event) {
    const target = /** @type {HTMLElement} */ (event.target);
    const filled = target instanceof HTMLInputElement && target.type === "search" && target.value;
    const railOpen = document.body.classList.contains("rail-open");
    const nearer = this.app.store.busy || document.querySelector("dialog[open]") || railOpen || filled;
    if (!this.open || !over.matches || nearer || event.defaultPrevented || event.isComposing) return;
    const within = this.drawer.contains(target);
    const button = this.buttons.get(this.open);
    this.show("");
    if (within) button?.focus();
  }

  /** Whether a panel can be opened. @param {string} name @param {boolean} offered */
  offer(name, offered) {
    const button = this.buttons.get(name);
    if (button) button.hidden = !offered;
    if (!offered && this.open === name) this.show("");
  }

  /** @param {string} name */
  toggle(name) {
    this.show(this.open === name ? "" : name);
    const first = /** @type {HTMLElement | null} */ (this.drawer.querySelector("button, input, select, textarea"));
    if (this.open) first?.focus({ preventScroll: true });
    else this.buttons.get(name)?.focus();
  }

  /** @param {string} name "" closes it */
  show(name) {
    const began = performance.now();
    this.open = name;
    this.app.preferences.set("drawer", name);
    for (const [other, button] of this.buttons) button.setAttribute("aria-expanded", String(other === name));
    this.drawer.hidden = !name;
    document.body.classList.toggle("drawer-open", Boolean(name));
    if (!name) {
      fill(this.body);
      return;
    }
    let panel = this.#panels.get(name);
    if (!panel) this.#panels.set(name, (panel = this.makers[name]()));
    this.heading.textContent = panel.title;
    this.drawer.setAttribute("aria-label", panel.title);
    fill(this.body, panel.node);
    panel.shown();
    performance.measure(`open ${name}`, { start: began, end: performance.now() });
  }
}
