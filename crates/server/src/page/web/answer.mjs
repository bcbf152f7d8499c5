// One answer as it comes: its text and reasoning, the tokens they came from, and how it ended. Knows nothing of the page.

import { Aligner } from './align.mjs';
import { Meter } from './meter.mjs';
import { ColouredText } from './write.mjs';

export class Answer {
  content = new ColouredText();
  reasoning = new ColouredText();
  meter = new Meter();
  ids = [];
  /** waiting, writing, done, stopped, broken */
  state = 'waiting';
  trouble = null;
  finish = null;
  /** The server's own figures, once they are there. */
  metrics = null;
  usage = null;
  #aligner = new Aligner();

  constructor({ seed, speculative }) {
    this.seed = seed;
    this.speculative = speculative;
  }

  get isOver() {
    return ['done', 'stopped', 'broken'].includes(this.state);
  }

  take({ tokens, content, reasoning, finish, usage, metrics }, now) {
    this.#aligner.tokens(tokens);
    this.meter.add(tokens, now);
    for (const { id } of tokens) this.ids.push(id);
    this.reasoning.add(reasoning, this.#aligner.text(reasoning));
    this.content.add(content, this.#aligner.text(content));
    if (tokens.length > 0 || content !== '' || reasoning !== '') this.state = 'writing';
    this.finish = finish ?? this.finish;
    this.usage = usage ?? this.usage;
    this.metrics = metrics ?? this.metrics;
  }

  /** Reads all of it; `changed` is called after every happening and at the end. Never throws. */
  async read(happenings, changed, clock = () => performance.now()) {
    try {
      for await (const happening of happenings) {
        this.take(happening, clock());
        changed(this);
      }
      this.state = 'done';
    } catch (error) {
      this.state = error.name === 'AbortError' ? 'stopped' : 'broken';
      this.trouble = this.state === 'broken' ? error : null;
    }
    changed(this);
    return this;
  }

  /** As the server measured it, or as it arrived. */
  get figures() {
    const speculation = this.metrics?.speculative_decoding;
    return {
      tokens: this.usage?.completion_tokens ?? this.meter.n,
      rate: this.metrics?.tokens_per_second ?? this.meter.rate,
      ms: this.metrics?.generation_time_ms ?? this.meter.ms,
      tokensPerRound: speculation?.tokens_per_round ?? this.meter.tokensPerRound,
      histogram: speculation?.acceptance_histogram ?? this.meter.histogram,
      share: this.meter.share,
      counts: this.meter.counts,
      rounds: this.meter.rounds,
      rates: this.meter.rates,
    };
  }
}
