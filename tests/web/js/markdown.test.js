import assert from "node:assert/strict";
import { test } from "node:test";

import { shareLevels } from "../../../halo_weave/web/colour.js";
import { ReplyAttribution } from "../../../halo_weave/web/reply-attribution.js";
import { blocksOf, openFence } from "../../../halo_weave/web/markdown.js";

/** All leaves of a text. @param {string} text @param {string} [fence] */
function leaves(text, fence) {
  const found = [];
  const walk = (node) => ("text" in node ? found.push(node) : node.children.forEach(walk));
  blocksOf(text, fence).forEach((block) => block.children.forEach(walk));
  return found;
}

const TEXTS = [
  "Plain words.", "One **bold** and *slanted* `code` word.", "# Title\n\nText below.\n\n- one\n- two\n  - three",
  "| a | b |\n| --- | --- |\n| the | the |", "> quoted *text*\n> over lines",
  "```js\nconst a = 1;\n\nlet a;\n```\nAfter a.",
  "1. first\n2. second [link](http://second.example) second", "a \\* b &amp; c", "    indented\n    code",
  "- [x] done\n- [ ] open", "the the **the** the",
];

test("every text of Markdown knows where it stands in the source", () => {
  for (const text of TEXTS) {
    for (const leaf of leaves(text)) {
      if (leaf.whole) continue;
      assert.equal(text.slice(leaf.from, leaf.from + leaf.text.length), leaf.text, JSON.stringify([text, leaf]));
    }
    const places = leaves(text).map((leaf) => leaf.from);
    assert.deepEqual(places, [...places].sort((a, b) => a - b), text);
  }
});

test("escapes and entities show what they stand for, at their place", () => {
  const found = leaves("a \\* b &amp; c");
  assert.equal(found.map((leaf) => leaf.text).join(""), "a * b & c");
  assert.deepEqual(found.filter((leaf) => leaf.whole).map((leaf) => leaf.from), [2, 7]);
});

test("markup in a text stays text, and a dangerous link is none", () => {
  const text = "<b>x</b> [y](javascript:alert(1)) [z](file:///etc/passwd) ![i](http://example.com/i.png)";
  const tags = JSON.stringify(blocksOf(text));
  assert.match(tags, /<b>x<\/b>/);
  assert.doesNotMatch(tags, /"tag":"(a|img|b)"/);
});

test("a chunk that begins within a code block is code", () => {
  const open = openFence("Look:\n```py\nx = 1\n");
  assert.equal(open, "```py");
  const [block] = blocksOf("y = 2\n```\nDone.", open);
  assert.equal(block.children[0].tag, "pre");
  assert.deepEqual(block.children[0].children, [{ text: "y = 2", from: 0 }]);
  assert.equal(openFence("y = 2\n```\nDone.", open), "");
});

test("light is scaled to the strongest source, and what is faint is dark", () => {
  assert.deepEqual([...shareLevels([1, 0.25, 0.01], 1, new Uint8Array(4))], [8, 4, 0, 0]);
  assert.deepEqual([...shareLevels([1], 0, new Uint8Array(1))], [0]);
});

test("the sources of a word are those of its tokens, the strongest first", () => {
  const chunks = [{ key: "1.0.user", start: "0", share: 0.5 }, { key: "2.0.assistant", start: "9", share: 0.3 }];
  const tokens = [[], [{ chunk: 1, offset: 2, share: 0.6 }], [{ chunk: 0, offset: 4, share: 0.9 }]];
  const light = new ReplyAttribution("100", { chunks, nothing: 0.2, tokens });
  assert.deepEqual(light.sources("100", 0, 0), []);
  assert.deepEqual(light.sources("101", 0, 1).map((one) => [one.key, one.share]),
    [["1.0.user", 0.45], ["2.0.assistant", 0.3]]);
  assert.ok(light.used && light.most > 0.89);
  assert.equal(new ReplyAttribution("0", { chunks: [], nothing: 1, tokens: [[]] }).most, 0);
});
