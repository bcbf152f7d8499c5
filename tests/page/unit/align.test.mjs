import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Aligner } from '../../../crates/server/src/page/web/align.mjs';

const token = ([text, origin]) => ({ text, origin });

/** Tokens and texts in the order they came; the pieces of each text. */
function align(...happenings) {
  const aligner = new Aligner();
  return happenings.flatMap((happening) => {
    if (Array.isArray(happening)) {
      aligner.tokens(happening.map(token));
      return [];
    }
    return [aligner.text(happening).map((p) => `${p.length}${p.origin?.[0] ?? '?'}`).join(' ')];
  });
}

test('each stretch of text is given the tokens it came from', () => {
  for (const [happenings, pieces, why] of [
    [[[['def', 'plain'], [' f', 'accepted']], 'def f'], ['3p 2a'], 'as they come'],
    [[[['de', 'plain']], 'd', [['f', 'corrected']], 'ef'], ['1p', '1p 1c'], 'text that waited for the next token'],
    [[[['<think>', 'plain'], ['\n', 'plain'], ['so', 'accepted']], 'so'], ['2a'], 'tags that are not shown'],
    [[[['a</think>', 'plain'], ['b', 'accepted']], 'a', 'b'], ['1p', '1a'], 'a tag between two texts'],
    [[[['', 'plain'], ['é', 'accepted']], 'é'], ['1a'], 'a token that was half a character'],
    [['x'], ['1?'], 'text before any token'],
    [[[['a', 'plain']], 'z', 'a'], ['1?', '1p'], 'text no token has, and on'],
    [[[['a', 'plain'], ['b', 'accepted']], ''], [''], 'no text'],
  ]) {
    assert.deepEqual(align(...happenings), pieces, why);
  }
});

test('tokens that are never shown are not kept for ever', () => {
  const long = 'x'.repeat(70000);
  assert.deepEqual(align([[long, 'plain']], 'y', [['z', 'accepted']], 'z'), ['1?', '1a']);
});
