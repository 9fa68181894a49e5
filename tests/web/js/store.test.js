import assert from "node:assert/strict";
import { beforeEach, describe, test } from "node:test";

import { Store } from "../../../halo_weave/web/store.js";
import { USE, chunk, context, done, floats, turn, resurrected } from "./wire.js";

/** @type {Store} */
let store;
/** @param {string} event @param {any} data */
const apply = (event, data) => store.apply({ id: "r-2", event, data });
const text = () => store.live.all.map((one) => one.pieces.join("")).join("|");

beforeEach(() => {
  store = new Store();
  store.show("w");
  store.setContext(context([
    turn("2", "user", [chunk("2.0.user", 10, ["My", " cat"])]),
    turn("3", "assistant", [chunk("3.0.assistant", 12, ["Nice"])]),
  ]));
});

const heard = {
  turn_id: "4", reply_turn_id: "5", said: "2026-11-15T11:00:00Z", frames: 10,
  chunks: [chunk("4.0.user", 40, ["Her", " name", "?"])],
};
const wake = (...chunks) => apply("resurrected", { chunks, cost: 1, room: 500, skipped: 0 });
const sleep = (key, tokens) => {
  const chunks = [{ key, tokens, brightness: 1, why: "dimmest" }];
  return apply("pruned", { chunks, budget: 10, tokens_over_budget: 0, before_turn: false });
};
const token = (position, piece, tool = false) => ({ id: 1, position: String(position), text: piece, tool });

describe("a turn", () => {
  test("goes through its phases in order and comes to rest", () => {
    const phases = [];
    store.on("turn", () => phases.at(-1) !== store.turn.phase && phases.push(store.turn.phase));
    store.sending("Her name?");
    apply("searching", { room: 500 });
    wake(resurrected("1.0.user", 2, ["Mochi"]));
    apply("message_stored", heard);
    apply("prefill_planned", { reused: 3, restored: 1, computed: 3 });
    assert.equal(store.turn.toRead, 3);
    apply("prefill", { reused: 3, restored: 1, computed: 3, seconds: 0.1, rebuilt: "" });
    apply("token", token(43, "Mochi"));
    const mochi = [chunk("5.0.assistant", 43, ["Mochi"])];
    apply("reply_stored", { turn_id: "5", attribution: USE, sources: [], chunks: mochi });
    assert.equal(apply("done", done({ resurrected: 1 }, { live: 8 })), false);
    assert.deepEqual(phases, ["sending", "searching", "waking", "reading", "writing", "finishing", "idle"]);
  });

  test("shows the user's words only when they are stored", () => {
    store.sending("Her name?");
    apply("searching", { room: 500 });
    assert.equal(text(), "My cat|Nice");
    apply("message_stored", heard);
    assert.equal(text(), "My cat|Nice|Her name?|");
  });

  test("puts a woken chunk at its place in time, marked with its reason", () => {
    wake(resurrected("1.0.user", 2, ["Mochi"], { words: ["cat"], window: "v", window_name: "Other" }));
    assert.equal(text(), "Mochi|My cat|Nice");
    const back = store.live.find("1.0.user");
    assert.deepEqual(back.resurrected.words, ["cat"]);
    assert.equal(back.turn.window_name, "Other");
    assert.ok(back.fresh);
  });

  test("counts what sleeps and the frames while it goes on", () => {
    const { pruned_chunks } = store.stats;
    const lent = resurrected("0.0.user", 1, ["Hi"], { window: "v", pruned_here: false });
    wake(resurrected("1.0.user", 2, ["Mochi"]), lent);
    assert.equal(store.stats.pruned_chunks, pruned_chunks - 1);
    store.live.prunedAfter = { chunks: 2, tokens: 9 };
    apply("message_stored", { ...heard, frames: 77 });
    assert.equal(store.budget.frames, 77);
    assert.deepEqual(store.live.find("4.0.user").prunedBefore, { chunks: 2, tokens: 9 });
    sleep("1.0.user", 1);
    assert.equal(store.stats.pruned_chunks, pruned_chunks);
  });

  test("a chunk that wakes up parts the gap it slept in", () => {
    const after = chunk("3.0.assistant", 70, ["Nice"], { pruned_before: { chunks: 5, tokens: 50 } });
    const turns = [turn("2", "user", [chunk("2.0.user", 10, ["My"])]), turn("3", "assistant", [after])];
    store.setContext(context(turns, { pruned_after: { chunks: 1, tokens: 2 } }));
    const late = resurrected("2.4.user", 30, ["b", "c"], { pruned_before: { chunks: 1, tokens: 7 } });
    wake(late, resurrected("2.1.user", 11, ["a"]), resurrected("9.0.user", 99, ["d", "e"]));
    const gaps = Object.fromEntries(store.live.chunks.map((one) => [one.key, one.prunedBefore]));
    assert.deepEqual(gaps, {
      "2.0.user": null, "2.1.user": null, "2.4.user": { chunks: 1, tokens: 7 },
      "3.0.assistant": { chunks: 2, tokens: 40 }, "9.0.user": null,
    });
    assert.equal(store.live.prunedAfter, null);
  });

  test("tells what it did to the list of windows, the figures and the budget", () => {
    store.setWindows([{ id: "w", name: "W", live_chunks: 2, last_text: "", modified: "" }]);
    apply("searching", { room: 500 });
    apply("message_stored", heard);
    assert.ok(store.window.generating);
    assert.equal(store.window.last_text, "Her name?");
    apply("token", token(43, "Mochi"));
    const mochi = [chunk("5.0.assistant", 43, ["Mochi"])];
    apply("reply_stored", { turn_id: "5", said: "2026-11-15T11:00:09Z", attribution: USE, sources: [], chunks: mochi });
    sleep("2.0.user", 2);
    assert.equal(apply("done", done({ pruned: 1, resurrected: 0 }, { live: 5, frames: 7 })), false);
    const { live_chunks, live_tokens, pruned_chunks, generating, last_text, modified } = store.window;
    assert.deepEqual({ live_chunks, live_tokens, pruned_chunks, generating, last_text, modified }, {
      live_chunks: 3, live_tokens: 5, pruned_chunks: 1, generating: false, last_text: "Mochi",
      modified: "2026-11-15T11:00:09Z",
    });
    assert.equal(store.budget.frames, 7);
    assert.equal(store.stats.kv_reuse, 0.75);
    assert.equal(store.stats.tokens_per_second, 20);
  });

  test("turns a chunk that falls asleep into a gap", () => {
    sleep("2.0.user", 2);
    assert.equal(text(), "Nice");
    assert.deepEqual(store.live.chunks[0].prunedBefore, { chunks: 1, tokens: 2 });
    sleep("3.0.assistant", 1);
    assert.deepEqual(store.live.prunedAfter, { chunks: 2, tokens: 3 });
  });
});

describe("the stream", () => {
  test("doubles no token when events come twice", () => {
    apply("message_stored", heard);
    const twice = [token(43, "Mo"), token(44, "chi"), token(43, "Mo"), token(44, "chi")];
    for (const event of twice) assert.equal(apply("token", event), false);
    assert.equal(store.live.draft.pieces.join(""), "Mochi");
  });

  test("asks for the context when a token is missing", () => {
    apply("message_stored", heard);
    apply("token", token(43, "Mo"));
    assert.equal(apply("token", token(45, "?")), true);
  });

  test("hearing a turn twice shows it once", () => {
    apply("message_stored", heard);
    apply("token", token(43, "Mo"));
    apply("message_stored", heard);
    assert.equal(text(), "My cat|Nice|Her name?|Mo");
  });

  test("a reply in progress goes on where the context left it", () => {
    const generating = { turn_id: "5", position: "43", text_pieces: ["Mo"], brightness: [10_000], tool: [false] };
    store.setContext(context([turn("4", "user", heard.chunks)], { generating }));
    assert.equal(store.turn.phase, "writing");
    apply("token", token(43, "Mo"));
    apply("token", token(44, "chi"));
    assert.equal(store.live.draft.pieces.join(""), "Mochi");
  });

  test("positions beyond 2^53 are kept apart", () => {
    const far = 2n ** 53n;
    store.setContext(context([turn("4", "user", [{ ...chunk("4.0.user", 0, ["a"]), start: String(far) }])]));
    const later = { ...chunk("6.0.user", 0, ["b"]), start: String(far + 1n) };
    apply("message_stored", { ...heard, turn_id: "6", reply_turn_id: "7", chunks: [later] });
    assert.equal(apply("token", { ...token(0, "c"), position: String(far + 2n) }), false);
    assert.equal(apply("token", { ...token(0, "d"), position: String(far + 3n) }), false);
    assert.equal(text(), "a|b|cd");
  });

  test("reset and changed ask for the context", () => {
    for (const event of ["reset", "changed"]) assert.equal(apply(event, {}), true);
  });

  test("a turn that does not add up to what is shown asks for the context", () => {
    const end = (stats, budget = { live: 3 }) => apply("done", done(stats, budget));
    assert.equal(end({}), false);
    assert.equal(end({}, { live: 4 }), true); // another token is live
    assert.equal(end({}, { live: 2, pinned: 1 }), false);
    assert.equal(end({ resurrected: 1 }), true); // the event was missed
    assert.equal(end({ pruned: 1 }), true);
    apply("brightness", { brightness: floats([1]), attention: "" });
    assert.equal(end({}), true); // brightness of other tokens
  });

  test("what fell asleep before the user's words counts for the turn", () => {
    const chunks = [{ key: "2.0.user", tokens: 2, brightness: 1, why: "dimmest" }];
    apply("pruned", { chunks, budget: 10, tokens_over_budget: 0, before_turn: true });
    apply("searching", { room: 500 });
    assert.equal(apply("done", done({ pruned: 1 }, { live: 1 })), false);
  });

  test("an answer for another window is not shown", () => {
    store.setContext({ ...context([]), window: "other" });
    assert.equal(text(), "My cat|Nice");
  });
});

describe("brightness", () => {
  test("is given to the tokens in time order, the reply's included", () => {
    apply("message_stored", heard);
    apply("token", token(43, "Mo"));
    apply("brightness", { brightness: floats([1, 2, 3, 4, 5, 6, 7]), attention: "" });
    assert.deepEqual(store.live.all.map((one) => [...one.brightness]), [[1, 2], [3], [4, 5, 6], [7]]);
    assert.deepEqual(store.live.all.map((one) => one.peak), [2, 3, 6, 7]);
    assert.deepEqual([store.live.low, store.live.high], [1, 7]);
  });

  test("of a wrong length changes nothing and is counted", () => {
    const heardOf = [];
    store.on("brightness", () => heardOf.push(1));
    apply("brightness", { brightness: floats([1, 2, 3, 4]), attention: "" });
    assert.equal(store.live.mismatched, 1);
    assert.deepEqual(heardOf, []);
    assert.equal(store.live.chunks[0].peak, 10_000);
  });
});

test("a failure is kept as its message and ends the turn", () => {
  store.sending("x");
  let told = "";
  store.on("failed", ({ message }) => (told = message));
  apply("failed", { message: "The disk is full." });
  assert.equal(told, "The disk is full.");
  assert.equal(store.busy, false);
});

test("a reply that is not stored yet says so until it is", () => {
  const why = "This reply is not stored yet: the disk is full.";
  apply("reply_not_stored", { message: why });
  assert.equal(store.turn.notStored, why);
  apply("reply_not_stored", { message: "" });
  assert.equal(store.turn.notStored, "");
  store.setContext(context([], { reply_not_stored: why }));
  assert.equal(store.turn.notStored, why);
  assert.equal(store.busy, true); // the window takes no message until it is stored
  store.setContext(context([], { reply_not_stored: null }));
  assert.equal(store.turn.notStored, "");
  assert.equal(store.busy, false);
});

test("a window that changed takes its place in the list", () => {
  store.setWindows([{ id: "a", name: "A" }, { id: "b", name: "B" }]);
  store.setWindow({ id: "a", name: "A2" });
  assert.deepEqual(store.windows.map((one) => one.name), ["A2", "B"]);
});

describe("a thought", () => {
  const thought = (position, piece, thinks) => ({ ...token(position, piece), thought: thinks });

  test("is told apart in the reply in progress, token by token", () => {
    apply("message_stored", heard);
    apply("token", thought(43, "", false)); // a mark
    apply("token", thought(44, "Hm", true));
    apply("token", thought(45, "Mochi", false));
    assert.deepEqual(store.live.draft.pieces, ["", "Hm", "Mochi"]);
    assert.deepEqual([...store.live.draft.thinking].map(Boolean), [false, true]);
  });

  test("falls asleep into the gap before its answer, which then is known as a thought", () => {
    apply("message_stored", heard);
    apply("reply_stored", {
      attribution: USE, sources: [],
      turn_id: "5",
      chunks: [chunk("5.1.assistant", 44, ["Hm"], { thought: true }), chunk("5.0.assistant", 46, ["Mochi"])],
    });
    assert.ok(store.live.find("5.1.assistant").thought);
    sleep("5.1.assistant", 1);
    const answer = store.live.find("5.0.assistant");
    assert.deepEqual(answer.prunedBefore, { chunks: 1, tokens: 1 });
    assert.equal(answer.prunedThoughts, 1);
  });

  test("of a reply in progress is known after a reload", () => {
    const generating = {
      turn_id: "5", position: "43", text_pieces: ["", "Hm"], brightness: [1, 1],
      tool: [false, false], thought: [false, true],
    };
    store.setContext(context([], { generating }));
    assert.deepEqual(store.live.draft.thinking, [false, true]);
  });
});
