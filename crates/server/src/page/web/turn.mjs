// One turn of a conversation on the page: what was asked, or its answer, or both answers of a comparison.

import { compared, times, verdict } from './compare.mjs';
import { button, draw, make } from './elements.mjs';
import { inWords } from './errors.mjs';
import { Writing } from './write.mjs';

/** What was asked, with a way to ask otherwise. */
export class AskedTurn {
  constructor(text, { edit }) {
    this.text = text;
    this.shown = make('div', { class: 'text' }, text);
    this.actions = make('div', { class: 'actions' }, button('Edit', () => this.#edit(edit)));
    this.element = make('li', { class: 'turn asked', 'aria-label': 'You' }, this.shown, this.actions);
  }

  #edit(edit) {
    const area = make('textarea', { 'aria-label': 'Edited message', rows: '3' });
    area.value = this.text;
    const back = () => {
      form.replaceWith(this.shown);
      this.actions.hidden = false;
      this.actions.querySelector('button').focus();
    };
    const send = () => {
      if (area.value.trim() !== '') edit(area.value);
    };
    const keys = (event) => {
      if (event.key === 'Escape') back();
      if (event.key === 'Enter' && !event.shiftKey && !event.isComposing) send();
      else if (event.key !== 'Escape') return;
      event.preventDefault();
      event.stopPropagation();
    };
    area.addEventListener('keydown', keys);
    const form = make('div', { class: 'edit' }, area, make('div', { class: 'actions' },
      button('Send', send, { class: 'first' }), button('Cancel', back)));
    this.shown.replaceWith(form);
    this.actions.hidden = true;
    area.focus();
  }
}

/** One run of the model within a turn. */
class Side {
  #writing;
  #thinking;

  constructor(answer, turn) {
    this.answer = answer;
    this.turn = turn;
    this.label = make('h3', {}, answer.speculative ? 'With speculation' : 'Without');
    this.rate = make('span', { class: 'rate' });
    this.reasoning = make('details', { class: 'reasoning', hidden: true }, make('summary', {}, 'Reasoning'), make('div', { class: 'text' }));
    this.text = make('div', { class: 'text' });
    this.facts = make('p', { class: 'facts' });
    this.trouble = make('div', { class: 'trouble', role: 'alert', hidden: true });
    this.#writing = new Writing(this.text);
    this.#thinking = new Writing(this.reasoning.lastChild);
    this.element = make('section', { class: `side ${answer.speculative ? 'with' : 'without'}` },
      make('header', {}, this.label, this.rate), this.reasoning, this.text, this.facts, this.trouble);
  }

  show() {
    const { answer } = this;
    this.element.setAttribute('aria-busy', String(!answer.isOver));
    this.element.classList.toggle('writing', !answer.isOver);
    this.reasoning.hidden = answer.reasoning.text === '';
    this.#thinking.show(answer.reasoning, answer.isOver);
    const completed = this.#writing.show(answer.content, answer.isOver);
    const { rate, tokens } = answer.figures;
    this.rate.textContent = rate > 0 ? `${Math.round(rate)} tokens/s` : '';
    this.facts.textContent = tokens > 0 ? factsOf(answer) : answer.isOver ? '' : 'Waiting for the first token…';
    if (answer.state === 'broken' && this.trouble.hidden) this.#tell(answer.trouble);
    // Beside another each side scrolls by itself, and while it grows its end is what is looked at.
    if (!answer.isOver) this.element.scrollTop = this.element.scrollHeight;
    return completed;
  }

  #tell(trouble) {
    const { title, advice, said, offer } = inWords(trouble);
    this.trouble.hidden = false;
    this.trouble.append(
      make('strong', {}, title),
      make('p', {}, advice),
      said ? make('p', { class: 'said' }, `The server said: ${said}`) : '',
      make('div', { class: 'actions' },
        button('Try again', () => this.turn.acts.regenerate(), { class: 'first' }),
        offer === 'settings' ? button('Settings', () => this.turn.acts.settings()) : null),
    );
  }
}

function factsOf(answer) {
  const { tokens, rate, tokensPerRound, share } = answer.figures;
  const ended = { length: 'ended at the limit on tokens', tool_calls: 'called a tool' }[answer.finish];
  return [
    `${tokens} ${tokens === 1 ? 'token' : 'tokens'}`,
    rate > 0 ? `${Math.round(rate)} tokens/s` : null,
    answer.speculative && tokensPerRound > 0 ? `${tokensPerRound.toFixed(1)} a round` : null,
    answer.speculative ? `${Math.round(share * 100)} % came free` : 'speculation off',
    `seed ${answer.seed}`,
    answer.state === 'stopped' ? 'stopped' : null,
    answer.isOver ? ended : null,
  ].filter(Boolean).join(' · ');
}

/** An answer, and beside it the same question answered the other way. */
export class AnswerTurn {
  sides = [];
  #isDrawn = true;

  /** `acts`: regenerate, compare, settings; `announce` reads aloud; `drawn` is told after each drawing. */
  constructor(answer, acts, announce, drawn) {
    this.acts = acts;
    this.announce = announce;
    this.drawn = drawn;
    this.place = make('div', { class: 'sides' });
    this.verdict = make('div', { class: 'verdict', role: 'status', hidden: true });
    this.copy = button('Copy', () => this.#copy());
    this.again = button('Compare', () => acts.compare(), { title: 'The same once more the other way, to see that the text is the same' });
    this.actions = make('div', { class: 'actions', hidden: true }, this.copy, button('Regenerate', () => acts.regenerate()), this.again);
    this.element = make('li', { class: 'turn answer', 'aria-label': 'Model' }, this.verdict, this.place, this.actions);
    this.add(answer);
  }

  get answer() {
    return this.sides[0].answer;
  }

  get isOver() {
    return this.sides.every((side) => side.answer.isOver);
  }

  add(answer) {
    this.sides.splice(1);
    this.sides.push(new Side(answer, this));
    this.place.replaceChildren(...this.sides.map((side) => side.element));
    this.element.classList.toggle('compared', this.sides.length > 1);
    if (this.sides.length > 1) scrollTogether(...this.sides.map((side) => side.element));
    this.changed();
  }

  /** The outcome of a comparison and the beginnings of both texts, wherever the reader was; its question too if it is short. */
  reveal() {
    requestAnimationFrame(() => {
      for (const side of this.sides) side.element.scrollTop = 0;
      const asked = this.element.previousElementSibling;
      (asked?.offsetHeight < 120 ? asked : this.element).scrollIntoView({ block: 'start' });
    });
  }

  /** Draws with the next frame, however often the answer grew since the last. */
  changed() {
    if (!this.#isDrawn) return;
    this.#isDrawn = false;
    requestAnimationFrame(() => {
      this.#isDrawn = true;
      this.#show();
      this.drawn();
    });
  }

  #show() {
    const completed = this.sides.map((side) => side.show());
    // A comparison's text was read aloud the first time.
    if (this.sides.length === 1) completed[0].forEach((text) => this.announce(text));
    // What broke offers to try again by itself.
    const { state, content } = this.answer;
    this.actions.hidden = !this.isOver || (state === 'broken' && content.text === '');
    this.again.hidden = state === 'broken';
    if (this.sides.length > 1) this.#compare();
  }

  #compare() {
    const [fast, plain] = this.sides.map((s) => s.answer).sort((a, b) => Number(b.speculative) - Number(a.speculative));
    const outcome = compared(fast, plain);
    this.verdict.hidden = false;
    this.verdict.classList.toggle('bad', !outcome.same);
    this.verdict.classList.toggle('gain', outcome.same && outcome.ratio >= 1.05);
    const longest = Math.max(fast.figures.ms, plain.figures.ms, 1);
    const row = (answer, name) => {
      const { ms } = answer.figures;
      const bar = draw('svg', { viewBox: '0 0 100 6', preserveAspectRatio: 'none', class: `bar ${name}`, 'aria-hidden': 'true' },
        draw('rect', { width: (ms / longest) * 100, height: 6 }));
      return [make('span', {}, answer.speculative ? 'with' : 'without'), bar, make('span', { class: 'number' }, `${(ms / 1000).toFixed(2)} s`)];
    };
    this.verdict.replaceChildren(
      make('p', {}, this.isOver && outcome.ratio !== null ? make('b', { class: 'ratio' }, times(outcome.ratio)) : null,
        this.isOver ? verdict(outcome) : 'The same again, the other way…'),
      make('div', { class: 'race' }, ...row(fast, 'with'), ...row(plain, 'without')),
    );
  }

  async #copy() {
    const isCopied = await copied(this.answer.content.text);
    this.copy.textContent = isCopied ? 'Copied' : 'Could not copy';
    setTimeout(() => (this.copy.textContent = 'Copy'), 1500);
  }
}

/** The texts are the same, so what is beside a line is that line. */
function scrollTogether(one, other) {
  for (const [a, b] of [[one, other], [other, one]]) a.addEventListener('scroll', () => (b.scrollTop = a.scrollTop));
}

/** Over plain HTTP from another machine browsers have no clipboard for pages; the old way still works there. */
async function copied(text) {
  try {
    await navigator.clipboard.writeText(text);
    return true;
  } catch {
    const area = make('textarea', { class: 'unseen', 'aria-hidden': 'true' });
    area.value = text;
    document.body.append(area);
    area.select();
    const isCopied = document.execCommand('copy');
    area.remove();
    return isCopied;
  }
}
