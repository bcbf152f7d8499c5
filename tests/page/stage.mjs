// A server with the demo pair, a headless Chromium, and pages in it that notice what they should not do.

import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { createRequire } from 'node:module';

for (const name of ['OVERDRAFT', 'OVERDRAFT_MODULES', 'CHROMIUM']) {
  assert.ok(process.env[name], `${name} is not set; tests/page/run sets it`);
}
const { chromium } = createRequire(process.env.OVERDRAFT_MODULES)('playwright-core');

/** Nothing here is timed; this only turns a page that hangs into a failure. */
const PATIENCE_MS = 120_000;

/** Guesses in every round, whatever they cost on this machine today: so tests see the same tokens come the same way. */
const ALWAYS = { 'draft-mode': 'chain', budget: 4 };

/** `flags` as an object: `{ctx: 512, 'no-cost-cache': true}`. */
export async function startServer(flags = ALWAYS) {
  const given = { port: 0, ctx: 8192, 'max-streams': 4, 'no-cost-cache': true, ...flags };
  const words = Object.entries(given).flatMap(([name, value]) => (value === true ? [`--${name}`] : [`--${name}`, String(value)]));
  const child = spawn(process.env.OVERDRAFT, ['serve', ...words], { stdio: ['ignore', 'pipe', 'pipe'] });
  let log = '';
  child.stderr.on('data', (text) => (log += text));
  let said = '';
  const address = await new Promise((resolve, reject) => {
    child.stdout.on('data', (text) => {
      said += text;
      const found = said.match(/http:\/\/\S+/);
      if (found) resolve(found[0]);
    });
    child.on('exit', (code) => reject(new Error(`the server ended with ${code}: ${log}`)));
  });
  return {
    address,
    /** Waits until no request runs. */
    async idle() {
      for (;;) {
        const metrics = await (await fetch(`${address}/metrics`)).text();
        if (/^vllm:num_requests_running\S* 0(\.0)?$/m.test(metrics)) return;
        await new Promise((later) => setTimeout(later, 50));
      }
    },
    async stop(signal = 'SIGTERM') {
      if (child.exitCode !== null || child.signalCode !== null) return;
      child.kill(signal);
      await once(child, 'exit');
    },
  };
}

export function startBrowser() {
  return chromium.launch({ executablePath: process.env.CHROMIUM, args: ['--no-sandbox'] });
}

/**
 * A page at `address`, with these settings stored before. `allowed` are console errors that belong to what is tried; `without`
 * is something that this browser refuses to name.
 */
export async function visit(browser, address, { settings = null, allowed = [], without = null, ...look } = {}) {
  const context = await browser.newContext(look);
  await context.grantPermissions(['clipboard-read', 'clipboard-write'], { origin: new URL(address).origin });
  if (settings) {
    await context.addInitScript((text) => localStorage.getItem('overdraft') ?? localStorage.setItem('overdraft', text), JSON.stringify(settings));
  }
  if (without) {
    await context.addInitScript((name) => Object.defineProperty(window, name, { get() { throw new DOMException('forbidden', 'SecurityError'); } }), without);
  }
  const page = await context.newPage();
  page.setDefaultTimeout(PATIENCE_MS);
  const [errors, requests] = [[], []];
  page.on('console', (message) => message.type() === 'error' && errors.push(message.text()));
  page.on('pageerror', (error) => errors.push(error.message));
  page.on('dialog', (dialog) => errors.push(`a dialog: ${dialog.message()}`) && dialog.dismiss());
  context.on('request', (request) => requests.push(request.url()));
  await page.goto(address);
  const over = async () => {
    const origin = new URL(address).origin;
    assert.deepEqual(requests.filter((url) => new URL(url).origin !== origin), [], 'requests that left the server');
    assert.deepEqual(errors.filter((text) => !allowed.some((pattern) => pattern.test(text))), [], 'errors in the console');
    await context.close();
  };
  return Object.assign(page, { over, requests });
}

/** Waits until the page knows the model. */
export async function met(page) {
  await page.locator('#model:not(:empty)').waitFor();
}

export async function say(page, text) {
  await page.locator('#prompt').fill(text);
  await page.locator('#prompt').press('Enter');
}

/** Waits until the answer that is under way is over, and gives its text. */
export async function answered(page) {
  await page.locator('.turn.answer').last().locator('.actions').last().waitFor({ state: 'visible' });
  await page.locator('#send').waitFor({ state: 'visible' });
  return page.locator('.turn.answer').last().locator('.side > .text').first().textContent();
}

/** Settings under which the demo model writes the same text each time, and of this length. */
export const brief = { temperature: 0, seed: 1, max_tokens: 64 };

/** A prompt whose answer does not end by itself, and one for settings that leave it the time. */
export const ENDLESS = 'Write unit tests for a stack with push, pop and peek';
export const long = { temperature: 0, seed: 1, max_tokens: null };
