//! GPT-2's byte alphabet: vocabularies spell each byte as one printable character, so that a token is readable text.
//! Bytes 33–126, 161–172 and 174–255 stand for themselves; the rest, in order, became U+0100 and up (space is Ġ).

const fn is_printable(byte: u8) -> bool {
    matches!(byte, 33..=126 | 161..=172 | 174..=255)
}

/// The 68 bytes that are not printable got the code points U+0100..=U+0143.
const N_CHARS: usize = 0x144;
const NOT_A_BYTE: u16 = u16::MAX;

const BYTE_OF_CHAR: [u16; N_CHARS] = {
    let mut table = [NOT_A_BYTE; N_CHARS];
    let mut byte = 0;
    let mut next_moved = 0x100;
    while byte < 256 {
        if is_printable(byte as u8) {
            table[byte] = byte as u16;
        } else {
            table[next_moved] = byte as u16;
            next_moved += 1;
        }
        byte += 1;
    }
    table
};

/// Appends the bytes that `text` spells. `false`, with `out` as it was, when a character is outside the alphabet.
pub(super) fn decode_into(text: &str, out: &mut Vec<u8>) -> bool {
    let before = out.len();
    let mut rest = text.as_bytes();
    loop {
        // The alphabet's characters have one or two bytes in UTF-8, so there is no need for a full decoder.
        let (code, after) = match *rest {
            [] => return true,
            [ascii @ ..0x80, ref after @ ..] => (usize::from(ascii), after),
            [lead @ ..0xe0, low, ref after @ ..] => {
                (usize::from(lead & 0x1f) << 6 | usize::from(low & 0x3f), after)
            }
            _ => (N_CHARS, rest),
        };
        match BYTE_OF_CHAR.get(code) {
            Some(&byte) if byte != NOT_A_BYTE => out.push(byte as u8),
            _ => {
                out.truncate(before);
                return false;
            }
        }
        rest = after;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[track_caller]
    fn check(text: &str, bytes: Option<&[u8]>) {
        let mut out = vec![7];
        let decoded = decode_into(text, &mut out);
        assert_eq!(out[0], 7);
        assert_eq!(decoded.then(|| &out[1..]), bytes, "{text:?}");
    }

    #[test]
    #[rustfmt::skip]
    fn spells_bytes_as_gpt2_does() {
        check("Ġthe",  Some(b" the"));
        check("ĊĉčĀ",  Some(b"\n\t\r\0"));
        check("é",     Some(&[0xe9]));
        check("ł",     Some(&[0xa0]));
        check("Ń",     Some(&[0xad]));
        check("",      Some(b""));
        check("a b",   None);
        check("\u{ad}", None);
        check("ń",     None);
        check("中",    None);
    }

    #[test]
    fn every_byte_has_exactly_one_character() {
        let mut seen = [0; 256];
        for code in 0..0x300u32 {
            let mut out = Vec::new();
            if let Some(c) = char::from_u32(code)
                && decode_into(c.encode_utf8(&mut [0; 4]), &mut out)
            {
                seen[out[0] as usize] += 1;
            }
        }
        assert_eq!(seen, [1; 256]);
    }
}
