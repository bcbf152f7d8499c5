//! What a browser sees at `/`.

use axum::response::{Html, IntoResponse};

/// Served as it is: no outside requests, no scripts of others.
pub(crate) async fn page() -> impl IntoResponse {
    Html(concat!(
        "<!doctype html><title>Overdraft</title><h1>Overdraft ",
        env!("CARGO_PKG_VERSION"),
        "</h1><p>The API is at <code>/v1</code>; <a href=\"/openapi.json\">/openapi.json</a> describes it."
    ))
}
