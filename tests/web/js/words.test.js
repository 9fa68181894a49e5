import assert from "node:assert/strict";
import { test } from "node:test";

import { toolTokens } from "../../../halo_weave/web/live-chunks.js";
import { mistake } from "../../../halo_weave/web/views/json-field.js";
import { shareOut } from "../../../halo_weave/web/views/budget.js";
import {
  compareIds, counted, extent, happening, highlighted, size, turnSentence,
} from "../../../halo_weave/web/words.js";

const rest = {
  phase: "idle", resurrected: 0, pruned: 0, toRead: 0, tokens: 0, since: 0, command: "", tools: 0, reason: "",
  stats: {},
  failed: "", notStored: "",
};

test("the status says what is going on", () => {
  const says = (more, now = 0) => turnSentence({ ...rest, ...more }, now);
  assert.equal(says({ phase: "searching" }), "Searching memory…");
  assert.equal(says({ phase: "waking", resurrected: 3 }), "Waking 3 chunks…");
  assert.equal(says({ phase: "reading", toRead: 212 }), "Reading 212 tokens…");
  assert.equal(says({ phase: "writing", tokens: 116, since: 1000 }, 3000), "Writing… 58 tok/s");
  assert.equal(says({}), "");
});

test("numbers are said with their nouns", () => {
  assert.equal(counted(1, "chunk"), "1 chunk");
  assert.equal(extent({ turns: 2, chunks: 9, tokens: 640 }), "2 turns, 9 chunks, 640 tokens");
  assert.equal(extent({ chunks: 3, tokens: 1412 }), "3 chunks, 1,412 tokens");
  assert.equal(size(98_000_000), "98 MB");
});

test("ids are ordered as numbers of any size", () => {
  const sorted = ["9", "10", "9223372036854775806", "9223372036854775807"];
  assert.deepEqual([...sorted].reverse().sort(compareIds), sorted);
});

test("what happened to a chunk is told with its reason", () => {
  const woke = { words: ["cat"], similarity: -0.3711, cost: 44 };
  const strong = "Woken by “cat”, cost 44 tokens. Weak fit: helps with a likelihood of 69 %";
  assert.equal(happening("resurrected", woke, "My cat."), strong);
  assert.equal(happening("pruned", { brightness: 8120, why: "dimmest" }), "Fell asleep at brightness 8,120 (dimmest)");
});

test("words are highlighted as text, whatever they hold", () => {
  const pieces = [{ text: "A ", hit: false }, { text: "(cat)", hit: true }, { text: " sat", hit: false }];
  assert.deepEqual(highlighted("A (cat) sat", ["(cat)"]), pieces);
  assert.deepEqual(highlighted("abc", []), [{ text: "abc", hit: false }]);
});

test("the tokens of a tool's answer are found, and no others", () => {
  const pieces = ["Yes", ".\n", "⚙️", "【", "jq", "】", "→", " ✓", "\n", "Done"];
  assert.deepEqual(toolTokens(pieces), [false, false, true, true, true, true, true, true, false, false]);
});

test("a mistake in JSON is named by line and column", () => {
  for (const [text, line, column] of [
    ['{\n  "a": 1,\n}', 3, 1], ['{"a": }', 1, 7], ['{"a": tru}', 1, 7], ['{"a": 1', 1, 8], ["", 1, 1],
    ["[1, 2,]", 1, 7], ['{"a" 1}', 1, 6], ["[1 2]", 1, 4], ["{a: 1}", 1, 2], ["{} x", 1, 4],
    ['{\n"position 1": }', 2, 15], ["[01]", 1, 2], ['["\\x"]', 1, 2], ['{"a": [1}', 1, 9], ["]", 1, 1],
    ["[1, }", 1, 5], ["[-]", 1, 2], ["nullx", 1, 1],
  ]) {
    assert.throws(() => JSON.parse(text), SyntaxError);
    assert.equal(mistake(text), `Not valid JSON: line ${line}, column ${column}.`, text);
  }
});

test("the budget's parts add up to the room, however far the reply has come", () => {
  const budget = {
    max_context_tokens: 2000, model_context: 8192, system: 30, pinned: 70, live: 600, frames: 60, reserve: 256,
    free: 984,
  };
  for (const [live, turn] of [[670, 0], [800, 130], [2600, 400]]) {
    const shares = shareOut(budget, live, turn, 70);
    const sum = Object.values(shares).reduce((a, b) => a + b, 0);
    assert.equal(sum, Math.max(2000, live + 90), `${live}`);
    assert.ok(Object.values(shares).every((one) => one >= 0));
  }
});
