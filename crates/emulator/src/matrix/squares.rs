//! `ldmatrix` and `stmatrix`: squares of 8 x 8 numbers of 16 bits, between shared memory and registers.

use super::Lanes;

/// Eight rows of 16 bytes. Of square m of an instruction, lanes 8m to 8m + 7 have the addresses.
pub(crate) type Square = [[u8; 16]; 8];

/// The register that `ldmatrix.sync.aligned.m8n8.x{1,2,4}{,.trans}.shared.b16` fills with a square.
pub(crate) fn ldmatrix(transposed: bool, square: &Square) -> Lanes {
    std::array::from_fn(|lane| {
        let (row, first) = (lane / 4, lane % 4 * 2);
        let number = |column| {
            let (row, column) = if transposed { (column, row) } else { (row, column) };
            u16::from_le_bytes([square[row][2 * column], square[row][2 * column + 1]]) as u32
        };
        number(first) | number(first + 1) << 16
    })
}

/// The square that `stmatrix.sync.aligned.m8n8.x{1,2,4}{,.trans}.shared.b16` stores of a register.
pub(crate) fn stmatrix(transposed: bool, register: &Lanes) -> Square {
    let mut square = [[0; 16]; 8];
    for (lane, pair) in register.iter().enumerate() {
        for (i, number) in [*pair as u16, (pair >> 16) as u16].into_iter().enumerate() {
            let (row, column) = (lane / 4, lane % 4 * 2 + i);
            let (row, column) = if transposed { (column, row) } else { (row, column) };
            square[row][2 * column..][..2].copy_from_slice(&number.to_le_bytes());
        }
    }
    square
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number (row, column) is 16 row + column, and its bytes differ.
    fn numbered() -> Square {
        std::array::from_fn(|row| {
            std::array::from_fn(|byte| (16 * row + byte / 2 + if byte % 2 == 1 { 0x80 } else { 0 }) as u8)
        })
    }

    fn pair(first: usize, second: usize) -> u32 {
        let number = |n: usize| (n | (n + 0x80) << 8) as u32;
        number(first) | number(second) << 16
    }

    #[test]
    fn a_lane_gets_two_numbers_beside_each_other() {
        let register = ldmatrix(false, &numbered());
        assert_eq!(
            register[..5],
            [pair(0x00, 0x01), pair(0x02, 0x03), pair(0x04, 0x05), pair(0x06, 0x07), pair(0x10, 0x11)]
        );
        assert_eq!(register[31], pair(0x76, 0x77));
    }

    #[test]
    fn transposed_it_gets_two_numbers_below_each_other() {
        let register = ldmatrix(true, &numbered());
        assert_eq!(
            register[..5],
            [pair(0x00, 0x10), pair(0x20, 0x30), pair(0x40, 0x50), pair(0x60, 0x70), pair(0x01, 0x11)]
        );
        assert_eq!(register[31], pair(0x67, 0x77));
    }

    #[test]
    fn what_is_stored_as_it_was_loaded_is_the_same() {
        let square = numbered();
        for transposed in [false, true] {
            assert_eq!(stmatrix(transposed, &ldmatrix(transposed, &square)), square);
        }
    }

    #[test]
    fn one_of_two_transposed_exchanges_rows_and_columns() {
        let square = numbered();
        let exchanged: Square =
            std::array::from_fn(|row| std::array::from_fn(|byte| square[byte / 2][2 * row + byte % 2]));
        assert_eq!(stmatrix(true, &ldmatrix(false, &square)), exchanged);
        assert_eq!(stmatrix(false, &ldmatrix(true, &square)), exchanged);
    }
}
