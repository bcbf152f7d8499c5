//! The 64 bits that say where in shared memory `wgmma` finds a matrix.

/// Rows of 128 bytes after which the swizzle of 128 bytes begins anew.
const PATTERN: u32 = 1024;

/// Of a matrix whose rows (columns, for B) lie along k.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Descriptor {
    start: u32,
    /// From the first 8 numbers along k to the second.
    leading: u32,
    /// From 8 rows to the next 8.
    stride: u32,
    /// From a row to the next.
    row: u32,
    /// Of an address, the bits that are flipped by those three places above.
    swizzled: u32,
}

impl Descriptor {
    /// Layouts that no kernel has are refused.
    pub(crate) fn read(bits: u64) -> Result<Self, String> {
        let bytes = |from: u32| (bits >> from & 0x3fff) as u32 * 16;
        let (start, leading, stride) = (bytes(0), bytes(16), bytes(32));
        if bits >> 49 & 7 != 0 {
            return Err(format!("descriptor {bits:#018x}: a base offset is not supported"));
        }
        match bits >> 62 {
            0 => Ok(Self { start, leading, stride, row: 16, swizzled: 0 }),
            // Without a base offset the pattern begins where addresses are multiples of its length.
            1 if start % PATTERN > 96 || stride % PATTERN != 0 => Err(format!(
                "descriptor {bits:#018x}: rows swizzled from within a pattern of {PATTERN} bytes"
            )),
            // The leading offset has no meaning here: both eights are in the same 128 bytes.
            1 => Ok(Self { start, leading: 16, stride, row: 128, swizzled: 0x70 }),
            layout => Err(format!("descriptor {bits:#018x}: layout {layout} is not supported")),
        }
    }

    /// Where in shared memory the 16 bytes of row `n` are that hold k = 8 `k8` and the next seven.
    #[inline]
    pub(crate) fn row(&self, n: usize, k8: usize) -> u32 {
        let n = n as u32;
        let address = self.start + k8 as u32 * self.leading + n / 8 * self.stride + n % 8 * self.row;
        address ^ (address >> 3 & self.swizzled)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn descriptor(start: u64, leading: u64, stride: u64, layout: u64) -> u64 {
        start >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | layout << 62
    }

    #[test]
    fn rows_of_squares_lie_one_after_the_other() {
        let at = Descriptor::read(descriptor(0x400, 128, 2080, 0)).unwrap();
        for (n, k8, place) in [
            (0, 0, 1024),
            (1, 0, 1040),
            (7, 0, 1136),
            (0, 1, 1152),
            (7, 1, 1264),
            (8, 0, 3104),
            (9, 1, 3248),
            (63, 1, 1024 + 7 * 2080 + 128 + 112),
        ] {
            assert_eq!(at.row(n, k8), place, "row {n}, eight {k8}");
        }
    }

    #[test]
    fn all_bits_of_an_offset_count() {
        let at = Descriptor::read(descriptor(0x3fff0, 0x3fff0, 0x3fff0, 0)).unwrap();
        assert_eq!((at.row(0, 0), at.row(0, 1), at.row(8, 0)), (0x3fff0, 0x7ffe0, 0x7ffe0));
    }

    #[test]
    fn pieces_of_swizzled_rows_lie_at_piece_xor_row() {
        // Steps of 16 columns are 32 bytes apart.
        for step in 0..4 {
            let at = Descriptor::read(descriptor(2048 + 32 * step as u64, 16, 1024, 1)).unwrap();
            for n in 0..24 {
                for k8 in 0..2 {
                    let place = 2048 + n / 8 * 1024 + n % 8 * 128 + ((2 * step + k8) ^ (n % 8)) * 16;
                    assert_eq!(at.row(n, k8) as usize, place, "step {step}, row {n}, eight {k8}");
                }
            }
        }
    }

    #[test]
    fn what_is_not_understood_is_refused() {
        for bits in [
            descriptor(0, 128, 256, 2),
            descriptor(0, 128, 256, 3),
            descriptor(0, 128, 256, 0) | 1 << 49,
            descriptor(0, 128, 1024, 1) | 4 << 49,
            descriptor(128, 16, 1024, 1),
            descriptor(112, 16, 1024, 1),
            descriptor(0, 16, 512, 1),
        ] {
            assert!(Descriptor::read(bits).is_err(), "{bits:#x}");
        }
    }
}
