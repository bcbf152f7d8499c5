import assert from 'node:assert/strict';
import { test } from 'node:test';

import { blocksOf } from '../../../crates/server/src/page/web/markdown.mjs';

/** A structure as text: what kind stands around which characters. */
function outline(text) {
  const inline = (nodes) => nodes.map((node) => {
    if (node.kind === 'break') return '/';
    if (node.kind === 'text') return text.slice(node.start, node.end);
    if (node.kind === 'code') return `‹${text.slice(node.start, node.end)}›`;
    return `${node.kind}(${inline(node.inline)})`;
  }).join('');
  return blocksOf(text).map((block) => {
    if (block.kind === 'code') return `code ${block.language}[${text.slice(block.from, block.to)}]`;
    return block.kind === 'rule' ? 'rule' : `${block.kind}[${inline(block.inline)}]`;
  });
}

test('text becomes the structure it means', () => {
  for (const [text, blocks] of [
    ['', []],
    ['one\ntwo\n\nthree', ['paragraph[one/two]', 'paragraph[three]']],
    ['# A\n### B c', ['heading[A]', 'heading[B c]']],
    ['#no heading', ['paragraph[#no heading]']],
    ['- a\n- **b**\n  more\n1. c', ['item[a]', 'item[strong(b)/more]', 'item[c]']],
    ['> said', ['quote[said]']],
    ['---', ['rule']],
    ['use `x*y*z` and **b *c* d**', ['paragraph[use ‹x*y*z› and strong(b em(c) d)]']],
    ['2 * 3 * 4, a*b*c, ** no **', ['paragraph[2 * 3 * 4, a*b*c, ** no **]']],
    ['``a ` b`` `', ['paragraph[‹a ` b› `]']],
    ['**open and `open', ['paragraph[**open and `open]']],
    ['<b>x</b> [t](javascript:1) &amp;', ['paragraph[<b>x</b> [t](javascript:1) &amp;]']],
  ]) {
    assert.deepEqual(outline(text), blocks, text);
  }
});

test('code is what it is, also before it ends', () => {
  for (const [text, blocks] of [
    ['```', ['code []']],
    ['```py', ['code py[]']],
    ['```py\n', ['code py[]']],
    ['```python\n# a\n\n- b', ['code python[# a\n\n- b]']],
    ['```\nx\n```\nafter', ['code [x]', 'paragraph[after]']],
    ['````\n```\n````', ['code [```]']],
    ['~~~\n```\n~~~', ['code [```]']],
    ['``` `not` code', ['paragraph[``` ‹not› code]']],
  ]) {
    assert.deepEqual(outline(text), blocks, text);
  }
});

test('a text that grows never has characters twice or out of order', () => {
  const text = '# T\n\nA *b* `c`\n- d\n\n```py\ne = `f`\n```\n> g **h**';
  for (let end = 0; end <= text.length; end += 1) {
    let last = 0;
    const leaf = (start, to) => {
      assert.ok(start >= last && to >= start && to <= end, `${end}: ${start} to ${to} after ${last}`);
      last = to;
    };
    const walk = (nodes) => nodes.forEach((n) => (n.inline ? walk(n.inline) : n.kind !== 'break' && leaf(n.start, n.end)));
    for (const block of blocksOf(text.slice(0, end))) block.kind === 'code' ? leaf(block.from, block.to) : walk(block.inline ?? []);
  }
});

test('marks without end are looked at once, not over and over', () => {
  // Backtracking over such a text would take hours.
  for (const hostile of ['`', '*', '**a ', '`a``', '- ', '> ', '# ', '```', '~', '_ ', ' ']) {
    const text = hostile.repeat(200000 / hostile.length);
    assert.ok(blocksOf(text).length >= 0);
    assert.ok(blocksOf(text.replaceAll(' ', '\n')).length >= 0);
  }
});
