// The first minutes: a few messages in a window with a small budget, so that sleeping and waking are seen at once.

import { button, fill, h, iconButton } from "../dom.js";

const NAME = "First steps";
const BUDGET = { max_context_tokens: 160, min_chunk_tokens: 8, max_new_tokens: 48, keep_exchanges: 1 };
/** What is said, and what can be seen after it. @type {[string, string][]} */
const STEPS = [
  ["My cat is called Mochi, and she loves salmon.", "Tell it something worth remembering."],
  ["Tell me something about lighthouses, please.",
    "Now speak of something else. This window keeps only 160 tokens live: what is not used falls asleep and fades."],
  ["And what is chess about?", "Once more. Look how the first message fades, and at “Asleep” below."],
  ["What is my cat called, and what does she love?",
    "Now ask for it. Under the box you see what would wake up. After the answer, point at its words."],
];

export class FirstSteps {
  #step = -1;
  #window = "";

  /**
   * @param {import("../app.js").App} app @param {HTMLElement} place above the input box
   * @param {(text: string) => void} write into the box
   */
  constructor(app, place, write) {
    this.app = app;
    this.write = write;
    this.node = h("section", { class: "steps", "aria-label": NAME, hidden: true });
    place.prepend(this.node);
    app.store.on("done", () => this.#next());
    app.store.on("window", () => this.#show());
    app.store.on("first-steps", () => this.begin());
  }

  async begin() {
    const made = await this.app.attempt(() => this.app.api.createWindow({ name: NAME, settings: BUDGET }));
    if (!made) return;
    this.app.store.setWindow(made);
    this.#window = made.id;
    this.#step = 0;
    await this.app.open(made.id);
    this.#show();
  }

  #next() {
    if (this.#step < 0 || this.app.store.current !== this.#window) return;
    this.#step += 1;
    this.#show();
  }

  #end() {
    this.#step = -1;
    this.#show();
  }

  #show() {
    this.node.hidden = this.#step < 0 || this.app.store.current !== this.#window;
    if (this.node.hidden) return;
    const close = iconButton("close", "End the first steps", () => this.#end(), { class: "small" });
    const step = STEPS[this.#step];
    if (!step) return fill(this.node, h("p", { text: this.#last() }), close);
    const [said, meaning] = step;
    const fillIn = button("Write it for me", () => this.write(said), "small");
    const number = h("strong", { text: `${this.#step + 1} of ${STEPS.length}. ` });
    fill(this.node, h("p", {}, number, meaning), fillIn, close);
  }

  /** Where things are, and what to do next. */
  #last() {
    const { status } = this.app.store;
    const where = status?.memory.place ? ` Everything lies in ${status.memory.place} on this machine.` : "";
    return `That is all: nothing was lost, and it came back when you spoke of it.${where} ` +
      "A larger model answers better: click the model's name at the lower left, or run “halo-weave models”. " +
      "Other windows keep 2,000 tokens live; Settings change that.";
  }
}
