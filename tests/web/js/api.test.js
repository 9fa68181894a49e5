import assert from "node:assert/strict";
import { test } from "node:test";

import { Api, ApiError, path, withQuery } from "../../../halo_weave/web/api.js";

/** @param {Response | Error} answer @param {string} [key] */
function api(answer, key = "") {
  const sent = [];
  const send = async (address, init) => {
    sent.push({ address, ...init });
    if (answer instanceof Error) throw answer;
    return answer.clone();
  };
  return { sent, api: new Api(send, () => key) };
}

test("parts of an address are escaped", () => {
  assert.equal(path`/api/windows/${"a/../b?c"}/context`, "/api/windows/a%2F..%2Fb%3Fc/context");
  const query = { q: "a&b=c", window: undefined, limit: 5 };
  assert.equal(withQuery("/api/search", query), "/api/search?q=a%26b%3Dc&limit=5");
});

test("an error becomes its message", async () => {
  const message = "Chunk 9.0.user is not live.";
  const { api: one } = api(Response.json({ error: { code: "unknown_chunk", message } }, { status: 404 }));
  const told = (error) => error instanceof ApiError && error.code === "unknown_chunk" && error.message === message;
  await assert.rejects(one.explanation("w", "9.0.user"), told);
});

test("a server that does not answer in our words still gives a message", async () => {
  const { api: one } = api(new Response("<html>Bad gateway</html>", { status: 502 }));
  await assert.rejects(one.status(), /The server answered 502/);
  const { api: gone } = api(new TypeError("Failed to fetch"));
  await assert.rejects(gone.status(), /cannot be reached/);
});

test("the key goes along with every request, streams included", async () => {
  const { sent, api: one } = api(Response.json({}), "s".repeat(16));
  await one.status();
  await one.sendMessage("w", "hello");
  await one.events("w", "r-7", new AbortController().signal);
  assert.ok(sent.every((request) => request.headers.authorization === `Bearer ${"s".repeat(16)}`));
  assert.equal(sent[2].headers["last-event-id"], "r-7");
  assert.equal(sent[1].body, '{"text":"hello"}');
});
