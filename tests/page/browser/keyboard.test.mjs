// Everything by keyboard, and for those who do not see the page.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { ENDLESS, answered, brief, long, met, startBrowser, startServer, visit } from '../stage.mjs';

let server;
let browser;
before(async () => {
  [server, browser] = await Promise.all([startServer(), startBrowser()]);
});
after(() => Promise.all([browser?.close(), server?.stop()]));

/** What has the focus, in words, and whether that can be seen. */
const focused = (page) => page.evaluate(() => {
  const e = document.activeElement;
  const style = getComputedStyle(e);
  const name = e.getAttribute('aria-label') ?? e.labels?.[0]?.textContent ?? e.textContent;
  return { what: e.id || name.trim(), isSeen: style.outlineStyle !== 'none' && parseFloat(style.outlineWidth) >= 2 };
});

async function tabTo(page, what, key = 'Tab') {
  const passed = [];
  for (let i = 0; i < 40; i += 1) {
    await page.keyboard.press(key);
    const at = await focused(page);
    assert.ok(at.isSeen, `the focus on ${at.what} can be seen`);
    passed.push(at.what);
    if (at.what === what) return passed;
  }
  assert.fail(`${what} is not reached by ${key}: ${passed.join(', ')}`);
}

test('a conversation without a mouse', async () => {
  const page = await visit(browser, server.address, { settings: long });
  await met(page);
  // One can write at once. Browsers act on `autofocus` when they draw, which may be behind the model's name.
  await page.locator('#prompt:focus').waitFor();
  await page.keyboard.type('Write unit tests');
  await page.keyboard.press('Shift+Enter');
  await page.keyboard.type('for a stack with push, pop and peek');
  assert.equal(await page.locator('#prompt').inputValue(), 'Write unit tests\nfor a stack with push, pop and peek');
  assert.equal(await page.locator('.turn').count(), 0, 'Shift+Enter sends nothing');
  await page.keyboard.press('Enter');
  await page.locator('.turn.answer .token').nth(5).waitFor({ state: 'attached' });
  assert.equal(await page.locator('#prompt').inputValue(), '');
  await page.keyboard.press('Enter');
  assert.equal(await page.locator('.turn.asked').count(), 1, 'nothing is sent while an answer comes');
  await page.keyboard.press('Escape');
  await answered(page);
  assert.match(await page.locator('.turn.answer .facts').textContent(), /stopped/);
  assert.equal((await focused(page)).what, 'prompt');

  // On to the controls in the order they stand, and back to the answer.
  const passed = await tabTo(page, 'send');
  assert.deepEqual(passed, ['speculative', 'compare', 'send']);
  await tabTo(page, 'speculative', 'Shift+Tab');
  await page.keyboard.press('Space');
  assert.equal(await page.getByRole('switch', { name: 'Speculation' }).isChecked(), false);
  await tabTo(page, 'Regenerate', 'Shift+Tab');
  await page.keyboard.press('Enter');
  await page.locator('#stop').waitFor({ state: 'visible' });
  await page.locator('.turn.answer .token').nth(5).waitFor({ state: 'attached' });
  assert.equal((await focused(page)).what, 'stop', 'the button is gone with the answer, the focus is not');
  await page.keyboard.press('Enter');
  await answered(page);
  assert.equal((await focused(page)).what, 'send');
  await tabTo(page, 'new-chat', 'Shift+Tab');
  await page.keyboard.press('Enter');
  assert.equal(await page.locator('.turn').count(), 0);
  assert.equal((await focused(page)).what, 'prompt');
  await page.over();
});

test('settings by keyboard; Escape there closes them and stops nothing', async () => {
  const page = await visit(browser, server.address, { settings: long });
  await met(page);
  await page.locator('#prompt').fill(ENDLESS);
  await page.keyboard.press('Enter');
  await page.locator('.turn.answer .token').nth(5).waitFor({ state: 'attached' });
  await page.locator('#open-settings').press('Enter');
  await page.getByRole('dialog', { name: 'Settings' }).waitFor();
  await tabTo(page, 'set-temperature');
  await page.keyboard.press('Escape');
  await page.getByRole('dialog', { name: 'Settings' }).waitFor({ state: 'hidden' });
  assert.ok(await page.locator('#stop').isVisible(), 'the answer goes on');
  await page.keyboard.press('Escape');
  await answered(page);
  await page.over();
});

test('every control has a name, and the answer is read aloud when it is there', async () => {
  const page = await visit(browser, server.address, { settings: brief });
  await met(page);
  await page.locator('#prompt').fill('Write a function to read a CSV file');
  await page.keyboard.press('Enter');
  const text = await answered(page);
  await page.locator('#open-settings').click();
  const nameless = await page.evaluate(() => [...document.querySelectorAll('button, input, textarea, select, summary, [tabindex="0"], svg[role=img]')]
    .filter((e) => e.checkVisibility() && !(e.getAttribute('aria-label') || e.labels?.[0]?.textContent.trim() || e.textContent.trim()))
    .map((e) => e.outerHTML.slice(0, 80)));
  // Code that scrolls has its own text as a name.
  assert.deepEqual(nameless, []);
  const live = page.locator('[aria-live=polite]');
  const aloud = await live.textContent();
  const lastLine = text.trim().split('\n').at(-1).trim();
  assert.ok(aloud.includes(lastLine) && aloud.includes('Answer complete.'), aloud);
  assert.equal(await page.locator('[aria-busy=true]').count(), 0);
  await page.over();
});
