// Presets: settings and words under a name; and new windows from a preset or a character card.

import { button, fill, h, iconButton } from "../dom.js";
import { counted, label } from "../words.js";

const CARD = "A PNG or JSON as SillyTavern and others know them: its character speaks first.";
const NOTHING = "None yet. Set this window as you like it, then save that here.";
/** @type {Record<string, string>} */
const WORDS = { system_prompt: "system prompt", user_name: "your name", ai_name: "the model's name" };

export class PresetsView {
  /** @type {Preset[]} */
  #presets = [];

  /** @param {import("../app.js").App} app @param {() => string} scope the window that presets are for; "": all */
  constructor(app, scope) {
    this.app = app;
    this.scope = scope;
    this.list = h("ul", { class: "offers", "aria-label": "Presets" });
    this.node = h("section", { class: "group" }, h("h3", { text: "Presets" }), this.list,
      h("div", { class: "answers start" },
        iconButton("plus", "Save as a preset…", () => this.#save(), { text: true, class: "small" })));
  }

  async shown() {
    this.#presets = (await this.app.attempt(() => this.app.api.presets())) ?? this.#presets;
    this.#show();
  }

  #show() {
    fill(this.list, this.#presets.length ? this.#presets.map((one) => this.#item(one))
      : h("li", { class: "quiet", text: NOTHING }));
  }

  /** @param {Preset} one */
  #item(one) {
    const apply = button("Apply", () => this.#apply(one), "small");
    apply.setAttribute("aria-label", `Apply ${one.name}`);
    return h("li", { class: "offer" },
      h("div", {}, h("p", { class: "label", text: one.name }), h("p", { class: "quiet", text: presetWords(one) })),
      h("div", { class: "answers" }, apply,
        iconButton("edit", `Rename ${one.name}`, () => this.#rename(one), { class: "small", hint: "Rename" }),
        iconButton("delete", `Delete ${one.name}`, () => this.#delete(one), { class: "small", hint: "Delete" })));
  }

  async #save() {
    const { app } = this;
    const window = this.scope();
    const of = window ? "this window sets" : "holds for all windows";
    const sentence = `All that ${of}: settings, and its own system prompt and names.`;
    const name = await app.dialogs.ask({ title: "Save a preset", sentence, label: "Name", confirm: "Save", most: 100 });
    if (!name?.trim()) return;
    const known = this.#presets.some((one) => one.name === name.trim());
    const anew = { title: `Replace the preset “${name.trim()}”?`, sentence: "Its former content is lost.",
      confirm: "Replace", danger: true };
    if (known && !(await app.dialogs.confirm(anew))) return;
    const saved = await app.attempt(() => app.api.savePreset({ name: name.trim(), window: window || null }));
    if (saved) app.toasts.show(`Saved “${saved.name}”: ${presetWords(saved)}`);
    await this.shown();
  }

  /** @param {Preset} one */
  async #apply(one) {
    const { app } = this;
    const window = this.scope();
    const done = await app.attempt(() => app.api.applyPreset(one.name, window || null));
    if (!done) return;
    await app.changedSettings();
    app.toasts.show(`“${one.name}” holds in ${window ? "this window" : "all windows"} now.`);
  }

  /** @param {Preset} one */
  async #rename(one) {
    const about = { title: "Rename this preset", label: "Name", value: one.name, most: 100, confirm: "Rename" };
    const name = await this.app.dialogs.ask(about);
    if (name?.trim()) await this.app.attempt(() => this.app.api.renamePreset(one.name, name.trim()));
    await this.shown();
  }

  /** @param {Preset} one */
  async #delete(one) {
    const { app } = this;
    const gone = await app.attempt(() => app.api.deletePreset(one.name));
    await this.shown();
    if (!gone) return;
    const undo = async () => {
      await app.attempt(() => app.api.savePreset(/** @type {any} */ (gone)));
      await this.shown();
    };
    app.toasts.show(`Deleted the preset “${gone.name}”.`, { label: "Undo", long: true, act: undo });
  }
}

/** Another way to a new window: from a preset, or from a character card. @param {import("../app.js").App} app */
export async function showNewWindow(app) {
  const presets = (await app.attempt(() => app.api.presets())) ?? [];
  const from = (/** @type {Preset} */ one) => async () => {
    close();
    const made = await app.newWindow();
    if (made && (await app.attempt(() => app.api.applyPreset(one.name, made.id)))) await app.changedSettings();
  };
  const chosen = async () => {
    const card = file.files?.[0];
    close();
    if (card) await bringCard(app, card);
  };
  const accept = ".png,.json,.charx,image/png,application/json";
  const file = h("input", { type: "file", class: "sr", tabindex: "-1", accept, "aria-label": "Character card",
    on: { change: chosen } });
  const { close } = app.dialogs.sheet("New window", "small",
    h("ul", { class: "offers" },
      h("li", { class: "offer runs" },
        h("div", {}, h("p", { class: "label", text: "From a character card" }),
          h("p", { class: "quiet", text: CARD })),
        h("div", { class: "answers" }, button("Choose a card…", () => file.click(), "primary"), file)),
      presets.map((one) => {
        const take = button("Begin", from(one));
        take.setAttribute("aria-label", `Begin with ${one.name}`);
        return h("li", { class: "offer" },
          h("div", {}, h("p", { class: "label", text: one.name }), h("p", { class: "quiet", text: presetWords(one) })),
          h("div", { class: "answers" }, take));
      })));
}

/** A card becomes a window, which is opened. @param {import("../app.js").App} app @param {File} card */
async function bringCard(app, card) {
  const before = new Set(app.store.windows.map((one) => one.id));
  const brought = await app.attempt(() => app.api.import(card, () => {}));
  if (!brought) return;
  await app.refresh();
  const fresh = app.store.windows.filter((one) => !before.has(one.id));
  if (!fresh.length) {
    app.toasts.show("This card is here already: its window is in the list.");
    return;
  }
  await app.open(fresh[0].id);
  app.toasts.show(`“${fresh[0].name}” is a new window.`);
}

/** @param {Preset} preset */
function presetWords({ settings, persona }) {
  const names = [...Object.keys(settings).map(label), ...Object.keys(persona).map((one) => WORDS[one] ?? one)];
  if (!names.length) return "sets nothing: everything follows the settings for all windows.";
  const first = names.slice(0, 5).join(", ");
  return names.length > 5 ? `${first} and ${counted(names.length - 5, "more", "more")}.` : `${first}.`;
}
