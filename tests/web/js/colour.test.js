import assert from "node:assert/strict";
import { test } from "node:test";

import {
  chunkLevel, decodeFloats, histogram, place, range, tokenLevel, tokenLevels,
} from "../../../halo_weave/web/colour.js";
import { floats } from "./wire.js";

test("the scale goes from the dimmest to the brightest that is live", () => {
  assert.deepEqual(range([Float32Array.of(3, -5), Float32Array.of(9)]), { low: -5, high: 9 });
  assert.equal(chunkLevel(-5, -5, 9), 0);
  assert.equal(chunkLevel(9, -5, 9), 31);
  assert.equal(place(2, -5, 9), 0.5);
});

test("when all are equal, all are bright and none has a ground", () => {
  assert.equal(chunkLevel(10_000, 10_000, 10_000), 31);
  assert.equal(tokenLevel(10_000, 10_000, 10_000), 0);
  assert.deepEqual([...tokenLevels(Float32Array.of(5, 5), 5, 5, new Uint8Array(2))], [0, 0]);
  assert.deepEqual(range([]), { low: 0, high: 0 });
});

test("only the top fifth of the range has a ground, stronger towards the top", () => {
  assert.equal(tokenLevel(80, 0, 100), 0);
  assert.equal(tokenLevel(81, 0, 100), 1);
  assert.equal(tokenLevel(90, 0, 100), 4);
  assert.equal(tokenLevel(100, 0, 100), 8);
});

test("many tokens at once get the same steps as one by one", () => {
  const values = Float32Array.from({ length: 500 }, (_, i) => 9000 + 2 * i);
  const levels = tokenLevels(values, 9000, 9998, new Uint8Array(500));
  for (let i = 0; i < 500; i++) {
    assert.ok(Math.abs(levels[i] - tokenLevel(values[i], 9000, 9998)) <= (levels[i] && 1), `${values[i]}`);
  }
  assert.equal(levels[499], 8);
  assert.equal(levels[0], 0);
});

test("floats come out of base64 as they went in", () => {
  assert.deepEqual([...decodeFloats(floats([1.5, -2, 10_000]))], [1.5, -2, 10_000]);
  assert.equal(decodeFloats("").length, 0);
});

test("a histogram counts every token once", () => {
  const bins = histogram([Float32Array.of(0, 1, 5), Float32Array.of(10)], 0, 10, 5);
  assert.deepEqual(bins, [2, 0, 1, 0, 1]);
});
