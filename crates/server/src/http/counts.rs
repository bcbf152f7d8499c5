//! Requests by route and status, for `/metrics`.

use std::collections::BTreeMap;
use std::sync::{Mutex, PoisonError};

use axum::http::{Method, StatusCode};

/// 499 is nginx's number for a client that left before its answer.
const LEFT: u16 = 499;

/// Routes are our own patterns and methods are few, so this cannot grow without bound.
#[derive(Default)]
pub(crate) struct Counts {
    requests: Mutex<BTreeMap<(String, &'static str, u16), Counted>>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub(crate) struct Counted {
    pub(crate) requests: u64,
    pub(crate) seconds: f64,
}

impl Counts {
    pub(crate) fn request(&self, method: &Method, route: &str, status: Option<StatusCode>, seconds: f64) {
        let method = match *method {
            Method::GET => "GET",
            Method::POST => "POST",
            Method::HEAD => "HEAD",
            Method::OPTIONS => "OPTIONS",
            _ => "other",
        };
        let key = (route.to_owned(), method, status.map_or(LEFT, |s| s.as_u16()));
        let mut requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        let counted = requests.entry(key).or_default();
        counted.requests += 1;
        counted.seconds += seconds;
    }

    /// (route, method, status) with their counts, in order.
    pub(crate) fn all(&self) -> Vec<((String, &'static str, u16), Counted)> {
        let requests = self.requests.lock().unwrap_or_else(PoisonError::into_inner);
        requests.iter().map(|(key, counted)| (key.clone(), *counted)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whoever_left_without_an_answer_is_counted_apart() {
        let counts = Counts::default();
        counts.request(&Method::POST, "/x", Some(StatusCode::OK), 0.5);
        counts.request(&Method::POST, "/x", Some(StatusCode::OK), 0.25);
        counts.request(&Method::POST, "/x", None, 1.0);
        let all = counts.all();
        assert_eq!(all[0], (("/x".into(), "POST", 200), Counted { requests: 2, seconds: 0.75 }));
        assert_eq!(all[1].0, ("/x".into(), "POST", 499));
    }
}
