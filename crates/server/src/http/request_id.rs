//! Names of requests and answers. A client's own `x-request-id` is kept, so that its logs and ours can be laid together.

use std::hash::{BuildHasher, RandomState};
use std::sync::LazyLock;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use axum::http::HeaderMap;

const MAX_GIVEN_BYTES: usize = 128;

/// What a request is called in logs and in its answer's header.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RequestId(pub(crate) String);

impl RequestId {
    pub(crate) fn of(headers: &HeaderMap) -> Self {
        let given = headers.get("x-request-id").and_then(|v| v.to_str().ok());
        // It goes into logs: nothing but what an id needs.
        let is_fine = |id: &&str| {
            (1..=MAX_GIVEN_BYTES).contains(&id.len())
                && id.bytes().all(|b| b.is_ascii_alphanumeric() || b"-_.:".contains(&b))
        };
        Self(given.filter(is_fine).map_or_else(|| fresh("req_"), str::to_owned))
    }
}

/// A name nobody had before: `chatcmpl-` and 24 hexadecimal digits. Not a secret.
pub(crate) fn fresh(prefix: &str) -> String {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    static RANDOM: LazyLock<RandomState> = LazyLock::new(RandomState::new);
    let count = COUNT.fetch_add(1, Ordering::Relaxed);
    format!("{prefix}{:016x}{:08x}", RANDOM.hash_one((count, "id")), count as u32)
}

/// A seed for a request that named none; below 2^32, so that every JSON reader keeps it exact.
pub(crate) fn fresh_seed() -> u64 {
    static COUNT: AtomicU64 = AtomicU64::new(0);
    RandomState::new().hash_one(COUNT.fetch_add(1, Ordering::Relaxed)) & 0xffff_ffff
}

/// Seconds since 1970, as `created` fields have it.
pub(crate) fn unix_seconds() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clients_id_is_kept_if_it_can_stand_in_a_log_line() {
        for (given, kept) in [
            ("abc-123_x.y:z", true),
            ("with space", false),
            ("a=b", false),
            (&*"x".repeat(129), false),
            ("", false),
        ] {
            let headers = HeaderMap::from_iter([(
                axum::http::HeaderName::from_static("x-request-id"),
                given.parse().unwrap(),
            )]);
            assert_eq!(RequestId::of(&headers).0 == given, kept, "{given}");
        }
    }

    #[test]
    fn fresh_names_differ() {
        let names: std::collections::HashSet<String> = (0..1000).map(|_| fresh("x-")).collect();
        assert_eq!(names.len(), 1000);
    }
}
