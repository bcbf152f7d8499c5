import assert from 'node:assert/strict';
import { test } from 'node:test';

import { linePath, roundBars, roundUp, shareBars, thinned } from '../../../crates/server/src/page/web/plots.mjs';

test('scales end at round numbers', () => {
  for (const [value, top] of [[0, 1], [-3, 1], [NaN, 1], [0.7, 0.8], [1, 1], [1.1, 1.5], [190, 200], [201, 300], [999, 1000], [1000, 1000], [5001, 6000]]) {
    assert.ok(Math.abs(roundUp(value) - top) < 1e-9, `${value}: ${roundUp(value)}`);
  }
});

test('lines stay in their box', () => {
  const box = { width: 100, height: 10, maxX: 50, maxY: 20 };
  assert.equal(linePath([[0, 0], [25, 10], [50, 20], [50, 99]], box), 'M0.0 10.0L50.0 5.0L100.0 0.0L100.0 0.0');
  assert.equal(linePath([], box), '');
});

test('many points become few that say the same', () => {
  const points = Array.from({ length: 1000 }, (_, i) => [i, 5]);
  const few = thinned(points, 10);
  assert.equal(few.length, 10);
  assert.ok(few.every((p) => p[1] === 5));
  assert.equal(thinned(points.slice(0, 3), 10).length, 3);
});

test('bars show the newest rounds, the tallest filling the box', () => {
  const rounds = Array.from({ length: 60 }, (_, i) => ({ accepted: i % 8, end: 'plain' }));
  const bars = roundBars(rounds, { width: 96, height: 40, n: 48 });
  assert.equal(bars.length, 48);
  assert.equal(Math.max(...bars.map((b) => b.guessed + b.own)), 40);
  assert.ok(bars.every((b) => b.x >= 0 && b.x + b.width <= 96));
  assert.deepEqual(roundBars([], { width: 96, height: 40, n: 48 }), []);
  assert.deepEqual(shareBars([1, 0.5], { width: 100, height: 20, widest: 30 }).map((b) => [b.x, b.height]), [[0, 20], [30, 10]]);
});
