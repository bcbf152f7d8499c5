import assert from 'node:assert/strict';
import { test } from 'node:test';

import { compared, verdict } from '../../../crates/server/src/page/web/compare.mjs';

const run = (ids, rate, state = 'done') => ({ ids, state, figures: { rate } });

test('two runs are the same only token for token', () => {
  for (const [fast, plain, words] of [
    [run([1, 2, 3], 200), run([1, 2, 3], 100), /^The same 3 tokens, token for token, 2.0× as fast\.$/],
    [run([1, 2], 100), run([1, 2], 100), /as fast as without: this time guessing did not pay/],
    [run([1, 2], 80), run([1, 2], 100), /at 0\.8× the speed: this time guessing cost more/],
    [run([1, 2, 3], 200), run([1, 2], 100, 'stopped'), /^The same 2 tokens as far as both came, 2.0×/],
    [run([1, 2, 3], 200), run([1, 2], 100), /part after 2 tokens.*report/],
    [run([1, 9, 3], 200), run([1, 2, 3], 100), /part after 1 token\..*report/],
    [run([], 0, 'broken'), run([], 0), /^The same 0 tokens as far as both came\.$/],
  ]) {
    assert.match(verdict(compared(fast, plain)), words);
  }
});
