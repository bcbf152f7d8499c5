// What an answer's tokens say about speed and guessing, while they come. A round ends with one token that the model chose by
// itself, plain or against the guess, and the accepted ones before it came with it: so rounds can be told from origins
// alone, however the network put them together.

/** So much time a live rate looks back on: shorter jumps about, longer hides what happens. */
const WINDOW_MS = 500;
/** Before so much has passed a rate says more about the network's packets than about the model. */
const SETTLED_MS = 120;

export class Meter {
  counts = { accepted: 0, corrected: 0, plain: 0 };
  /** `[{accepted, end}]`, the newest last; `end` is "corrected" or "plain". */
  rounds = [];
  /** `[ms since the first token, tokens a second]`. */
  rates = [];
  #arrivals = [];
  #open = 0;
  #first = null;

  get n() {
    return this.counts.accepted + this.counts.corrected + this.counts.plain;
  }

  add(tokens, now) {
    if (tokens.length === 0) return;
    this.#first ??= now;
    for (const { origin } of tokens) {
      this.counts[origin] += 1;
      if (origin === 'accepted') {
        this.#open += 1;
      } else {
        this.rounds.push({ accepted: this.#open, end: origin });
        this.#open = 0;
      }
    }
    this.#arrivals.push([now, this.n]);
    const since = this.#arrivals.findLast(([t]) => now - t >= WINDOW_MS) ?? this.#arrivals[0];
    if (now - since[0] >= SETTLED_MS) this.rates.push([now - this.#first, ((this.n - since[1]) * 1000) / (now - since[0])]);
  }

  /** Tokens a second since the first one. */
  get rate() {
    const last = this.#arrivals.at(-1);
    const begun = this.#arrivals[0];
    return last && last[0] > begun[0] ? ((last[1] - begun[1]) * 1000) / (last[0] - begun[0]) : 0;
  }

  get ms() {
    return this.#arrivals.length > 0 ? this.#arrivals.at(-1)[0] - this.#first : 0;
  }

  /** Of all tokens, those that were guessed and confirmed. */
  get share() {
    return this.n > 0 ? this.counts.accepted / this.n : 0;
  }

  get tokensPerRound() {
    return this.rounds.length > 0 ? (this.n - this.#open) / this.rounds.length : 0;
  }

  /** How often so many guesses of a round held, from none on; rounds that guessed nothing do not count. */
  get histogram() {
    const histogram = [];
    for (const { accepted, end } of this.rounds) {
      if (accepted === 0 && end === 'plain') continue;
      while (histogram.length <= accepted) histogram.push(0);
      histogram[accepted] += 1;
    }
    return histogram;
  }
}

/** For each depth from 1 on, the share of rounds whose guesses held at least so deep. */
export function acceptanceByDepth(histogram) {
  const rounds = histogram.reduce((a, b) => a + b, 0);
  let reached = rounds;
  return histogram.slice(0, -1).map((n) => {
    reached -= n;
    return reached / rounds;
  });
}
