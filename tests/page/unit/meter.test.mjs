import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Meter, acceptanceByDepth } from '../../../crates/server/src/page/web/meter.mjs';

const NAMES = { a: 'accepted', c: 'corrected', p: 'plain' };

/** `'p aac'`: chunks of tokens, 100 ms apart. */
function metered(chunks) {
  const meter = new Meter();
  chunks.split(' ').forEach((chunk, i) => meter.add([...chunk].map((c) => ({ origin: NAMES[c] })), i * 100));
  return meter;
}

test('rounds are told from how tokens came, however chunks were put together', () => {
  for (const [chunks, perRound, histogram] of [
    ['p', 1, []],
    ['p p p', 1, []],
    ['aap', 3, [0, 0, 1]],
    ['aa p', 3, [0, 0, 1]],
    ['aapac', 2.5, [0, 1, 1]],
    ['c c', 1, [2]],
    ['aaaap c p', 7 / 3, [1, 0, 0, 0, 1]],
    ['p aa', 1, []],
  ]) {
    const meter = metered(chunks);
    assert.equal(meter.tokensPerRound, perRound, chunks);
    assert.deepEqual(meter.histogram, histogram, chunks);
    assert.equal(meter.n, chunks.replaceAll(' ', '').length, chunks);
  }
});

test('rates count what came after the first arrival', () => {
  assert.equal(metered('p').rate, 0);
  assert.equal(metered('p p').rate, 10);
  assert.equal(metered('p aap aap').rate, 30);
  assert.deepEqual(metered('p p p').rates, [[200, 10]], 'too short a time says nothing');
  assert.equal(metered('').rate, 0);
  assert.equal(metered('aap').share, 2 / 3);
});

test('acceptance by depth counts rounds that held at least so deep', () => {
  assert.deepEqual(acceptanceByDepth([1, 0, 2, 1]), [0.75, 0.75, 0.25]);
  assert.deepEqual(acceptanceByDepth([]), []);
  assert.deepEqual(acceptanceByDepth([0]), []);
  assert.deepEqual(acceptanceByDepth([4]), []);
});
