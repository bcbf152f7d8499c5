// A little Markdown as structure over the text: every leaf is a range of it, so that whoever shows it still knows which
// token each character came from. Nothing here makes elements, and links and HTML stay the text they are.

const FENCE = /^ {0,3}(`{3,}|~{3,})/;
const HEADING = /^(#{1,6})\s+(?=\S)/;
const ITEM = /^(\s*)([-*+]|\d{1,9}[.)])\s+(?=\S)/;
const QUOTE = /^>\s?/;
const RULE = /^\s*([-*_])\s*(?:\1\s*){2,}$/;

/** Blocks: `{kind: paragraph|heading|item|quote, start, end, inline}`, `{kind: code, start, end, from, to, language}`, `{kind: rule}`. */
export function blocksOf(text) {
  const blocks = [];
  let open = null;
  for (const { start, end } of linesOf(text)) {
    const line = text.slice(start, end);
    if (open?.kind === 'code' && !open.isClosed) {
      const fence = fenceOf(line);
      open.end = end;
      if (fence && fence.mark[0] === open.fence[0] && fence.mark.length >= open.fence.length && fence.language === '') {
        open.isClosed = true;
      } else {
        open.to = end;
      }
      continue;
    }
    const begun = beginning(line, start, end);
    if (begun) {
      open = begun;
      if (begun.kind) blocks.push(begun);
    } else if (open?.ranges) {
      open.ranges.push([start + line.search(/\S/), end]);
      open.end = end;
    } else {
      open = { kind: 'paragraph', start, end, ranges: [[start, end]] };
      blocks.push(open);
    }
  }
  return blocks.map((block) => finished(block, text));
}

/** A block that this line begins, `{}` for an empty line that ends one, or null for a line that goes on. */
function beginning(line, start, end) {
  if (line.trim() === '') return {};
  const fence = fenceOf(line);
  // The code begins on the next line, wherever that will be.
  if (fence) return { kind: 'code', start, end, from: end + 1, to: end + 1, fence: fence.mark, language: fence.language };
  if (RULE.test(line)) return { kind: 'rule', start, end };
  const heading = line.match(HEADING);
  if (heading) return { kind: 'heading', level: heading[1].length, start, end, ranges: [[start + heading[0].length, end]] };
  const item = line.match(ITEM);
  if (item) {
    const depth = Math.min(3, Math.floor(item[1].replace(/\t/g, '    ').length / 2));
    return { kind: 'item', depth, marker: item[2], start, end, ranges: [[start + item[0].length, end]] };
  }
  const quote = line.match(QUOTE);
  if (quote) return { kind: 'quote', start, end, ranges: [[start + quote[0].length, end]] };
  return null;
}

function fenceOf(line) {
  const mark = line.match(FENCE)?.[1];
  if (!mark) return null;
  const rest = line.trimStart().slice(mark.length).trim();
  return rest.includes('`') ? null : { mark, language: rest.split(/\s/, 1)[0] };
}

function finished(block, text) {
  if (block.kind === 'code') {
    const { kind, start, end, from, to, language } = block;
    return { kind, start, end, from: Math.min(from, text.length), to: Math.min(Math.max(from, to), text.length), language };
  }
  if (!block.ranges) return block;
  const { ranges, ...rest } = block;
  const inline = ranges.flatMap(([from, to], i) => (i > 0 ? [{ kind: 'break' }] : []).concat(inlineOf(text, from, to)));
  return { ...rest, inline };
}

function* linesOf(text) {
  for (let start = 0; start < text.length; ) {
    const at = text.indexOf('\n', start);
    const end = at < 0 ? text.length : at;
    yield { start, end };
    start = end + 1;
  }
}

/** Longer stretches without a line feed stay plain: nobody reads them, and looking for marks in them takes a time that shows. */
const MAX_INLINE = 20000;

/** Leaves `{kind: text|code, start, end}` and nodes `{kind: strong|em, inline}` of a range. */
export function inlineOf(text, from, to) {
  if (to - from > MAX_INLINE) return [{ kind: 'text', start: from, end: to }];
  const nodes = [];
  let done = from;
  const put = (node, start, end) => {
    if (start > done) nodes.push({ kind: 'text', start: done, end: start });
    if (node) nodes.push(node);
    done = end;
  };
  const closing = codeEnds(text, from, to);
  for (let at = from; at < to; ) {
    const mark = text[at] === '`' ? '`'.repeat(runLength(text, at, to)) : text.startsWith('**', at) ? '**' : text[at];
    const end = mark[0] === '`' ? closing.get(at) : mark[0] === '*' ? emphasisEnd(text, at, mark, to) : undefined;
    if (end === undefined) {
      at += mark.length;
      continue;
    }
    const inside = [at + mark.length, end];
    if (mark[0] === '`') put({ kind: 'code', start: inside[0], end: inside[1] }, at, end + mark.length);
    else put({ kind: mark === '**' ? 'strong' : 'em', inline: inlineOf(text, ...inside) }, at, end + mark.length);
    at = done;
  }
  put(null, to, to);
  return nodes;
}

function runLength(text, at, to) {
  let end = at;
  while (end < to && text[end] === '`') end += 1;
  return end - at;
}

/** For each run of backticks where the next run of its length begins. */
function codeEnds(text, from, to) {
  const ends = new Map();
  const lastOfLength = new Map();
  for (let at = text.indexOf('`', from); at >= 0 && at < to; ) {
    const length = runLength(text, at, to);
    if (lastOfLength.has(length)) ends.set(lastOfLength.get(length), at);
    lastOfLength.set(length, at);
    at = text.indexOf('`', at + length);
  }
  return ends;
}

/** Marks hug their text: in `a * b * c` they multiply. A single star within a word is a star. */
function emphasisEnd(text, at, mark, to) {
  const begins = at + mark.length;
  if (begins >= to || /[\s*]/.test(text[begins])) return undefined;
  if (mark === '*' && at > 0 && /[\w*]/.test(text[at - 1])) return undefined;
  for (let end = text.indexOf(mark, begins); end >= 0 && end + mark.length <= to; end = text.indexOf(mark, end + 1)) {
    if (mark === '*' && text[end + 1] === '*') return undefined;
    if (!/\s/.test(text[end - 1]) && !(mark === '*' && /\w/.test(text[end + 1] ?? ''))) return end;
  }
  return undefined;
}
