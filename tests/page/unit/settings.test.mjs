import assert from 'node:assert/strict';
import { test } from 'node:test';

import { requestOf } from '../../../crates/server/src/page/web/ask.mjs';
import { DEFAULTS, clean, fieldsOf, load, save, temperatureOf } from '../../../crates/server/src/page/web/settings.mjs';

test('what was stored and cannot be a setting is its default', () => {
  for (const stored of [null, 3, 'x', [], {}, { temperature: 'hot', top_p: 2, top_k: 1.5, seed: -1, max_tokens: 0, system: 4, speculative: 'no', thinking: 'maybe', evil: 1 }]) {
    assert.deepEqual(clean(stored), DEFAULTS, JSON.stringify(stored));
  }
  const set = { ...DEFAULTS, temperature: 0.5, seed: 7, max_tokens: null, system: 'Be brief', speculative: false, thinking: 'off' };
  assert.deepEqual(clean(set), set);
});

test('settings come back as they were stored, and a browser that stores nothing is no trouble', () => {
  const kept = new Map();
  const storage = { getItem: (k) => kept.get(k) ?? null, setItem: (k, v) => kept.set(k, v) };
  const set = { ...DEFAULTS, top_k: 5 };
  save(storage, set);
  assert.deepEqual(load(storage), set);
  const never = { getItem() { throw new Error('no'); }, setItem() { throw new Error('no'); } };
  save(never, set);
  assert.deepEqual(load(never), DEFAULTS);
  assert.deepEqual(load({ getItem: () => '{broken' }), DEFAULTS);
});

test('only what was set is sent, and always the seed', () => {
  const own = { temperature: 0.6, top_p: 0.95, top_k: 20, min_p: 0 };
  const neutral = { temperature: 1, top_p: 1, top_k: 0, min_p: 0 };
  assert.deepEqual(fieldsOf(DEFAULTS, 3, own), { seed: 3, max_tokens: 512, temperature: 0.6 });
  assert.deepEqual(fieldsOf({ ...DEFAULTS, temperature: 1, thinking: 'off', max_tokens: null }, 3, own), { seed: 3, temperature: 1, enable_thinking: false });
  assert.equal(temperatureOf(neutral), 0, 'nobody recommends anything: the likeliest token');
  assert.equal(temperatureOf(null), null);
});

test('a model without a template is asked to write on', () => {
  const question = { messages: [{ role: 'user', content: 'a' }, { role: 'assistant', content: 'b' }], fields: { seed: 1, enable_thinking: true }, speculative: false };
  const chat = requestOf({ ...question, isChat: true });
  assert.deepEqual([chat.path, chat.body.messages.length, chat.body.speculative, chat.body.token_origins], ['v1/chat/completions', 2, false, true]);
  const text = requestOf({ ...question, isChat: false });
  assert.deepEqual([text.path, text.body.prompt, 'enable_thinking' in text.body], ['v1/completions', 'ab', false]);
});
