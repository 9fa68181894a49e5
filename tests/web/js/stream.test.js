import assert from "node:assert/strict";
import { test } from "node:test";

import { EventParser, Follower, pause } from "../../../halo_weave/web/stream.js";

const WIRE = 'retry: 1000\n\nid: r-1\nevent: token\ndata: {"text":"Grüße 🐈"}\n\n: still here\n\n' +
  "id: r-2\r\nevent: done\r\ndata: {}\r\n\r\n";
const EVENTS = [{ id: "r-1", event: "token", data: { text: "Grüße 🐈" } }, { id: "r-2", event: "done", data: {} }];

test("events are the same wherever the stream is cut", () => {
  for (let cut = 0; cut <= WIRE.length; cut++) {
    const parser = new EventParser();
    assert.deepEqual([...parser.feed(WIRE.slice(0, cut)), ...parser.feed(WIRE.slice(cut))], EVENTS, `cut at ${cut}`);
  }
});

test("character by character too", () => {
  const parser = new EventParser();
  assert.deepEqual([...WIRE].flatMap((one) => parser.feed(one)), EVENTS);
});

test("data of several lines is joined", () => {
  assert.deepEqual(new EventParser().feed('data: [1,\ndata: 2]\n\n'), [{ id: "", event: "message", data: [1, 2] }]);
});

/** @param {string[]} texts */
const body = (text) => new Response(new Blob([text]).stream());

test("a broken connection goes on after the last event", async () => {
  const asked = [], told = [], states = [];
  const answers = [
    () => body("id: r-1\nevent: token\ndata: 1\n\nid: r-2\nevent: tok"),
    () => { throw new Error("refused"); },
    () => body("id: r-2\nevent: token\ndata: 2\n\n"),
    () => { follower.stop(); throw new Error("end"); },
  ];
  const follower = new Follower(
    async (last) => { asked.push(last); return answers.shift()(); },
    (event) => told.push(event.data),
    (state) => { states.push(state); if (state === "lost") setTimeout(() => follower.retryNow()); },
  );
  await follower.run();
  assert.deepEqual(told, [1, 2]);
  assert.deepEqual(asked, ["", "r-1", "r-1", "r-2"]);
  assert.ok(states.includes("lost") && states.includes("online"));
});

test("a refusal for want of a key is not tried again", async () => {
  const states = [];
  const refuse = async () => { throw Object.assign(new Error("no"), { status: 401 }); };
  const follower = new Follower(refuse, () => {}, (state) => states.push(state));
  await follower.run();
  assert.deepEqual(states, ["connecting", "locked"]);
});

test("pauses grow, up to a quarter of a minute", () => {
  assert.ok(pause(1) < pause(2));
  assert.equal(pause(50), 15_000);
});
