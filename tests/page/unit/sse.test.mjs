import assert from 'node:assert/strict';
import { test } from 'node:test';

import { EventReader } from '../../../crates/server/src/page/web/sse.mjs';

const read = (...parts) => {
  const reader = new EventReader();
  return parts.flatMap((part) => reader.push(part));
};

test('events are the same wherever the network cuts them', () => {
  const stream = 'data: {"a": 1}\n\n: ping\n\nevent: x\r\ndata: two\r\ndata:lines\r\n\r\ndata: [DONE]\r\r';
  // The last blank line may be half of a pair, so it counts once more is there.
  const whole = read(stream, '\n');
  assert.deepEqual(whole, ['{"a": 1}', 'two\nlines', '[DONE]']);
  for (let at = 0; at <= stream.length; at += 1) {
    assert.deepEqual(read(stream.slice(0, at), stream.slice(at), '\n'), whole, `cut at ${at}`);
  }
  assert.deepEqual(read(...stream, '\n'), whole, 'one character at a time');
});

test('what is not whole is no event', () => {
  for (const part of ['', 'data: x', 'data: x\n', ': only a comment\n\n', 'id: 3\n\n', '\n\n\n']) {
    assert.deepEqual(read(part), [], JSON.stringify(part));
  }
});
