// The same question answered with and without guessing: whether the tokens are the same, and how much sooner they came.

/**
 * `{same, n, complete, ratio}`: `same` is whether one begins with the other, `n` how many tokens agree, `complete` whether
 * both came to their end, `ratio` of the speeds where both are known.
 */
export function compared(fast, plain) {
  const shorter = Math.min(fast.ids.length, plain.ids.length);
  let n = 0;
  while (n < shorter && fast.ids[n] === plain.ids[n]) n += 1;
  const complete = fast.state === 'done' && plain.state === 'done';
  const same = complete ? n === fast.ids.length && n === plain.ids.length : n === shorter;
  const [a, b] = [fast.figures.rate, plain.figures.rate];
  return { same, n, complete, ratio: a > 0 && b > 0 ? a / b : null };
}

/** The outcome as a sentence. */
export function verdict({ same, n, complete, ratio }) {
  if (!same) return `The texts part after ${tokens(n)}. They never should: please report it, with the seed and the settings.`;
  const what = complete ? `The same ${tokens(n)}, token for token` : `The same ${tokens(n)} as far as both came`;
  if (ratio === null) return `${what}.`;
  if (ratio >= 1.05) return `${what}, ${times(ratio)} as fast.`;
  if (ratio > 0.95) return `${what}, as fast as without: this time guessing did not pay.`;
  return `${what}, at ${times(ratio)} the speed: this time guessing cost more than it gave.`;
}

function tokens(n) {
  return n === 1 ? '1 token' : `${n} tokens`;
}

export function times(ratio) {
  return `${ratio.toFixed(ratio < 9.95 ? 1 : 0)}×`;
}
