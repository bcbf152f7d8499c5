//! Encoders of Q4_K and Q6_K. Each sub-block first gets the scale that fits it best in real numbers, found by
//! rounding at a range of steps and solving least squares for each; then the scales are rounded to the block's
//! small integers, their neighbours are tried, and the codes are chosen anew for the winner.

use half::f16;

/// Candidate steps lie around the one that spans the range exactly: a little finer clips the ends and serves the
/// many small values better.
const STEP_TRIALS: i32 = 10;
const STEP_SPACING: f32 = 0.1;

/// The half float nearest `v` on the side away from zero, so that the greatest small integer never needs to be
/// greater than it can. Usual weights (rms 0.02) have Q6_K scales of 1e-5, where half floats are only 6e-8 apart.
fn f16_outward(v: f32) -> f32 {
    let nearest = f16::from_f32(v);
    let outward =
        if nearest.to_f32().abs() < v.abs() { f16::from_bits(nearest.to_bits() + 1) } else { nearest };
    // `largest_encodable` keeps what comes in within a rounding of the end.
    outward.to_f32().clamp(-65504.0, 65504.0)
}

/// How much an element's error counts. Large weights matter more than their share of the squared error tells;
/// ggml weighs the same way when it has no importance matrix.
fn importance<const N: usize>(x: &[f32; N]) -> [f32; N] {
    let rms = (x.iter().map(|v| v * v).sum::<f32>() / N as f32).sqrt();
    x.map(|v| rms + v.abs())
}

// ---- Q4_K: x ≈ scale·code − min, codes 0 to 15, scale and min not negative -----------------------------------

#[derive(Clone, Copy, Default)]
struct Line {
    scale: f32,
    min: f32,
}

fn code4(x: f32, inverse_scale: f32, min: f32) -> u8 {
    // A cast truncates and saturates, and takes NaN to 0. `round()` is a library call on plain x86-64: with
    // it a Q4_K row took 575 ns a value instead of 330.
    (((x + min) * inverse_scale + 0.5) as u8).min(15)
}

fn line_error(x: &[f32; 32], w: &[f32; 32], line: Line) -> f32 {
    let inverse = if line.scale > 0.0 { 1.0 / line.scale } else { 0.0 };
    let error = |(&x, &w): (&f32, &f32)| {
        let e = line.scale * f32::from(code4(x, inverse, line.min)) - line.min - x;
        w * e * e
    };
    x.iter().zip(w).map(error).sum()
}

/// The weighted least-squares line through (code, x), with min kept from going negative.
fn solve_line(x: &[f32; 32], w: &[f32; 32], codes: &[u8; 32]) -> Line {
    let (mut s_w, mut s_q, mut s_qq, mut s_x, mut s_qx) = (0.0f32, 0.0f32, 0.0f32, 0.0f32, 0.0f32);
    for ((&x, &w), &q) in x.iter().zip(w).zip(codes) {
        let q = f32::from(q);
        s_w += w;
        s_q += w * q;
        s_qq += w * q * q;
        s_x += w * x;
        s_qx += w * q * x;
    }
    let det = s_w * s_qq - s_q * s_q;
    let free = Line { scale: (s_w * s_qx - s_q * s_x) / det, min: (s_q * s_qx - s_qq * s_x) / det };
    if det > 0.0 && free.min >= 0.0 {
        free
    } else {
        Line { scale: if s_qq > 0.0 { s_qx / s_qq } else { 0.0 }, min: 0.0 }
    }
}

fn fit_line(x: &[f32; 32], w: &[f32; 32]) -> Line {
    let lowest = x.iter().copied().fold(0.0, f32::min);
    let highest = x.iter().copied().fold(lowest, f32::max);
    let flat = Line { scale: 0.0, min: -lowest };
    let mut best = (line_error(x, w, flat), flat);
    if highest == lowest {
        return flat;
    }
    for trial in -STEP_TRIALS..=STEP_TRIALS {
        let inverse = (15.0 + STEP_SPACING * trial as f32) / (highest - lowest);
        let codes = x.map(|v| code4(v, inverse, -lowest));
        let line = solve_line(x, w, &codes);
        let error = line_error(x, w, line);
        // `<` is false for NaN, which a range too small to divide by can bring about.
        if line.scale > 0.0 && error < best.0 {
            best = (error, line);
        }
    }
    best.1
}

/// The 6-bit scale and min nearest `line` that serve `x` best, given the block's units for both.
fn round_line(x: &[f32; 32], w: &[f32; 32], line: Line, d: f32, dmin: f32) -> (u8, u8) {
    let nearest = |v: f32, unit: f32| if unit > 0.0 { (v / unit).round().min(63.0) as i32 } else { 0 };
    let (s0, m0) = (nearest(line.scale, d), nearest(line.min, dmin));
    let mut best = (f32::INFINITY, (s0, m0));
    for s in (s0 - 1).max(0)..=(s0 + 1).min(63) {
        for m in (m0 - 1).max(0)..=(m0 + 1).min(63) {
            let error = line_error(x, w, Line { scale: d * s as f32, min: dmin * m as f32 });
            if error < best.0 {
                best = (error, (s, m));
            }
        }
    }
    (best.1.0 as u8, best.1.1 as u8)
}

pub(super) fn encode_q4_k(values: &[f32], out: &mut Vec<u8>) {
    for block in values.as_chunks::<256>().0 {
        let parts = block.as_chunks::<32>().0;
        let weights: Vec<[f32; 32]> = parts.iter().map(importance).collect();
        let lines: Vec<Line> = parts.iter().zip(&weights).map(|(x, w)| fit_line(x, w)).collect();
        let d = f16_outward(lines.iter().map(|l| l.scale).fold(0.0, f32::max) / 63.0);
        let dmin = f16_outward(lines.iter().map(|l| l.min).fold(0.0, f32::max) / 63.0);

        let mut packed = [0u8; 12];
        let mut codes = [[0u8; 32]; 8];
        for (s, (x, w)) in parts.iter().zip(&weights).enumerate() {
            let (scale, min) = round_line(x, w, lines[s], d, dmin);
            pack_scale_and_min(&mut packed, s, scale, min);
            let step = d * f32::from(scale);
            let inverse = if step > 0.0 { 1.0 / step } else { 0.0 };
            codes[s] = x.map(|v| code4(v, inverse, dmin * f32::from(min)));
        }
        out.extend_from_slice(&f16::from_f32(d).to_le_bytes());
        out.extend_from_slice(&f16::from_f32(dmin).to_le_bytes());
        out.extend_from_slice(&packed);
        for [low, high] in codes.as_chunks::<2>().0 {
            out.extend(low.iter().zip(high).map(|(l, h)| l | h << 4));
        }
    }
}

/// The inverse of [`super::scale_and_min`], into zeroed bytes.
fn pack_scale_and_min(packed: &mut [u8; 12], s: usize, scale: u8, min: u8) {
    if s < 4 {
        packed[s] |= scale;
        packed[s + 4] |= min;
    } else {
        packed[s + 4] |= scale & 15 | min << 4;
        packed[s - 4] |= scale >> 4 << 6;
        packed[s] |= min >> 4 << 6;
    }
}

// ---- Q6_K: x ≈ scale·code, codes −32 to 31 -----------------------------------------------------------------

fn code6(x: f32, inverse_scale: f32) -> i8 {
    // Adding 1.5·2^23 leaves no bits for a fraction, which rounds without the library call.
    const ROUNDER: f32 = 12_582_912.0;
    (((x * inverse_scale).clamp(-32.0, 31.0) + ROUNDER) - ROUNDER) as i8
}

fn scale_error(x: &[f32; 16], w: &[f32; 16], scale: f32) -> f32 {
    let inverse = if scale != 0.0 { 1.0 / scale } else { 0.0 };
    let error = |(&x, &w): (&f32, &f32)| {
        let e = scale * f32::from(code6(x, inverse)) - x;
        w * e * e
    };
    x.iter().zip(w).map(error).sum()
}

/// The best scale, of either sign: the codes reach one further down than up.
fn fit_scale(x: &[f32; 16], w: &[f32; 16]) -> f32 {
    let extreme = x.iter().fold(0.0, |best: f32, &v| if v.abs() > best.abs() { v } else { best });
    if extreme == 0.0 {
        return 0.0;
    }
    let mut best = (f32::INFINITY, 0.0);
    for trial in -STEP_TRIALS..=STEP_TRIALS {
        let inverse = -(32.0 + STEP_SPACING * trial as f32) / extreme;
        let (mut s_qx, mut s_qq) = (0.0f32, 0.0f32);
        for (&x, &w) in x.iter().zip(w) {
            let q = f32::from(code6(x, inverse));
            s_qx += w * q * x;
            s_qq += w * q * q;
        }
        let scale = s_qx / s_qq;
        let error = scale_error(x, w, scale);
        if error < best.0 {
            best = (error, scale);
        }
    }
    best.1
}

pub(super) fn encode_q6_k(values: &[f32], out: &mut Vec<u8>) {
    for block in values.as_chunks::<256>().0 {
        let parts = block.as_chunks::<16>().0;
        let weights: Vec<[f32; 16]> = parts.iter().map(importance).collect();
        let fits: Vec<f32> = parts.iter().zip(&weights).map(|(x, w)| fit_scale(x, w)).collect();
        let extreme = fits.iter().fold(0.0, |best: f32, &v| if v.abs() > best.abs() { v } else { best });
        let d = f16_outward(extreme / -128.0);

        let (mut ql, mut qh, mut scales) = ([0u8; 128], [0u8; 64], [0u8; 16]);
        for (k, (x, w)) in parts.iter().zip(&weights).enumerate() {
            let nearest = if d != 0.0 { (fits[k] / d).round().clamp(-128.0, 127.0) as i32 } else { 0 };
            let mut best = (f32::INFINITY, nearest);
            for scale in (nearest - 1).max(-128)..=(nearest + 1).min(127) {
                let error = scale_error(x, w, d * scale as f32);
                if error < best.0 {
                    best = (error, scale);
                }
            }
            scales[k] = best.1 as i8 as u8;
            let step = d * best.1 as f32;
            let inverse = if step != 0.0 { 1.0 / step } else { 0.0 };
            for (i, &v) in x.iter().enumerate() {
                let code = (code6(v, inverse) + 32) as u8;
                let e = 16 * k + i;
                let (h, j, l) = (e / 128, e % 128 / 32, e % 32);
                ql[64 * h + 32 * (j & 1) + l] |= (code & 15) << (4 * (j / 2));
                qh[32 * h + l] |= code >> 4 << (2 * j);
            }
        }
        out.extend_from_slice(&ql);
        out.extend_from_slice(&qh);
        out.extend_from_slice(&scales);
        out.extend_from_slice(&f16::from_f32(d).to_le_bytes());
    }
}

#[cfg(test)]
mod tests {
    use super::super::scale_and_min;
    use super::*;

    #[test]
    fn packed_scales_and_mins_come_back() {
        for round in 0..64u8 {
            let pairs: [(u8, u8); 8] =
                std::array::from_fn(|s| ((round + 9 * s as u8) % 64, (63 - round + 5 * s as u8) % 64));
            let mut packed = [0; 12];
            for (s, (scale, min)) in pairs.into_iter().enumerate() {
                pack_scale_and_min(&mut packed, s, scale, min);
            }
            assert_eq!(std::array::from_fn(|s| scale_and_min(&packed, s)), pairs);
        }
    }

    #[test]
    fn values_on_the_grid_are_kept_almost_exactly() {
        // Sub-blocks that use all codes of one scale and one minimum: nothing to trade off.
        let x: Vec<f32> = (0..256).map(|e| 0.25 * (e % 16) as f32 - 1.5).collect();
        let mut bytes = Vec::new();
        encode_q4_k(&x, &mut bytes);
        let mut back = vec![0.0; 256];
        crate::DType::Q4_K.decode_row(&bytes, &mut back).unwrap();
        for (a, b) in x.iter().zip(&back) {
            assert!((a - b).abs() < 6e-3, "{a} became {b}"); // half floats: 2^-10 of 3.75 and of 1.5
        }
    }
}
