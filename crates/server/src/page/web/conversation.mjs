// What was said so far, and the one question that may be under way.

import { Answer } from './answer.mjs';
import { ask } from './ask.mjs';
import { fieldsOf, freshSeed } from './settings.mjs';
import { AnswerTurn, AskedTurn } from './turn.mjs';

export class Conversation {
  turns = [];
  #running = null;

  /**
   * `place` holds the turns. `settings()`, `model()` and `isChat()` are as they are now; `changed(answers, isBusy)` is told of every
   * change, `ended` and `compared` of what is over, `announce` reads text aloud, `openSettings` is for what can be mended there.
   */
  constructor(place, page) {
    this.place = place;
    this.page = page;
  }

  get isBusy() {
    return this.#running !== null;
  }

  /** Asks; with `compare`, asks the same the other way once the answer is there. */
  async send(text, { compare = false } = {}) {
    if (this.isBusy) return;
    const turn = new AskedTurn(text, { edit: (otherwise) => this.#instead(turn, otherwise) });
    this.#push(turn);
    await this.#answer();
    if (compare) await this.compare(this.turns.at(-1));
  }

  /** The last answer once more, with speculation the other way and all else as it was. */
  async compare(turn = this.turns.at(-1)) {
    if (this.isBusy || !(turn instanceof AnswerTurn) || turn.answer.state === 'broken') return;
    const { question } = turn;
    const other = { ...question, speculative: !question.speculative };
    await this.#run(turn, other, (answer) => turn.add(answer));
    this.page.compared(turn);
  }

  stop() {
    this.#running?.abort();
  }

  clear() {
    this.stop();
    this.#running = null;
    this.#cut(0);
  }

  #push(turn) {
    this.turns.push(turn);
    this.place.append(turn.element);
    turn.element.scrollIntoView({ block: 'end' });
  }

  #cut(from) {
    for (const { element } of this.turns.splice(from)) element.remove();
    this.#tell();
  }

  #instead(turn, text) {
    if (this.isBusy) return;
    this.#cut(this.turns.indexOf(turn));
    this.send(text);
  }

  #again(turn) {
    if (this.isBusy) return;
    this.#cut(this.turns.indexOf(turn));
    this.#answer();
  }

  async #answer() {
    const settings = this.page.settings();
    const seed = freshSeed(settings);
    const question = {
      messages: this.#messages(settings),
      fields: fieldsOf(settings, seed, this.page.model()),
      speculative: settings.speculative,
      isChat: this.page.isChat(),
    };
    let turn;
    await this.#run(null, question, (answer) => {
      const acts = {
        regenerate: () => this.#again(turn),
        compare: () => this.compare(turn),
        settings: () => this.page.openSettings(),
      };
      turn = new AnswerTurn(answer, acts, this.page.announce, () => this.#tell());
      turn.question = question;
      this.#push(turn);
      return turn;
    });
  }

  #messages({ system }) {
    const said = this.turns.map((turn) =>
      turn instanceof AskedTurn
        ? { role: 'user', content: turn.text }
        : { role: 'assistant', content: turn.answer.content.text });
    const first = system.trim() !== '' && this.page.isChat() ? [{ role: 'system', content: system }] : [];
    return [...first, ...said.filter((m) => m.content !== '')];
  }

  async #run(turn, question, begin) {
    const abort = new AbortController();
    this.#running = abort;
    const answer = new Answer({ seed: question.fields.seed, speculative: question.speculative });
    const shown = begin(answer) ?? turn;
    this.#tell();
    await answer.read(ask(question, this.page.settings().key, abort.signal), () => shown.changed());
    // A new chat may have begun meanwhile.
    if (this.#running === abort) this.#running = null;
    this.#tell();
    this.page.ended(answer);
  }

  #tell() {
    const newest = this.turns.findLast((turn) => turn instanceof AnswerTurn);
    this.page.changed(newest ? newest.sides.map((side) => side.answer) : [], this.isBusy);
  }
}
