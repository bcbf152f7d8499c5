//! The vector operations that other ops share: defined here a second time, as plainly as possible.

use overdraft_cpu::linear::{Isa, axpy, dot_f32};

/// Numbers of many sizes, both signs, without a generator: the multiples of an irrational.
fn numbers(n: usize, seed: f32) -> Vec<f32> {
    (0..n).map(|i| ((i as f32 + seed) * 1.618_034).fract() - 0.5).map(|v| v * v * v * 100.0).collect()
}

/// Sixteen lanes, then pairs 8, 4, 2 and 1 apart.
fn dot_by_definition(a: &[f32], b: &[f32]) -> f32 {
    let mut lanes = vec![0f32; 16];
    for i in 0..a.len() {
        lanes[i % 16] = a[i].mul_add(b[i], lanes[i % 16]);
    }
    while lanes.len() > 1 {
        let half = lanes.len() / 2;
        lanes = (0..half).map(|l| lanes[l] + lanes[l + half]).collect();
    }
    lanes[0]
}

const LENGTHS: [usize; 14] = [0, 1, 2, 7, 15, 16, 17, 31, 32, 64, 100, 128, 255, 1024];

#[test]
fn a_dot_has_one_order_of_summation() {
    for n in LENGTHS {
        let (a, b) = (numbers(n, 0.1), numbers(n, 7.7));
        for isa in Isa::available() {
            assert_eq!(
                dot_f32(isa, &a, &b).to_bits(),
                dot_by_definition(&a, &b).to_bits(),
                "{isa}, {n} floats"
            );
        }
    }
}

#[test]
fn axpy_rounds_once() {
    for n in LENGTHS {
        let (x, y) = (numbers(n, 3.3), numbers(n, 4.4));
        let want: Vec<f32> = x.iter().zip(&y).map(|(x, y)| 0.3f32.mul_add(*x, *y)).collect();
        for isa in Isa::available() {
            let mut got = y.clone();
            axpy(isa, 0.3, &x, &mut got);
            assert_eq!(got, want, "{isa}, {n}");
        }
    }
}

#[test]
fn the_detected_instruction_set_is_the_last_of_those_available() {
    let all: Vec<Isa> = Isa::available().collect();
    assert_eq!(all.first(), Some(&Isa::SCALAR));
    assert_eq!(all.last(), Some(&Isa::detect()));
}
