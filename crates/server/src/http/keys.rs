//! API keys: several, compared in a time that tells nothing about them.

use std::hash::{BuildHasher, RandomState};
use std::hint::black_box;

use axum::http::{HeaderMap, header};

/// Longer keys are refused when they are read, and never match.
pub const MAX_KEY_BYTES: usize = 256;

/// A key as it is compared: padded, so that neither its length nor where it differs changes the work.
#[derive(Clone)]
struct Padded {
    bytes: [u8; MAX_KEY_BYTES],
    len: usize,
}

impl Padded {
    fn of(key: &str) -> Option<Self> {
        let mut bytes = [0; MAX_KEY_BYTES];
        bytes.get_mut(..key.len())?.copy_from_slice(key.as_bytes());
        Some(Self { bytes, len: key.len() })
    }

    fn equals(&self, other: &Self) -> bool {
        let lengths = (self.len ^ other.len) as u64;
        let bytes = self.bytes.iter().zip(&other.bytes).fold(0u8, |all, (a, b)| black_box(all | (a ^ b)));
        lengths | u64::from(bytes) == 0
    }
}

/// The keys a server knows; none means that everybody may ask.
pub struct Keys {
    keys: Vec<Padded>,
    /// Of this process alone, so that nobody outside can tell or guess a salt.
    salting: RandomState,
}

/// Who asks, as far as the rest of the server may know.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Caller {
    /// What one caller wrote is never found in the prefix cache by another.
    pub(crate) salt: u64,
}

/// A key that cannot be one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    #[error("key {0} has fewer than 8 characters; use at least 16 random ones")]
    Short(usize),
    #[error("key {0} has more than {MAX_KEY_BYTES} bytes")]
    Long(usize),
    #[error("key {0} holds a space or a character outside ASCII, which a header cannot carry")]
    Characters(usize),
    #[error("there is no key in it; put one on each line")]
    None,
}

impl Keys {
    /// Everybody may ask.
    pub fn open() -> Self {
        Self { keys: Vec::new(), salting: RandomState::new() }
    }

    /// One key on each line; empty lines and those that begin with `#` count for nothing. Errors count keys from 1 and
    /// never quote them.
    pub fn from_lines(text: &str) -> Result<Self, KeyError> {
        let lines = text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#'));
        let mut keys = Vec::new();
        for (n, key) in lines.enumerate().map(|(i, key)| (i + 1, key)) {
            if key.len() < 8 {
                return Err(KeyError::Short(n));
            }
            if !key.bytes().all(|b| b.is_ascii_graphic()) {
                return Err(KeyError::Characters(n));
            }
            keys.push(Padded::of(key).ok_or(KeyError::Long(n))?);
        }
        if keys.is_empty() { Err(KeyError::None) } else { Ok(Self { keys, salting: RandomState::new() }) }
    }

    pub fn are_needed(&self) -> bool {
        !self.keys.is_empty()
    }

    pub fn count(&self) -> usize {
        self.keys.len()
    }

    /// The caller, if one of the keys is given; `None` otherwise. Every key is compared, whichever matches.
    pub(crate) fn caller(&self, headers: &HeaderMap) -> Option<Caller> {
        if self.keys.is_empty() {
            return Some(Caller { salt: 0 });
        }
        let given = Padded::of(&presented(headers)?)?;
        let found = self.keys.iter().enumerate().fold(None, |found, (i, key)| {
            let same = key.equals(&given);
            if same { Some(i) } else { found }
        });
        // With one key there is one tenant, and its salt is that of nobody.
        found.map(|i| Caller { salt: if self.keys.len() > 1 { self.salt(i) } else { 0 } })
    }

    fn salt(&self, key: usize) -> u64 {
        self.salting.hash_one(("key", key))
    }

    /// A request's own `cache_salt` parts what one key sees further.
    pub(crate) fn salted(&self, caller: Caller, own: Option<&str>) -> u64 {
        own.map_or(caller.salt, |own| self.salting.hash_one((caller.salt, own)))
    }
}

/// `Authorization: Bearer`, Anthropic's `x-api-key`, or what a browser makes of a password.
fn presented(headers: &HeaderMap) -> Option<String> {
    let Some(value) = headers.get(header::AUTHORIZATION) else {
        return headers.get("x-api-key")?.to_str().ok().map(|key| key.trim().to_owned());
    };
    let (scheme, rest) = value.to_str().ok()?.split_once(' ')?;
    if scheme.eq_ignore_ascii_case("bearer") {
        return Some(rest.trim().to_owned());
    }
    if scheme.eq_ignore_ascii_case("basic") {
        let pair = String::from_utf8(base64(rest.trim())?).ok()?;
        return pair.split_once(':').map(|(_, password)| password.to_owned());
    }
    None
}

/// The standard alphabet, padded or not.
fn base64(text: &str) -> Option<Vec<u8>> {
    let digit = |c: u8| match c {
        b'A'..=b'Z' => Some(c - b'A'),
        b'a'..=b'z' => Some(c - b'a' + 26),
        b'0'..=b'9' => Some(c - b'0' + 52),
        b'+' => Some(62),
        b'/' => Some(63),
        _ => None,
    };
    let (mut out, mut bits, mut n_bits) = (Vec::new(), 0u32, 0);
    for c in text.trim_end_matches('=').bytes() {
        bits = (bits << 6 | u32::from(digit(c)?)) & 0xffff;
        n_bits += 6;
        if n_bits >= 8 {
            n_bits -= 8;
            out.push((bits >> n_bits) as u8);
        }
    }
    Some(out)
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;

    use super::*;

    fn headers(name: &'static str, value: &str) -> HeaderMap {
        HeaderMap::from_iter([(
            axum::http::HeaderName::from_static(name),
            HeaderValue::from_str(value).unwrap(),
        )])
    }

    #[test]
    #[rustfmt::skip]
    fn only_whole_keys_open() {
        let keys = Keys::from_lines("# ours\nfirst-key-1\n\n  second-key-2\n").unwrap();
        let may = |name, value: &str| keys.caller(&headers(name, value)).is_some();
        assert!(may("authorization", "Bearer first-key-1"));
        assert!(may("authorization", "bearer second-key-2"));
        assert!(may("x-api-key", "second-key-2"));
        assert!(may("authorization", "Basic bWU6Zmlyc3Qta2V5LTE="), "me:first-key-1");
        assert!(!may("authorization", "Basic Zmlyc3Qta2V5LTE="), "a key without a user");
        for bad in ["Bearer first-key-", "Bearer first-key-11", "Bearer ", "Basic first-key-1", "first-key-1", "Bearer # ours",
                    "Bearer first-key-1\0"] {
            let Ok(value) = HeaderValue::from_bytes(bad.as_bytes()) else { continue };
            assert_eq!(keys.caller(&HeaderMap::from_iter([(header::AUTHORIZATION, value)])), None, "{bad:?}");
        }
        assert!(!may("x-api-key", &"x".repeat(MAX_KEY_BYTES + 1)));
        assert_eq!(keys.caller(&HeaderMap::new()), None);
        assert!(Keys::open().caller(&HeaderMap::new()).is_some());
    }

    #[test]
    fn each_of_several_keys_has_its_own_salt() {
        let keys = Keys::from_lines("first-key-1\nsecond-key-2").unwrap();
        let salt = |key: &str| keys.caller(&headers("x-api-key", key)).unwrap();
        let (a, b) = (salt("first-key-1"), salt("second-key-2"));
        assert_ne!(a, b);
        assert_ne!(keys.salted(a, Some("x")), keys.salted(b, Some("x")));
        assert_eq!(keys.salted(a, None), a.salt);
        let alone = Keys::from_lines("first-key-1").unwrap();
        assert_eq!(alone.caller(&headers("x-api-key", "first-key-1")), Some(Caller { salt: 0 }));
    }

    #[test]
    fn key_files_are_refused_without_quoting_them() {
        for (text, error) in [
            ("# nothing\n", KeyError::None),
            ("good-key-1\nshort", KeyError::Short(2)),
            ("with a space in it", KeyError::Characters(1)),
            (&"x".repeat(257), KeyError::Long(1)),
        ] {
            assert_eq!(Keys::from_lines(text).err(), Some(error));
        }
    }
}
