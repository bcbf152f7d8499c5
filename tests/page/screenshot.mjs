// Makes the README's picture: the demo pair answering, with and without speculation. It is the middle one of several runs by
// the ratio of speeds, on the machine it runs on. `tests/page/run target/release/overdraft screenshot`

import assert from 'node:assert/strict';
import { mkdirSync, writeFileSync } from 'node:fs';
import { dirname } from 'node:path';

import { withPalette } from './png.mjs';
import { met, startBrowser, startServer, visit } from './stage.mjs';

const PROMPT = 'Write a function that downloads a file';
const MAX_BYTES = 200_000;
const N_RUNS = 5;

const [path] = process.argv.slice(2);
const [server, browser] = await Promise.all([startServer({}), startBrowser()]);
try {
  const settings = { temperature: 0, seed: 1, max_tokens: 512 };
  const page = await visit(browser, server.address, { settings, viewport: { width: 1280, height: 860 }, colorScheme: 'light' });
  await met(page);
  const compared = async () => {
    await page.locator('#new-chat').click();
    await page.locator('#prompt').fill(PROMPT);
    await page.locator('#compare').click();
    await page.locator('.verdict', { hasText: 'token for token' }).waitFor();
    await page.evaluate(() => document.activeElement.blur());
    // One frame draws what is over, the next brings it into view.
    await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(() => requestAnimationFrame(done)))));
    const [fast, plain] = (await page.locator('.side .rate').allTextContents()).map(Number.parseFloat);
    return { ratio: fast / plain, picture: await page.screenshot() };
  };
  // Once for the engine to learn what this machine's steps cost, as it does in use.
  await compared();
  const runs = [];
  while (runs.length < N_RUNS) runs.push(await compared());
  runs.sort((a, b) => a.ratio - b.ratio);
  const png = withPalette(runs[(N_RUNS - 1) / 2].picture);
  assert.ok(png.length < MAX_BYTES, `${png.length} bytes are too many for the repository`);
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, png);
  console.log(`${path}: ${png.length} bytes; runs: ${runs.map((run) => `${run.ratio.toFixed(2)}x`).join(', ')}`);
  await page.over();
} finally {
  await browser.close();
  await server.stop();
}
