// The numbers of small plots: where lines and bars go. Drawing them is for others.

/** The first round number that holds the value, so that a scale is easy to read and mostly used. */
export function roundUp(value) {
  if (!(value > 0)) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  return [1, 1.5, 2, 3, 4, 5, 6, 8, 10].map((step) => step * power).find((top) => top >= value * (1 - 1e-9));
}

/** At most `n` points, each the mean of its neighbours: a plot has only so many pixels. */
export function thinned(points, n) {
  if (points.length <= n) return points;
  return Array.from({ length: n }, (_, i) => {
    const part = points.slice(Math.floor((i * points.length) / n), Math.floor(((i + 1) * points.length) / n));
    const mean = (axis) => part.reduce((sum, p) => sum + p[axis], 0) / part.length;
    return [mean(0), mean(1)];
  });
}

/** An SVG path through `[x, y]` points scaled into the box, y upwards. */
export function linePath(points, { width, height, maxX, maxY }) {
  const place = ([x, y]) => [(x / maxX) * width, height - (Math.min(y, maxY) / maxY) * height];
  return points.map((p, i) => (i === 0 ? 'M' : 'L') + place(p).map((v) => v.toFixed(1)).join(' ')).join('');
}

/** The newest rounds as bars `{x, width, guessed, own, end}`: heights of the accepted tokens and of the model's own above. */
export function roundBars(rounds, { width, height, n }) {
  const shown = rounds.slice(-n);
  const most = Math.max(4, ...shown.map((r) => r.accepted + 1));
  const step = width / n;
  return shown.map(({ accepted, end }, i) => ({
    x: i * step,
    width: step * 0.8,
    guessed: (accepted / most) * height,
    own: height / most,
    end,
  }));
}

/** Bars of shares between 0 and 1, as wide as the box allows and no wider than `widest`. */
export function shareBars(shares, { width, height, widest }) {
  const step = Math.min(width / Math.max(1, shares.length), widest);
  return shares.map((share, i) => ({ x: i * step, width: step * 0.8, height: share * height, share }));
}
