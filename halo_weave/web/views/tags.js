// Tags of windows and of chunks: asked for as words separated by commas.

import { clip } from "../words.js";

const YOURS = "Separated by commas. Empty: none. They are yours: nobody else sees them.";

/**
 * @param {import("../app.js").App} app @param {string} of what it is @param {string[]} tags @param {string} [sentence]
 * @returns {Promise<string[] | null>} null: they stay as they are
 */
export async function askTags(app, of, tags, sentence = "Separated by commas. Empty: none.") {
  const value = tags.join(", ");
  const about = { title: `Tags of ${of}`, sentence, label: "Tags", value, confirm: "Save", empty: true };
  const text = await app.dialogs.ask(about);
  return text === null ? null : [...new Set(text.split(",").map((tag) => tag.trim()).filter(Boolean))];
}

/** Asks for the tags of a chunk, and keeps them. @param {import("../app.js").App} app @param {string} key */
export async function tagChunk(app, key) {
  const window = app.store.current;
  const why = await app.attempt(() => app.api.explanation(window, key));
  if (!why) return;
  const tags = await askTags(app, `“${clip(why.text, 40)}”`, why.tags, YOURS);
  if (!tags) return;
  const kept = await app.attempt(() => app.api.tagChunk(window, key, tags));
  if (!kept) return;
  const undo = () => app.attempt(() => app.api.tagChunk(window, key, why.tags));
  app.toasts.show(tagged(kept.tags), { label: "Undo", act: undo });
}

/** @param {string[]} tags */
export function tagged(tags) {
  return tags.length ? `Tagged ${tags.join(", ")}.` : "It has no tags.";
}
