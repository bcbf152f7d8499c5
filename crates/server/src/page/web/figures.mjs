// The figures beside a conversation: how fast the newest answer came, and how well its tokens were guessed.

import { draw, make } from './elements.mjs';
import { acceptanceByDepth } from './meter.mjs';
import { linePath, roundBars, roundUp, shareBars, thinned } from './plots.mjs';

const WIDTH = 272;
const KINDS = [
  ['accepted', 'guessed and confirmed: came free'],
  ['corrected', 'guessed otherwise: the model’s own word'],
  ['plain', 'not guessed: the model’s own word'],
];

function plot(height, label, ...shapes) {
  return draw('svg', { viewBox: `0 0 ${WIDTH} ${height}`, role: 'img', 'aria-label': label }, ...shapes);
}

function text(x, y, anchor, words) {
  return draw('text', { x, y, 'text-anchor': anchor }, words);
}

/** The line of every run, on one scale: the newest one and the one it is compared with. */
export function speedPlot(answers) {
  const height = 56;
  const lines = answers.map((a) => ({ name: a.speculative ? 'with' : 'without', points: thinned(a.figures.rates, 120) }));
  const all = lines.flatMap((line) => line.points);
  const box = { width: WIDTH - 32, height, maxX: Math.max(1, ...all.map((p) => p[0])), maxY: roundUp(Math.max(1, ...all.map((p) => p[1]))) };
  const paths = lines.filter((l) => l.points.length > 1).map((l) => draw('path', { class: `line ${l.name}`, d: linePath(l.points, box) }));
  const said = answers.map((a) => `${a.speculative ? 'with' : 'without'} speculation ${Math.round(a.figures.rate)}`);
  return plot(height + 16, `Tokens a second over time, ${said.join(', ')}`,
    draw('g', { transform: 'translate(0 8)' }, draw('path', { class: 'axis', d: `M0 0H${box.width}M0 ${height}H${box.width}` }), ...paths,
      text(WIDTH, 4, 'end', String(box.maxY)), text(WIDTH, height + 4, 'end', '0')));
}

export function roundsPlot(answer) {
  const height = 48;
  const bars = roundBars(answer.figures.rounds, { width: WIDTH, height, n: 48 });
  const shapes = bars.flatMap(({ x, width, guessed, own, end }) => [
    draw('rect', { class: 'accepted', x, width, y: height - guessed, height: guessed }),
    draw('rect', { class: end, x, width, y: height - guessed - own + 1, height: Math.max(0, own - 1) }),
  ]);
  const label = `Tokens of the newest ${bars.length} rounds; ${answer.figures.tokensPerRound.toFixed(1)} a round`;
  return plot(height, label, draw('path', { class: 'axis', d: `M0 ${height}H${WIDTH}` }), ...shapes);
}

export function depthPlot(answer) {
  const height = 52;
  const shares = acceptanceByDepth(answer.figures.histogram).slice(0, 16);
  const bars = shareBars(shares, { width: WIDTH, height, widest: 44 });
  const percent = (share) => Math.round(share * 100);
  const shapes = bars.flatMap(({ x, width, height: tall, share }, i) => [
    draw('rect', { class: 'track', x, width, y: 14, height }),
    draw('rect', { class: 'accepted', x, width, y: 14 + height - tall, height: tall }),
    text(x + width / 2, 10, 'middle', `${percent(share)}`),
    text(x + width / 2, height + 28, 'middle', `${i + 1}`),
  ]);
  const label = shares.length > 0
    ? `Rounds whose guesses held: ${shares.map((s, i) => `${percent(s)} % at least ${i + 1} deep`).join(', ')}`
    : 'No round guessed yet';
  return plot(height + 32, label, ...shapes);
}

function section(name, title, value, unit, ...rest) {
  return make('section', { class: `figure ${name}` }, make('h2', {}, title),
    make('p', { class: 'big' }, make('b', {}, value), ` ${unit}`), ...rest);
}

export class Figures {
  constructor(place, strip, { coloursChanged, areColoured }) {
    this.strip = strip;
    this.parts = make('div', { class: 'parts' });
    const box = make('input', { type: 'checkbox', id: 'colours', change: () => coloursChanged(box.checked) });
    box.checked = areColoured;
    this.shares = Object.fromEntries(KINDS.map(([kind]) => [kind, make('span', { class: 'number' })]));
    const legend = KINDS.map(([kind, meaning]) =>
      make('li', {}, make('span', { class: `token swatch ${kind}` }, kind), make('span', {}, meaning), this.shares[kind]));
    place.append(
      make('section', { class: 'figure legend' }, make('h2', {}, 'How each token came'), make('ul', {}, ...legend),
        make('label', { class: 'choice' }, box, ' Colour the text')),
      this.parts);
    strip.addEventListener('click', () => {
      const isOpen = strip.getAttribute('aria-expanded') === 'true';
      strip.setAttribute('aria-expanded', String(!isOpen));
    });
    this.show([]);
  }

  /** Of the newest turn: its answer, and the one it is compared with. */
  show(all) {
    const answers = all.filter((a) => a.meter.n > 0);
    const answer = answers.find((a) => a.speculative) ?? answers[0];
    const newest = answers.at(-1);
    for (const [kind, place] of Object.entries(this.shares)) {
      place.textContent = answer ? String(answer.figures.counts[kind]) : '';
    }
    if (!answer) {
      this.strip.textContent = 'Figures';
      const promise = 'Speed, tokens a round and acceptance by depth are drawn here while an answer comes.';
      this.parts.replaceChildren(make('p', { class: 'quiet' }, promise));
      return;
    }
    const { rate, tokensPerRound, share, histogram } = answer.figures;
    const percent = `${Math.round(share * 100)} %`;
    this.strip.textContent = `${Math.round(newest.figures.rate)} tokens/s · ${tokensPerRound.toFixed(1)} a round · ${percent} free`;
    const names = answers.length > 1
      ? make('p', { class: 'names' }, make('span', { class: 'with' }, 'with speculation'), make('span', { class: 'without' }, 'without'))
      : null;
    const guessed = histogram.reduce((a, b) => a + b, 0);
    this.parts.replaceChildren(
      section('speed', 'Speed', String(Math.round(rate)), 'tokens/s', speedPlot(answers), names),
      section('rounds', 'Tokens a round', tokensPerRound.toFixed(1), `a round, ${percent} came free`, roundsPlot(answer)),
      section('depth', 'Acceptance by depth', String(guessed), guessed === 1 ? 'round guessed' : 'rounds guessed', depthPlot(answer),
        make('p', { class: 'quiet' }, '% of them whose guesses held so many tokens deep')));
  }
}
