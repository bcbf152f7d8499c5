// Puts an answer on the page: Markdown's structure as elements, every token's text in a span that says how it came.

import { make } from './elements.mjs';
import { blocksOf } from './markdown.mjs';

/** The text of an answer and the stretches it came in, `[{end, origin}]`. */
export class ColouredText {
  text = '';
  runs = [];

  add(text, pieces) {
    let end = this.text.length;
    this.text += text;
    for (const { length, origin } of pieces) {
      end += length;
      this.runs.push({ end, origin });
    }
  }

  /** Spans of the characters from `start` to `end`. */
  spans(start, end) {
    const spans = [];
    let low = 0;
    let high = this.runs.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (this.runs[middle].end <= start) low = middle + 1;
      else high = middle;
    }
    for (let at = start; at < end; low += 1) {
      const run = this.runs[low] ?? { end, origin: null };
      const to = Math.min(run.end, end);
      const text = this.text.slice(at, to);
      spans.push(run.origin ? make('span', { class: `token ${run.origin}` }, text) : text);
      at = to;
    }
    return spans;
  }
}

/** Shows a text that grows. Blocks that are complete stay as they are; only what may still change is made again. */
export class Writing {
  #shown = [];

  constructor(place) {
    this.place = place;
  }

  /** Gives back the text of blocks that became complete since the last time. */
  show(coloured, isOver) {
    const blocks = blocksOf(coloured.text);
    const completed = [];
    let n = 0;
    while (n < this.#shown.length && n < blocks.length && isSame(this.#shown[n], blocks[n])) n += 1;
    const keep = (block, element) => {
      const mayGrow = n === blocks.length - 1 && !isOver;
      this.#shown[n] = { ...block, element, mayGrow };
      if (!mayGrow) completed.push(element.textContent);
      n += 1;
    };
    const last = this.#shown[n];
    if (last && blocks[n] && isLonger(last, blocks[n])) {
      last.element.querySelector('code').append(...coloured.spans(last.to, blocks[n].to));
      keep(blocks[n], last.element);
    }
    for (const { element } of this.#shown.splice(n)) element.remove();
    while (n < blocks.length) {
      const element = elementOf(blocks[n], coloured);
      this.place.append(element);
      keep(blocks[n], element);
    }
    return completed;
  }
}

function isSame(shown, block) {
  return !shown.mayGrow && shown.kind === block.kind && shown.start === block.start && shown.end === block.end;
}

/** Code only ever gets longer, and may be long: what is there of it can stay. */
function isLonger(shown, block) {
  const [a, b] = [shown, block];
  return a.kind === 'code' && b.kind === 'code' && a.start === b.start && a.language === b.language && a.from === b.from && a.to <= b.to;
}

function elementOf(block, coloured) {
  const inline = (nodes) => nodes.flatMap((node) => inlineElements(node, coloured));
  switch (block.kind) {
    case 'code': {
      const code = make('code', {}, ...coloured.spans(block.from, block.to));
      const label = block.language ? make('figcaption', {}, block.language) : null;
      return make('figure', { class: 'code' }, label, make('pre', { tabindex: '0' }, code));
    }
    case 'rule':
      return make('hr');
    case 'heading':
      // The page has its own first levels.
      return make(`h${Math.min(6, block.level + 2)}`, {}, ...inline(block.inline));
    case 'item': {
      const marker = make('span', { class: 'marker' }, /\d/.test(block.marker) ? block.marker : '•');
      return make('div', { class: `item depth${block.depth}` }, marker, make('span', {}, ...inline(block.inline)));
    }
    case 'quote':
      return make('blockquote', {}, ...inline(block.inline));
    default:
      return make('p', {}, ...inline(block.inline));
  }
}

function inlineElements(node, coloured) {
  if (node.kind === 'break') return [make('br')];
  if (node.kind === 'text') return coloured.spans(node.start, node.end);
  if (node.kind === 'code') return [make('code', {}, ...coloured.spans(node.start, node.end))];
  return [make(node.kind, {}, ...node.inline.flatMap((inner) => inlineElements(inner, coloured)))];
}
