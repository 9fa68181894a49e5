import assert from "node:assert/strict";
import { test } from "node:test";

import { Store } from "../../../halo_weave/web/store.js";
import { shareOut, unpinned } from "../../../halo_weave/web/views/budget.js";
import { exactly, fit, happening, standing, resurrectedBy } from "../../../halo_weave/web/words.js";
import { chunk, context, turn } from "./wire.js";

const many = (count) => Array.from({ length: count }, (_, i) => `t${i}`);

/** A window that is called “w”, with what is live in it. */
function shown(turns, more = {}) {
  const store = new Store();
  store.setWindows([{ id: "w", name: "Window", user_name: "Ada", ai_name: "Halo" }]);
  store.show("w");
  store.setContext(context(turns, more));
  return store;
}

function shares({ live, budget, current }) {
  const newest = unpinned(live.newest(current));
  const { pinned, turn, live: other } = shareOut(budget, live.tokens, newest, live.tokens - unpinned(live.all));
  return { pinned, turn, other };
}

test("each token of the budget counts once: pinned, else this turn, else live", () => {
  const turns = (pinned) => [
    turn("1", "user", [chunk("1.0.user", 0, many(25))]), turn("2", "assistant", [chunk("2.0.assistant", 30, many(40))]),
    turn("3", "user", [chunk("3.0.user", 100, many(236), { pinned })]),
    turn("4", "assistant", [chunk("4.0.assistant", 400, many(38))]),
  ];
  assert.deepEqual(shares(shown(turns(false))), { pinned: 0, turn: 274, other: 65 });
  assert.deepEqual(shares(shown(turns(true))), { pinned: 236, turn: 38, other: 65 });
});

test("this turn is the same while it comes and after a reload", () => {
  const old = turn("1", "user", [chunk("1.0.user", 0, many(10))]);
  const said = chunk("3.0.user", 20, many(5));
  const store = shown([old]);
  assert.deepEqual(shares(store), { pinned: 0, turn: 10, other: 0 });
  const heard = { turn_id: "3", said: "2026-11-15T10:00:00Z", chunks: [said], reply_turn_id: "4", frames: 10 };
  store.apply({ id: "r-2", event: "message_stored", data: heard });
  store.apply({ id: "r-3", event: "token", data: { position: "25", text: "Mo" } });
  assert.deepEqual(shares(store), { pinned: 0, turn: 6, other: 10 });
  const generating = { turn_id: "4", position: "25", text_pieces: ["Mo"], brightness: [10_000], tool: [false] };
  assert.deepEqual(shares(shown([old, turn("3", "user", [said])], { generating })), shares(store));
});

test("what is woken from another window is not of this turn", () => {
  const other = { ...turn("7", "user", [chunk("7.0.user", 90, many(4))]), window: "other" };
  const here = turn("1", "user", [chunk("1.0.user", 0, many(3))]);
  assert.deepEqual(shares(shown([here, other])), { pinned: 0, turn: 3, other: 4 });
});

test("the reply in progress has the name of the window's AI at once", () => {
  const generating = { turn_id: "4", position: "25", text_pieces: ["Mo"], brightness: [10_000], tool: [false] };
  assert.equal(shown([], { generating }).live.draft.turn.speaker, "Halo");
});

test("only words that stand in a chunk are said to have woken it", () => {
  assert.deepEqual(standing(["mochi", "one", "busy"], "A soup of fish, on the business of cooking."), []);
  const words = ["cat", "sing", "cafe", "url", "日本"];
  assert.deepEqual(standing(words, "Cats were singing in the Café of parseURL2 in 日本語."), words);
  assert.equal(resurrectedBy({ by: "recall", part: "hit", words: ["cat", "one"] }, "The cat sat on it."), "by “cat”");
  const near = { by: "recall", part: "hit", words: ["one"], parts: { meaning: 2.1, words: 0.4, user: 3 } };
  assert.equal(resurrectedBy(near, "Sat on it."), "by meaning");
  assert.equal(resurrectedBy({ ...near, words: [], parts: { words: 1.2 } }, "Sat on it."), "by what stands near it");
  assert.equal(resurrectedBy({ by: "recall", part: "hit", words: [] }, "Sat on it."), "by meaning");
});

test("what came along with a hit has not that hit's words or fit", () => {
  for (const part of ["question", "answer", "anchor"]) {
    const detail = { by: "recall", part, words: ["mochi"], similarity: 7.7, cost: 12, parts: { words: 7.7 } };
    assert.equal(happening("resurrected", detail, "Mochi eats fish."), "Woken with its pair, cost 12 tokens");
  }
});

test("what happened is told in plain words", () => {
  const parts = { meaning: 3.31, words: 3.98, user: 0.41, time: 0.001 };
  const strong = "Strong fit: helps with a likelihood of 100 % (meaning 3.3, words 4.0, said by you 0.4)";
  assert.equal(fit(7.7, parts), strong);
  const hit = { by: "recall", part: "hit", words: [], similarity: 7.7, parts };
  const fits = "Strong fit: helps with a likelihood of 100 % (meaning 3.3, words 4.0, said by you 0.4)";
  assert.equal(happening("resurrected", hit, "Soup."), `Woken by what stands near it. ${fits}`);
  const byHand = { by: "user", part: "hit", words: [], similarity: 1, cost: 3, parts: {} };
  assert.equal(happening("resurrected", byHand, "Soup."), "Woken by you, cost 3 tokens");
  assert.equal(happening("pruned", { why: "by the user" }), "Put to sleep by you");
  assert.equal(happening("merged", { chunk_id: 1 }), "The chunk after it joined");
  assert.match(exactly("2026-11-15T10:02:03"), /10:02:03$/);
});
