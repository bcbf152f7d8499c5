// Which token each stretch of an answer came from. Tokens tell of the raw text, tags and all; content and reasoning come
// apart from it, and sometimes later.

/** Raw text longer than this that no answer ever showed (a tool's call, say) is forgotten. */
const MAX_WAITING = 65536;

export class Aligner {
  /** Tokens whose text was not shown yet; of the first one `#used` characters were. */
  #waiting = [];
  #used = 0;

  tokens(tokens) {
    this.#waiting.push(...tokens);
  }

  /** Cuts `text` where its tokens meet: `[{length, origin}]`, with origin `null` where no token is known. */
  text(text) {
    if (text === '') return [];
    const raw = this.#waiting.map((t) => t.text).join('');
    const at = raw.indexOf(text, this.#used);
    if (at < 0) {
      if (raw.length > MAX_WAITING) this.#skip(raw.length - this.#used);
      return [{ length: text.length, origin: null }];
    }
    this.#skip(at - this.#used);
    return this.#take(text.length);
  }

  #skip(length) {
    this.#take(length);
  }

  #take(length) {
    const pieces = [];
    while (length > 0 || this.#waiting[0]?.text.length === this.#used) {
      const token = this.#waiting[0];
      if (!token) break;
      const here = Math.min(length, token.text.length - this.#used);
      if (here > 0) pieces.push({ length: here, origin: token.origin });
      length -= here;
      this.#used += here;
      if (this.#used === token.text.length) {
        this.#waiting.shift();
        this.#used = 0;
      }
    }
    return pieces;
  }
}
