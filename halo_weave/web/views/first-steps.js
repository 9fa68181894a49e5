// The first minutes: a prepared conversation is pruned, and what was pruned is asked for. It tells what happened.

import { button, fill, h, iconButton } from "../dom.js";
import { counted, percent } from "../words.js";

const NAME = "First steps";
const USED = 0.05; // less of an answer than this is hardly anything
const FACT = "My cat is called Mochi, and she loves salmon.";
const QUESTION = "What is my cat called, and what does she love?";
/** What was said in the window before, by the user and the model in turn. */
const PREPARED = [
  FACT,
  "Thank you for telling me.",
  "Tell me something about lighthouses, please.",
  "A lighthouse is a tower with a strong lamp. It shows ships where the coast is, and each has its own rhythm.",
  "And what is chess about?",
  "Two players move pieces on a board of 64 squares. Who attacks the other king so that it cannot escape has won.",
  "How is bread baked?",
  "Flour, water, salt and yeast become a dough. It rests, it rises, and then it bakes in a hot oven for about an hour.",
];
/**
 * The oldest goes first, so that it is known what is pruned; nothing of other windows comes in.
 * @type {Wire.OwnSettings}
 */
const SETTINGS = {
  max_context_tokens: 0, max_new_tokens: 48, min_chunk_tokens: 8, protect_recent_exchanges: 1,
  strategy: "first_in_first_out",
  memory_scope: "window", tools: "off",
};
const ROOM = 400; // tokens beyond the prepared ones, for what is asked and what returns

/** @typedef {"prepared" | "pruned" | "asked"} Step */

export class FirstSteps {
  /** @type {Step | ""} */
  #step = "";
  #window = "";
  /** The chunk that the user's fact stands in. */
  #fact = "";
  #goal = 0;
  #pruned = 0;

  /**
   * @param {import("../app.js").App} app @param {HTMLElement} place above the input box
   * @param {(text: string) => void} write into the box
   */
  constructor(app, place, write) {
    this.app = app;
    this.write = write;
    this.node = h("section", { class: "steps", "aria-label": NAME, hidden: true });
    place.prepend(this.node);
    app.store.on("done", () => this.#answered());
    app.store.on("window", () => this.#show());
    app.store.on("first-steps", () => this.begin());
  }

  async begin() {
    const { app } = this;
    const made = await app.attempt(() => app.api.createWindow({ name: NAME, settings: SETTINGS }));
    if (!made) return;
    app.store.setWindow(made);
    const turns = PREPARED.map((text, i) => ({ role: i % 2 ? "assistant" : "user", text }));
    const added = await app.attempt(() => app.api.addTurns(made.id, /** @type {any} */ (turns)));
    if (!added) return;
    this.#window = made.id;
    this.#fact = `${added.turns[0]}.0.user`;
    this.#step = "prepared";
    await app.open(made.id);
    this.#show();
  }

  /** The window is cut to half of its size, and has room again for what comes back. */
  async #prune() {
    const { app } = this;
    const id = this.#window;
    const slept = await app.attempt(async () => {
      const { size } = await app.api.context(id);
      this.#goal = Math.round(size / 2);
      await app.api.changeWindow(id, { settings: { max_context_tokens: this.#goal } });
      const { chunks } = await app.api.prune(id);
      await app.api.changeWindow(id, { settings: { max_context_tokens: size + ROOM } });
      return chunks;
    });
    if (!slept) return;
    this.#pruned = slept.length;
    this.#step = "pruned";
    await app.reload();
    this.#show();
  }

  #answered() {
    if (this.#step !== "pruned" && this.#step !== "asked") return;
    if (this.app.store.current !== this.#window) return;
    this.#step = "asked";
    this.#show();
  }

  #end() {
    this.#step = "";
    this.#show();
  }

  #show() {
    this.node.hidden = !this.#step || this.app.store.current !== this.#window;
    if (this.node.hidden) return;
    const close = iconButton("close", "End the first steps", () => this.#end(), { class: "small" });
    const say = (/** @type {string} */ number, /** @type {string} */ text, /** @type {Node[]} */ ...more) =>
      fill(this.node, h("p", {}, h("strong", { text: `${number} of 3. ` }), text), ...more, close);
    switch (this.#step) {
      case "prepared": return say("1", PREPARED_WORDS, button("Prune it", () => this.#prune(), "small"));
      case "pruned":
        return say("2", this.#prunedWords(), button("Write it for me", () => this.write(QUESTION), "small"));
      default: return say("3", `${this.#returnedWords()} ${this.#lightWords()} ${this.#where()}`);
    }
  }

  get #live() {
    return this.app.store.live?.find(this.#fact) ?? null;
  }

  /** Whether the user's own message was pruned, or what was instead. */
  #prunedWords() {
    const were = `The window was cut to ${counted(this.#goal, "token")}: ` +
      `${counted(this.#pruned, "chunk")} ${this.#pruned === 1 ? "was" : "were"} pruned`;
    if (!this.#pruned) return `Nothing was pruned: all of it fits into ${counted(this.#goal, "token")}.`;
    if (this.#live) return `${were}. Your message about the cat was not: the model still sees it. Ask for it.`;
    return `${were}, your message about the cat among them. It is dim in the Conversation view, and the model does ` +
      "not see it now. Nothing was deleted. Ask for it: under the box you see what would return.";
  }

  /** Whether it returned. */
  #returnedWords() {
    const live = this.#live;
    if (live?.resurrected) {
      return "Your message about the cat returned to its place: the model read it before it answered.";
    }
    if (live) return "Your message about the cat was in the context all the time: it had not been pruned.";
    return "Your message about the cat did not return for these words. Ask about the cat, or open the graveyard and " +
      "resurrect it there.";
  }

  /** What the answer took from it, if that is known. */
  #lightWords() {
    const { store } = this.app;
    if (!this.#live) return "";
    const light = store.attributions.get(store.newestReply);
    if (!light) return "What the answer took from it is not known: the model is not calibrated yet.";
    const share = light.attribution.chunks.find((one) => one.key === this.#fact)?.share ?? 0;
    if (share < USED) return "The answer took hardly anything from it. A larger model answers better.";
    return `${percent(share)} of the answer came from it: point at the words of the answer to see which.`;
  }

  /** Where things are, and what to do next. */
  #where() {
    const { status } = this.app.store;
    const where = status?.memory.location ? `Everything lies in ${status.memory.location} on this machine. ` : "";
    return `${where}Other windows prune what the model used least. To choose a model, click its name below.`;
  }
}

const PREPARED_WORDS = "This conversation was prepared. It begins with a message of yours about your cat. " +
  "A window keeps a limited number of tokens in the model's context. Prune this one to half of its size: here the " +
  "oldest text goes first.";
