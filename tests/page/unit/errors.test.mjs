import assert from 'node:assert/strict';
import { test } from 'node:test';

import { Trouble, inWords, refusal } from '../../../crates/server/src/page/web/errors.mjs';

test('every trouble is told in words, with what to do', () => {
  const refused = (status, code, extra = {}, retry = null) => refusal(status, { error: { code, message: 'm', ...extra } }, retry);
  for (const [trouble, title, advice] of [
    [refused(429, 'queue_full', {}, '3'), /full/, /in 3 seconds/],
    [refused(429, null), /full/, /in a moment/],
    [refused(400, 'context_length_exceeded'), /longer than the model can read/, /new chat/],
    [refused(400, null, { param: 'top_p' }), /cannot do/, /“top_p” in the settings/],
    [refused(400, null), /cannot do/, /settings/],
    [refused(401, 'invalid_api_key'), /API key/, /settings/],
    [refused(503, 'draining'), /being stopped/, /once it is back/],
    [refused(503, 'loading', {}, '2'), /loaded/, /in 2 seconds/],
    [refused(503, 'engine_stopped'), /model has stopped/, /Restart/],
    [refused(403, 'host_not_allowed'), /name in your address bar/, /--allow-host/],
    [refused(418, null), /refused/, /log/],
    [refusal(502, null, null), /refused/, /log/],
    [new Trouble('unreachable'), /does not answer/, /runs/],
    [new Trouble('cut'), /broke while/, /kept/],
    [new Trouble('failed', { code: 'engine_stopped', message: 'm' }), /model has stopped/, /Restart/],
    [new Trouble('failed', { code: 'other', message: 'm' }), /broke off/, /log/],
    [new TypeError('x is not a function'), /mistake/, /Reload/],
  ]) {
    const words = inWords(trouble);
    assert.match(words.title, title);
    assert.match(words.advice, advice);
  }
  assert.equal(inWords(refused(400, null, { param: 'seed' })).offer, 'settings');
  assert.equal(inWords(refused(400, null)).said, 'm');
});
