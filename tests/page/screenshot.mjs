// Makes the README's picture: the demo pair answering, then the same compared with plain decoding. Speeds are those of the
// machine it runs on; nothing in the picture is made up. `tests/page/run target/release/overdraft screenshot`

import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';

import { withPalette } from './png.mjs';
import { met, startBrowser, startServer, visit } from './stage.mjs';

const PROMPT = 'Write a function that downloads a file';
const MAX_BYTES = 200_000;

const [path] = process.argv.slice(2);
const [server, browser] = await Promise.all([startServer(), startBrowser()]);
try {
  const settings = { temperature: 0, seed: 1, max_tokens: 256 };
  const page = await visit(browser, server.address, { settings, viewport: { width: 1280, height: 860 }, colorScheme: 'light' });
  await met(page);
  const compare = async () => {
    await page.locator('#prompt').fill(PROMPT);
    await page.locator('#compare').click();
    await page.locator('.verdict', { hasText: 'token for token' }).waitFor();
  };
  // Once for the engine to learn what this machine's steps cost, as it does in use.
  await compare();
  await page.locator('#new-chat').click();
  await compare();
  await page.evaluate(() => document.activeElement.blur());
  // Two frames: one draws what is over, one brings it into view.
  await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done)))));
  const png = withPalette(await page.screenshot());
  assert.ok(png.length < MAX_BYTES, `${png.length} bytes are too many for the repository`);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, png);
  console.log(`${path}: ${png.length} bytes; ${await page.locator('.verdict p').textContent()}`);
  await page.over();
} finally {
  await browser.close();
  await server.stop();
}
