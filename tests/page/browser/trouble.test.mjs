// What goes wrong is told in words, with what to do; and it is real servers that go wrong.

import assert from 'node:assert/strict';
import { mkdtempSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, before, test } from 'node:test';

import { ENDLESS, answered, brief, long, met, say, startBrowser, startServer, visit } from '../stage.mjs';

let browser;
before(async () => {
  browser = await startBrowser();
});
after(() => browser?.close());

/** A server for one test. */
async function withServer(flags, use) {
  const server = await startServer(flags);
  try {
    await use(server);
  } finally {
    await server.stop('SIGKILL');
  }
}

const trouble = (page) => page.locator('.trouble:visible').textContent();
const refusedByServer = /Failed to load resource/;

test('a server with keys asks for one, refuses a wrong one, and answers with the right one', async () => {
  const keys = join(mkdtempSync(join(tmpdir(), 'overdraft-')), 'keys');
  writeFileSync(keys, 'the-right-key-1\n');
  await withServer({ 'api-key-file': keys }, async (server) => {
    const page = await visit(browser, server.address, { settings: brief, allowed: [refusedByServer] });
    const banner = page.locator('#banner', { hasText: 'wants an API key' });
    await banner.waitFor();
    const enter = async (key) => {
      await page.getByRole('button', { name: 'Enter a key' }).click();
      await page.getByLabel('API key').fill(key);
      await page.keyboard.press('Enter');
    };
    await say(page, 'Hi');
    await page.locator('.trouble:visible').waitFor();
    assert.match(await trouble(page), /wants an API key/);
    const refused = page.waitForResponse((r) => r.url().endsWith('/props') && r.status() === 401);
    await enter('the-wrong-key-1');
    await refused;
    await banner.waitFor();
    await enter('the-right-key-1');
    await met(page);
    await page.locator('.trouble:visible').getByRole('button', { name: 'Try again' }).click();
    assert.ok((await answered(page)).length > 0);
    await page.reload();
    await met(page);
    await page.over();
  });
});

test('a conversation beyond the context is refused with a way out', async () => {
  await withServer({ ctx: 512 }, async (server) => {
    const page = await visit(browser, server.address, { settings: brief, allowed: [refusedByServer] });
    await met(page);
    await say(page, 'word '.repeat(600));
    await page.locator('.trouble:visible').waitFor();
    assert.match(await trouble(page), /longer than the model can read.*new chat.*The server said/s);
    await page.locator('#new-chat').click();
    await say(page, 'Hi');
    await answered(page);
    await page.over();
  });
});

test('a full house says when to come back, and lets in once there is room', async () => {
  await withServer({ ctx: 16384, 'max-streams': 1, queue: 0 }, async (server) => {
    const page = await visit(browser, server.address, { settings: brief, allowed: [refusedByServer] });
    await met(page);
    const leave = new AbortController();
    // Without a limit a completion has 16 tokens, and may be over before the page has asked.
    const body = JSON.stringify({ prompt: ENDLESS, ignore_eos: true, max_tokens: 16_000, temperature: 0, stream: true });
    const holding = await fetch(`${server.address}/v1/completions`, { method: 'POST', headers: { 'content-type': 'application/json' }, body, signal: leave.signal });
    await say(page, 'Hi');
    await page.locator('.trouble:visible').waitFor();
    assert.match(await trouble(page), /The server is full.*Try again in/s);
    leave.abort();
    await holding.body.cancel().catch(() => {});
    await server.idle();
    await page.getByRole('button', { name: 'Try again' }).click();
    assert.ok((await answered(page)).length > 0);
    await page.over();
  });
});

test('a server that dies in the middle is told, what came is kept, and its return is noticed', async () => {
  const first = await startServer();
  const { port } = new URL(first.address);
  let second;
  try {
    const page = await visit(browser, first.address, { settings: long, allowed: [/./] });
    await met(page);
    await say(page, ENDLESS);
    await page.locator('.turn.answer .token').nth(20).waitFor({ state: 'attached' });
    await first.stop('SIGKILL');
    await page.locator('.trouble:visible').waitFor();
    assert.match(await trouble(page), /connection broke.*kept/s);
    assert.ok((await page.locator('.turn.answer .token').count()) > 20);
    await page.locator('#banner', { hasText: 'does not answer' }).waitFor();
    await page.getByRole('button', { name: 'Try again' }).click();
    await page.locator('.trouble', { hasText: 'The server does not answer' }).waitFor();

    second = await startServer({ port });
    await page.locator('#banner').waitFor({ state: 'hidden' });
    await page.getByRole('button', { name: 'Try again' }).click();
    await page.locator('.turn.answer .token').nth(20).waitFor({ state: 'attached' });
    // A server that is asked to stop finishes what runs, and says so to newcomers.
    const other = await visit(browser, second.address, { settings: brief, allowed: [/./] });
    await met(other);
    const stopped = second.stop('SIGTERM');
    await page.keyboard.press('Escape');
    await stopped;
    await say(other, 'Hi');
    await other.locator('.trouble:visible').waitFor();
    assert.match(await trouble(other), /being stopped|does not answer/);
    await page.context().close();
    await other.context().close();
  } finally {
    await first.stop('SIGKILL');
    await second?.stop('SIGKILL');
  }
});
