// How well a chunk fits what was said: a word, and the number when it is asked for.

import { h } from "../dom.js";
import { fit, fitWord } from "../words.js";

/**
 * A word that tells its number when it is pressed.
 * @param {number | null | undefined} similarity @param {Record<string, number>} [parts]
 */
export function fitButton(similarity, parts = {}) {
  const word = fitWord(similarity, parts);
  if (!word) return null;
  const label = `${word} fit`;
  const node = h("button", {
    type: "button", class: `fit ${word}`, text: label, title: "How well it fits. Press for the number.",
    "aria-expanded": "false",
    on: {
      click: () => {
        const open = node.getAttribute("aria-expanded") !== "true";
        node.setAttribute("aria-expanded", String(open));
        node.textContent = open ? fit(similarity, parts).toLowerCase() : label;
      },
    },
  });
  return node;
}
