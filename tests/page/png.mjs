// Screenshots with at most 256 colours, a third of the size. Reads what Chromium writes: 8 bits a channel, not interlaced.

import assert from 'node:assert/strict';
import { crc32, deflateSync, inflateSync } from 'node:zlib';

const SIGNATURE = Buffer.from([0x89, 0x50, 0x4e, 0x47, 0x0d, 0x0a, 0x1a, 0x0a]);

function* chunksOf(png) {
  for (let at = 8; at < png.length; at += 12 + png.readUInt32BE(at)) {
    yield { name: png.toString('latin1', at + 4, at + 8), data: png.subarray(at + 8, at + 8 + png.readUInt32BE(at)) };
  }
}

function chunk(name, data) {
  const body = Buffer.concat([Buffer.from(name, 'latin1'), data]);
  const [length, sum] = [Buffer.alloc(4), Buffer.alloc(4)];
  length.writeUInt32BE(data.length);
  sum.writeUInt32BE(crc32(body));
  return Buffer.concat([length, body, sum]);
}

/** `{width, height, pixels}`, three bytes a pixel. */
function decoded(png) {
  const chunks = [...chunksOf(png)];
  const head = chunks.find((c) => c.name === 'IHDR').data;
  const [width, height, depth, kind, interlaced] = [head.readUInt32BE(0), head.readUInt32BE(4), head[8], head[9], head[12]];
  assert.ok(depth === 8 && (kind === 2 || kind === 6) && interlaced === 0, 'a plain RGB or RGBA screenshot');
  const n = kind === 6 ? 4 : 3;
  const raw = inflateSync(Buffer.concat(chunks.filter((c) => c.name === 'IDAT').map((c) => c.data)));
  const stride = width * n;
  const rows = Buffer.alloc(height * stride);
  for (let y = 0; y < height; y += 1) {
    const filter = raw[y * (stride + 1)];
    for (let x = 0; x < stride; x += 1) {
      const at = y * stride + x;
      const left = x >= n ? rows[at - n] : 0;
      const above = y > 0 ? rows[at - stride] : 0;
      const corner = x >= n && y > 0 ? rows[at - stride - n] : 0;
      const guess = [0, left, above, (left + above) >> 1, nearest(left, above, corner)][filter];
      rows[at] = raw[y * (stride + 1) + 1 + x] + guess;
    }
  }
  const pixels = Buffer.alloc(width * height * 3);
  for (let i = 0; i < width * height; i += 1) rows.copy(pixels, i * 3, i * n, i * n + 3);
  return { width, height, pixels };
}

/** The PNG standard's predictor (Paeth): of left, above and corner the one nearest to left + above − corner. */
function nearest(left, above, corner) {
  const by = (value) => Math.abs(left + above - corner - value);
  if (by(left) <= by(above) && by(left) <= by(corner)) return left;
  return by(above) <= by(corner) ? above : corner;
}

/** The most frequent colours that differ enough from those before, and every colour's place among them. */
function palette(pixels) {
  const counts = new Map();
  for (let i = 0; i < pixels.length; i += 3) {
    const colour = pixels.readUIntBE(i, 3);
    counts.set(colour, (counts.get(colour) ?? 0) + 1);
  }
  const parts = (colour) => [colour >> 16, (colour >> 8) & 255, colour & 255];
  const distance = (a, b) => a.reduce((sum, v, i) => sum + (v - b[i]) ** 2, 0);
  const byFrequency = [...counts].sort((a, b) => b[1] - a[1]).map(([colour]) => colour);
  for (let apart = 0; ; apart += 6) {
    const chosen = [];
    for (const colour of byFrequency) {
      if (chosen.every((other) => distance(parts(colour), other) > apart)) chosen.push(parts(colour));
      if (chosen.length > 256) break;
    }
    if (chosen.length > 256) continue;
    const place = (colour) => chosen.reduce((best, c, i) => (distance(parts(colour), c) < distance(parts(colour), chosen[best]) ? i : best), 0);
    return { chosen, places: new Map(byFrequency.map((colour) => [colour, place(colour)])) };
  }
}

export function withPalette(png) {
  const { width, height, pixels } = decoded(png);
  const { chosen, places } = palette(pixels);
  const rows = Buffer.alloc(height * (width + 1));
  for (let i = 0; i < width * height; i += 1) rows[Math.floor(i / width) * (width + 1) + 1 + (i % width)] = places.get(pixels.readUIntBE(i * 3, 3));
  const head = Buffer.alloc(13);
  head.writeUInt32BE(width, 0);
  head.writeUInt32BE(height, 4);
  head.set([8, 3, 0, 0, 0], 8);
  return Buffer.concat([SIGNATURE, chunk('IHDR', head), chunk('PLTE', Buffer.from(chosen.flat())),
    chunk('IDAT', deflateSync(rows, { level: 9 })), chunk('IEND', Buffer.alloc(0))]);
}
