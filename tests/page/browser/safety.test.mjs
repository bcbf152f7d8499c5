// What a model writes stays text, and the page speaks with its own server only.

import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';

import { answered, brief, met, say, startBrowser, startServer, visit } from '../stage.mjs';

let server;
let browser;
before(async () => {
  [server, browser] = await Promise.all([startServer(), startBrowser()]);
});
after(() => Promise.all([browser?.close(), server?.stop()]));

const HOSTILE = [
  '<script>window.hit = 1</script>',
  '<img src=x onerror="window.hit = 2">',
  '<svg onload="window.hit = 3"><iframe srcdoc="<script>parent.hit = 4</script>"></iframe>',
  '[click](javascript:window.hit=5) ![i](https://elsewhere.example/i.png)',
  '`<b>` **<i onclick=alert(1)>** *<u>*',
  '# <h1><style>*{display:none}</style>',
  '- <a href="https://elsewhere.example">x</a>',
  '```<script>\n</code></pre><script>window.hit = 6</script>\n```',
].join('\n\n');

/** A stream as the server writes it, with a text of ours. */
function streamOf(pieces) {
  const chunk = (choice, more = {}) => `data: ${JSON.stringify({ choices: choice ? [{ index: 0, ...choice }] : [], ...more })}\n\n`;
  const text = pieces.map(([field, words], i) => chunk({
    delta: { [field]: words },
    token_origins: [{ text: words, origin: ['plain', 'accepted', 'corrected'][i % 3], id: i }],
  }));
  return [...text, chunk({ delta: {}, finish_reason: 'stop' }), chunk(null, { usage: { completion_tokens: pieces.length } }), 'data: [DONE]\n\n'].join('');
}

const elements = (page) => page.evaluate(() =>
  [...new Set([...document.querySelectorAll('.turn *')].map((e) => e.localName))].sort());

test('hostile text in question, answer and reasoning is shown, not obeyed', async () => {
  const page = await visit(browser, server.address, { settings: brief });
  await met(page);
  // In pieces that cut tags and marks anywhere.
  const cut = (text) => text.match(/.{1,7}/gs);
  await page.route('**/v1/chat/completions', (route) => route.fulfill({
    contentType: 'text/event-stream',
    body: streamOf([...cut(HOSTILE).map((t) => ['reasoning_content', t]), ...cut(HOSTILE).map((t) => ['content', t])]),
  }));
  await say(page, HOSTILE);
  const shown = await answered(page);
  for (const line of ['<script>window.hit = 1</script>', '<img src=x onerror="window.hit = 2">', '</code></pre><script>window.hit = 6</script>', '(javascript:window.hit=5)']) {
    assert.ok(shown.includes(line), `${line} in ${shown}`);
    assert.ok((await page.locator('.turn.asked').textContent()).includes(line), line);
    assert.ok((await page.locator('.reasoning').textContent()).includes(line), line);
  }
  assert.equal(await page.locator('.reasoning').evaluate((e) => e.open), false, 'reasoning is folded');
  const known = ['b', 'br', 'button', 'code', 'details', 'div', 'em', 'figcaption', 'figure', 'h3', 'header', 'p', 'pre', 'section', 'span', 'strong', 'summary'];
  assert.deepEqual((await elements(page)).filter((name) => !known.includes(name)), []);
  assert.equal(await page.evaluate(() => window.hit), undefined);
  await page.over();
});

test('what the demo model echoes is shown as it is', async () => {
  const page = await visit(browser, server.address, { settings: brief });
  await met(page);
  await say(page, 'Write a function that adds two numbers <script>window.hit=1</script>');
  const text = await answered(page);
  assert.ok(text.includes('<script'), `the model no longer echoes a tag; choose another prompt: ${text}`);
  assert.equal(await page.locator('.turn script').count(), 0);
  assert.equal(await page.evaluate(() => window.hit), undefined);
  await page.over();
});

test('the policy is there, and a script that breaks it is refused by the browser', async () => {
  const page = await visit(browser, server.address, { allowed: [/./] });
  await met(page);
  const policy = (await fetch(server.address)).headers.get('content-security-policy');
  assert.match(policy, /^default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self';/);
  const tries = await page.evaluate(async () => {
    const refused = (what) => {
      try {
        what();
        return false;
      } catch {
        return true;
      }
    };
    return {
      html: refused(() => (document.body.innerHTML = '<b>x</b>')),
      script: refused(() => (document.createElement('script').textContent = 'window.hit = 1')),
      elsewhere: await fetch('http://127.0.0.1:1/').then(() => false, () => true),
      image: await new Promise((done) => {
        const image = new Image();
        image.onload = () => done(false);
        image.onerror = () => done(true);
        image.src = 'data:image/gif;base64,R0lGODlhAQABAAAAACwAAAAAAQABAAA=';
      }),
    };
  });
  assert.deepEqual(tries, { html: true, script: true, elsewhere: true, image: true });
  await page.context().close();
});
