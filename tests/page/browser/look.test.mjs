// How it looks where it must: on a phone, in the dark, and for eyes that need contrast or rest.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { answered, brief, met, say, startBrowser, startServer, visit } from '../stage.mjs';

let server;
let browser;
before(async () => {
  [server, browser] = await Promise.all([startServer(), startBrowser()]);
});
after(() => Promise.all([browser?.close(), server?.stop()]));

const PROMPT = 'Write a main function with argparse for input and output files';

/** The welcome, an answer, a comparison, the settings: `look` is called at each. */
async function tour(page, look) {
  await met(page);
  await look('welcome');
  await say(page, PROMPT);
  await answered(page);
  await look('answer');
  await page.locator('.turn.answer').getByRole('button', { name: 'Compare' }).click();
  await page.locator('.verdict', { hasText: 'token for token' }).waitFor();
  if (await page.locator('#strip').isVisible()) await page.locator('#strip').click();
  await look('comparison');
  await page.locator('#open-settings').click();
  await look('settings');
}

/** What can be pressed, and is outside the page or smaller than the 24 pixels that WCAG 2.2 asks for. */
function hardToPress() {
  const boxOf = (e) => (e.type === 'checkbox' ? e.labels[0] : e).getBoundingClientRect();
  return [...document.querySelectorAll('button, input, textarea, select')]
    .filter((e) => e.checkVisibility())
    .map((e) => ({ what: e.id || e.textContent, box: boxOf(e) }))
    .filter(({ box }) => box.left < 0 || box.right > window.innerWidth || box.height < 24 || box.width < 24)
    .map(({ what }) => what);
}

for (const [width, height] of [[360, 640], [320, 568], [740, 360]]) {
  test(`at ${width} by ${height} pixels nothing is wider than the page, and all can be pressed`, async () => {
    const page = await visit(browser, server.address, { settings: brief, viewport: { width, height }, hasTouch: true, isMobile: true });
    await tour(page, async (where) => {
      const wide = await page.evaluate(() => ({ page: document.documentElement.scrollWidth, seen: window.innerWidth }));
      assert.deepEqual(wide, { page: width, seen: width }, where);
      assert.deepEqual(await page.evaluate(hardToPress), [], where);
    });
    await page.over();
  });
}

/** Text whose contrast to what is behind it is below 4.5, by the formula of WCAG 2. */
function faintTexts() {
  const canvas = document.createElement('canvas').getContext('2d', { willReadFrequently: true });
  const rgba = (colour) => {
    canvas.clearRect(0, 0, 1, 1);
    canvas.fillStyle = colour;
    canvas.fillRect(0, 0, 1, 1);
    return [...canvas.getImageData(0, 0, 1, 1).data];
  };
  const light = (colour) => {
    const [r, g, b] = rgba(colour).map((v) => (v / 255 <= 0.03928 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if (rgba(colour)[3] === 255) return colour;
    }
    return 'white';
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    // What is disabled may be faint.
    if (!node.data.trim() || !element.checkVisibility() || element.closest(':disabled')) continue;
    const style = getComputedStyle(element);
    const [a, b] = [light(element instanceof SVGElement ? style.fill : style.color), light(behind(element))];
    const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (contrast < 4.5) faint.push(`${contrast.toFixed(2)} ${element.className} “${node.data.slice(0, 30)}”`);
  }
  return faint;
}

for (const colorScheme of ['light', 'dark']) {
  test(`every text can be read in the ${colorScheme}`, async () => {
    const page = await visit(browser, server.address, { settings: brief, colorScheme });
    const grounds = [];
    await tour(page, async (where) => {
      assert.deepEqual(await page.evaluate(faintTexts), [], where);
      grounds.push(await page.evaluate(() => getComputedStyle(document.body).backgroundColor));
    });
    const [red] = grounds[0].match(/\d+/g).map(Number);
    assert.equal(red > 128, colorScheme === 'light', grounds[0]);
    await page.over();
  });
}

test('nothing moves for who wants it so', async () => {
  const moving = () => document.getAnimations().length;
  for (const [reducedMotion, isStill] of [['reduce', true], ['no-preference', false]]) {
    const page = await visit(browser, server.address, { settings: { ...brief, max_tokens: 2000 }, reducedMotion });
    await met(page);
    await say(page, PROMPT);
    await page.locator('.turn.answer .token').nth(5).waitFor({ state: 'attached' });
    assert.equal((await page.evaluate(moving)) === 0, isStill, reducedMotion);
    await page.over();
  }
});
