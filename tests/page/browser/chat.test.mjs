// Talking: answers stream, are coloured and measured; they can be stopped, had again, compared.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { Answer } from '../../../crates/server/src/page/web/answer.mjs';
import { happening } from '../../../crates/server/src/page/web/ask.mjs';
import { eventsOf } from '../../../crates/server/src/page/web/sse.mjs';
import { ENDLESS, answered, brief, long, met, say, startBrowser, startServer, visit } from '../stage.mjs';

let server;
let browser;
before(async () => {
  [server, browser] = await Promise.all([startServer(), startBrowser()]);
});
after(() => Promise.all([browser?.close(), server?.stop()]));

async function* heard(body) {
  for await (const data of eventsOf(body)) if (data !== '[DONE]') yield happening(JSON.parse(data));
}

const rateOf = (page) => page.locator('.figure.speed b').textContent();

test('an answer streams, in colour, with figures beside it', async () => {
  const page = await visit(browser, server.address, { settings: { ...long, max_tokens: 200 } });
  await met(page);
  // What the text is at each change: an answer that came at once would have one.
  await page.evaluate(() => {
    window.lengths = [];
    new MutationObserver(() => window.lengths.push(document.querySelector('.side > .text')?.textContent.length ?? 0))
      .observe(document.querySelector('#turns'), { childList: true, subtree: true });
  });
  await say(page, ENDLESS);
  const text = await answered(page);
  const lengths = await page.evaluate(() => [...new Set(window.lengths)]);
  assert.ok(lengths.length > 3, `seen at lengths ${lengths}`);
  assert.ok(text.includes('def '), text);

  const spans = (kind) => page.locator(`.turn.answer .token.${kind}`);
  assert.ok((await spans('accepted').count()) > 10);
  const colour = (locator) => locator.first().evaluate((e) => getComputedStyle(e).backgroundColor);
  const [accepted, plain] = [await colour(spans('accepted')), await colour(spans('plain'))];
  assert.notEqual(accepted, plain);
  const legend = await page.locator('.legend .number').allTextContents();
  assert.equal(legend.map(Number).reduce((a, b) => a + b), 200, 'every token is one of three kinds');

  assert.ok(Number(await rateOf(page)) > 0);
  assert.ok((await page.locator('.figure.speed path.line').getAttribute('d')).length > 20);
  assert.ok((await page.locator('.figure.rounds rect.accepted').count()) > 3);
  assert.ok((await page.locator('.figure.depth rect.accepted').count()) > 0);
  assert.match(await page.locator('.figure.depth svg').getAttribute('aria-label'), /\d+ % at least 1 deep/);
  assert.match(await page.locator('.turn.answer .facts').textContent(), /^200 tokens · \d+ tokens\/s · \d+\.\d a round · \d+ % came free · seed 1/);

  await page.locator('#colours').uncheck();
  assert.equal(await colour(spans('accepted')), plain, 'without colours all tokens look alike');
  await page.over();
});

test('what the page counts while tokens come is what the server counted', async () => {
  const messages = [{ role: 'user', content: ENDLESS }];
  const body = { messages, temperature: 0, max_tokens: 200, stream: true, stream_options: { include_usage: true }, token_origins: true };
  const headers = { 'content-type': 'application/json' };
  const response = await fetch(`${server.address}/v1/chat/completions`, { method: 'POST', headers, body: JSON.stringify(body) });
  const answer = await new Answer({ seed: 0, speculative: true }).read(heard(response.body), () => {});
  assert.equal(answer.state, 'done');
  const { meter, metrics } = answer;
  assert.equal(meter.n, answer.usage.completion_tokens);
  const { acceptance_histogram: counted, tokens_per_round, num_rounds } = metrics.speculative_decoding;
  // The first token is the prompt's and no round of its own; the last round may have been cut by the limit.
  assert.ok(Math.abs(meter.rounds.length - 1 - num_rounds) <= 1, `${meter.rounds.length} and ${num_rounds} rounds`);
  const missing = counted.map((n, i) => n - (meter.histogram[i] ?? 0));
  assert.ok(missing.every((n) => n >= 0) && missing.reduce((a, b) => a + b) <= 1, `${meter.histogram} and ${counted}`);
  assert.ok(Math.abs(meter.tokensPerRound - tokens_per_round) < 0.2, `${meter.tokensPerRound} and ${tokens_per_round} tokens a round`);
});

test('several turns: what was said before is part of the question', async () => {
  const page = await visit(browser, server.address, { settings: brief });
  await met(page);
  const bodies = [];
  page.on('request', (request) => request.method() === 'POST' && bodies.push(request.postDataJSON()));
  await say(page, 'First');
  const first = await answered(page);
  await say(page, 'Second');
  await answered(page);
  assert.deepEqual(bodies[1].messages.map((m) => m.role), ['user', 'assistant', 'user']);
  assert.ok(bodies[1].messages[1].content.includes(first.trim().split('\n').at(-1)));

  await page.locator('.turn.asked').first().getByRole('button', { name: 'Edit' }).click();
  await page.getByLabel('Edited message').fill('Another first');
  await page.getByLabel('Edited message').press('Enter');
  await answered(page);
  assert.equal(await page.locator('.turn').count(), 2, 'what followed is gone');
  assert.deepEqual(bodies[2].messages, [{ role: 'user', content: 'Another first' }]);

  await page.locator('.turn.answer').getByRole('button', { name: 'Copy' }).click();
  await page.getByRole('button', { name: 'Copied' }).waitFor();
  const copied = await page.evaluate(() => navigator.clipboard.readText());
  assert.ok(copied.includes('```'), 'what is copied is the text as written, marks and all');

  await page.locator('#new-chat').click();
  assert.equal(await page.locator('.turn').count(), 0);
  assert.ok(await page.locator('#welcome').isVisible());
  await page.over();
});

test('stop keeps what came, and the server hears of it', async () => {
  const page = await visit(browser, server.address, { settings: long });
  await met(page);
  await say(page, ENDLESS);
  await page.locator('.turn.answer .token').nth(20).waitFor({ state: 'attached' });
  await page.locator('#stop').click();
  const text = await answered(page);
  assert.ok(text.length > 20);
  assert.match(await page.locator('.turn.answer .facts').textContent(), /stopped/);
  // Once more, with a seed of its own where none is set.
  await page.locator('.turn.answer').getByRole('button', { name: 'Regenerate' }).click();
  await page.locator('#stop').waitFor({ state: 'visible' });
  await page.locator('.turn.answer .token').nth(5).waitFor({ state: 'attached' });
  await page.keyboard.press('Escape');
  await answered(page);
  assert.equal(await page.locator('.turn').count(), 2);
  // For ever, if the server still wrote for nobody.
  await server.idle();
  await page.over();
});

test('with speculation off the same seed writes the same text, and a comparison says so', async () => {
  const settings = { temperature: 0.8, seed: 7, max_tokens: 96, speculative: true };
  const page = await visit(browser, server.address, { settings });
  await met(page);
  const bodies = [];
  page.on('request', (request) => request.method() === 'POST' && bodies.push(request.postDataJSON()));
  await say(page, 'Write a function to read a CSV file');
  const on = await answered(page);
  await page.locator('#new-chat').click();
  await page.getByRole('switch', { name: 'Speculation' }).uncheck();
  await say(page, 'Write a function to read a CSV file');
  const off = await answered(page);
  assert.deepEqual(bodies.map((b) => b.speculative), [true, false]);
  assert.equal(off, on);
  assert.equal(await page.locator('.turn.answer .token:not(.plain)').count(), 0, 'nothing was guessed');

  await page.locator('#new-chat').click();
  await page.getByRole('switch', { name: 'Speculation' }).check();
  await page.locator('#prompt').fill('Write a function to read a CSV file');
  await page.locator('#compare').click();
  await page.locator('.verdict', { hasText: 'token for token' }).waitFor();
  const sides = await page.locator('.compared .side > .text').allTextContents();
  assert.deepEqual(sides, [on, on]);
  assert.deepEqual(bodies.slice(2).map((b) => [b.speculative, b.seed]), [[true, 7], [false, 7]]);
  assert.match(await page.locator('.verdict').textContent(), /^\d+(\.\d)?×The same 96 tokens, token for token/);
  assert.equal(await page.locator('.figure.speed path.line').count(), 2, 'both speeds in one plot');
  await page.over();
});

test('settings are sent, and survive a reload', async () => {
  const page = await visit(browser, server.address);
  await met(page);
  await page.locator('#open-settings').click();
  const values = { Temperature: '0.5', 'Top p': '0.9', 'Top k': '40', 'Min p': '0.05', Seed: '11', 'Most tokens': '8', 'System prompt': 'Be brief' };
  for (const [label, value] of Object.entries(values)) await page.getByLabel(label, { exact: true }).fill(value);
  await page.getByRole('button', { name: 'Save' }).click();
  await page.getByRole('switch', { name: 'Speculation' }).uncheck();
  await page.locator('#colours').uncheck();
  await page.reload();
  await met(page);
  assert.equal(await page.getByRole('switch', { name: 'Speculation' }).isChecked(), false);
  assert.equal(await page.locator('#colours').isChecked(), false);
  await page.locator('#open-settings').click();
  for (const [label, value] of Object.entries(values)) assert.equal(await page.getByLabel(label, { exact: true }).inputValue(), value);
  assert.equal(await page.locator('#set-key').isVisible(), false, 'no key is asked for where none is needed');
  // What the server would refuse the form does not take.
  await page.getByLabel('Top p').fill('2');
  await page.getByRole('button', { name: 'Save' }).click();
  assert.ok(await page.locator('#settings').isVisible());
  await page.keyboard.press('Escape');
  const [request] = await Promise.all([page.waitForRequest('**/v1/chat/completions'), say(page, 'Hi')]);
  const { messages, temperature, top_p, top_k, min_p, seed, max_tokens, speculative } = request.postDataJSON();
  assert.deepEqual({ messages, temperature, top_p, top_k, min_p, seed, max_tokens, speculative }, {
    messages: [{ role: 'system', content: 'Be brief' }, { role: 'user', content: 'Hi' }],
    temperature: 0.5, top_p: 0.9, top_k: 40, min_p: 0.05, seed: 11, max_tokens: 8, speculative: false,
  });
  await answered(page);
  await page.over();
});

test('a browser that stores nothing can still talk', async () => {
  const page = await visit(browser, server.address, { without: 'localStorage' });
  await met(page);
  await say(page, 'Hi');
  assert.ok((await answered(page)).length > 0);
  await page.over();
});
