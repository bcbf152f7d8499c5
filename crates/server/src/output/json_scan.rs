//! Where a JSON value ends, while it is being written.

/// Follows brackets and strings only: what it lets through may still be no JSON, which the parser of the whole finds out.
#[derive(Clone, Debug, Default)]
pub(super) struct JsonScan {
    /// A bit for each open bracket, 1 for a brace: room for [`MAX_DEPTH`].
    braces: u128,
    depth: u8,
    in_string: bool,
    escaped: bool,
}

/// What serde_json reads by default.
const MAX_DEPTH: u8 = 127;

#[derive(Debug, PartialEq, Eq)]
pub(super) enum Scan {
    Open,
    Closed,
    NoJson,
}

impl JsonScan {
    /// Behind the first bracket.
    pub(super) fn begun(bracket: char) -> Self {
        let mut scan = Self::default();
        scan.push(bracket);
        scan
    }

    /// Brackets that are open.
    pub(super) fn depth(&self) -> u8 {
        self.depth
    }

    pub(super) fn is_in_string(&self) -> bool {
        self.in_string
    }

    /// What closes all brackets that are open.
    pub(super) fn closing(&self) -> String {
        (0..self.depth).map(|i| if self.braces >> i & 1 == 1 { '}' } else { ']' }).collect()
    }

    /// Takes the next character; the first has to be a bracket.
    pub(super) fn push(&mut self, c: char) -> Scan {
        if self.in_string {
            match c {
                _ if self.escaped => self.escaped = false,
                '\\' => self.escaped = true,
                '"' => self.in_string = false,
                _ => {}
            }
            return Scan::Open;
        }
        match c {
            '{' | '[' => {
                if self.depth == MAX_DEPTH {
                    return Scan::NoJson;
                }
                self.depth += 1;
                self.braces = self.braces << 1 | u128::from(c == '{');
            }
            '}' | ']' => {
                if self.depth == 0 || (self.braces & 1 == 1) != (c == '}') {
                    return Scan::NoJson;
                }
                self.depth -= 1;
                self.braces >>= 1;
                if self.depth == 0 {
                    return Scan::Closed;
                }
            }
            _ if self.depth == 0 => return Scan::NoJson,
            '"' => self.in_string = true,
            ':' | ',' | '+' | '-' | '.' | ' ' | '\n' | '\r' | '\t' => {}
            c if c.is_ascii_alphanumeric() => {}
            _ => return Scan::NoJson,
        }
        Scan::Open
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[rustfmt::skip]
    fn a_value_ends_at_its_last_bracket() {
        for (text, end) in [
            (r#"{"a": [1, {"b": null}]}"#,    Ok(23)),
            (r#"{"a": "}]\"}"} tail"#,        Ok(14)),
            (r#"[{}] "#,                      Ok(4)),
            (r#"{"a": 1]"#,                   Err(Scan::NoJson)),
            (r#"{"a": <"#,                    Err(Scan::NoJson)),
            (r#"a"#,                          Err(Scan::NoJson)),
            ("{\"a\": \"line\nline\"}",       Ok(18)),
            (r#"{"a": "#,                     Err(Scan::Open)),
        ] {
            let mut scan = JsonScan::default();
            let stopped = text.char_indices().map(|(at, c)| (at, scan.push(c))).find(|(_, s)| *s != Scan::Open);
            let got = match stopped {
                Some((at, Scan::Closed)) => Ok(at + 1),
                Some((_, other)) => Err(other),
                None => Err(Scan::Open),
            };
            assert_eq!(got, end, "{text}");
        }
    }

    #[test]
    fn depth_is_bounded() {
        let mut scan = JsonScan::default();
        assert!((0..127).all(|_| scan.push('[') == Scan::Open));
        assert_eq!(scan.push('['), Scan::NoJson);
    }
}
