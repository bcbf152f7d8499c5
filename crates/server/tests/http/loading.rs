//! Before the model is there.

use serde_json::json;

use crate::client::{get, post};

#[test]
fn while_the_model_is_loaded_everybody_hears_that_it_is() {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
    let listener = runtime.block_on(tokio::net::TcpListener::bind("127.0.0.1:0")).unwrap();
    let address = listener.local_addr().unwrap();
    runtime.spawn(overdraft_server::http::loading(listener));
    assert_eq!(get(address, "/live").status, 200);
    assert_eq!(
        get(address, "/").header("content-type"),
        Some("text/html; charset=utf-8"),
        "the page says so too"
    );
    let health = get(address, "/health");
    assert_eq!((health.status, health.json()), (503, json!({"status": "loading"})));
    let refused = post(address, "/v1/chat/completions", &json!({}));
    assert_eq!((refused.status, refused.header("retry-after")), (503, Some("2")));
    assert_eq!(refused.json()["error"]["code"], "loading");
    assert_eq!(post(address, "/v1/messages", &json!({})).json()["error"]["type"], "overloaded_error");
}
