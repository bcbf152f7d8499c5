// Server-sent events out of bytes, wherever the network cut them.

/** Collects text and gives back the data of every event that is whole. */
export class EventReader {
  #rest = '';
  #data = [];

  push(text) {
    this.#rest += text;
    const events = [];
    for (;;) {
      const line = this.#line();
      if (line === null) return events;
      if (line === '') {
        if (this.#data.length > 0) events.push(this.#data.join('\n'));
        this.#data = [];
      } else if (line === 'data' || line.startsWith('data:')) {
        this.#data.push(line.slice(5).replace(/^ /, ''));
      }
      // Names, ids and comments say nothing that this API uses.
    }
  }

  #line() {
    const at = this.#rest.search(/[\r\n]/);
    if (at < 0) return null;
    const isReturn = this.#rest[at] === '\r';
    // The line feed of a pair may still be on its way.
    if (isReturn && at + 1 === this.#rest.length) return null;
    const line = this.#rest.slice(0, at);
    this.#rest = this.#rest.slice(at + (isReturn && this.#rest[at + 1] === '\n' ? 2 : 1));
    return line;
  }
}

/** The data of each event of a response's body. */
export async function* eventsOf(body) {
  const reader = body.getReader();
  const decoder = new TextDecoder();
  const events = new EventReader();
  try {
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return;
      yield* events.push(decoder.decode(value, { stream: true }));
    }
  } finally {
    // Whoever stops listening also stops the server's work.
    reader.cancel().catch(() => {});
  }
}
