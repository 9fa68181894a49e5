// One window out of the program: copied, or saved as a file in one of several forms.

import { button, h } from "../dom.js";

/** @type {[string, string, string][]} */
const FORMS = [
  ["markdown", "Markdown", "To read, print or paste: who said what when. One heading for each turn."],
  ["chatgpt", "ChatGPT's shape", "A JSON file with all versions, which importers of ChatGPT's export read."],
  ["halo-weave", "Halo Weave's own", "A JSON file with everything: text, tokens, brightness. It can be imported."],
];

/** @param {import("../app.js").App} app @param {WindowInfo} window */
export function showExport(app, window) {
  const copy = async () => {
    const text = await app.attempt(() => app.api.markdown(window.id));
    if (text !== undefined) await app.copy(text);
    close();
  };
  const save = (/** @type {string} */ format) => async () => {
    await app.download({ window: window.id, format });
    close();
  };
  const rows = FORMS.map(([format, name, about]) => h("li", { class: "offer" },
    h("div", {}, h("p", { class: "label", text: name }), h("p", { class: "quiet", text: about })),
    h("div", { class: "answers" },
      button("Save", save(format)), format === "markdown" && button("Copy", copy, "primary"))));
  const { dialog, close } = app.dialogs.sheet(`Export “${window.name}”`, "small", h("ul", { class: "offers" }, rows));
  for (const one of dialog.querySelectorAll(".offer")) {
    const name = one.querySelector(".label")?.textContent;
    for (const act of one.querySelectorAll("button")) act.setAttribute("aria-label", `${act.textContent} as ${name}`);
  }
}
