//! What is told to those who run it: metrics, settings, logs; and what is told to nobody.

use overdraft_server::http::HttpConfig;
use overdraft_server::http::keys::Keys;
use overdraft_server::http::log::{Kept, Log, LogFormat};
use serde_json::{Value, json};

use crate::client::{get, post, send};
use crate::server::{CONTEXT, plain, until, with};

#[test]
fn metrics_have_the_names_that_people_chart() {
    post(plain(), "/v1/completions", &json!({"prompt": "def f():", "max_tokens": 4})).ok();
    let answer = get(plain(), "/metrics");
    assert!(answer.header("content-type").unwrap().starts_with("text/plain; version=0.0.4"));
    let text = answer.text();
    let value = |name: &str| -> f64 {
        let line = text.lines().find(|l| l.starts_with(name) && !l.starts_with('#'));
        line.unwrap_or_else(|| panic!("{name} is missing")).rsplit(' ').next().unwrap().parse().unwrap()
    };
    for name in [
        "vllm:num_requests_running{model_name=\"demo\",engine=\"0\"}",
        "vllm:num_requests_waiting",
        "vllm:kv_cache_usage_perc",
        "vllm:cache_config_info{model_name=\"demo\",engine=\"0\",block_size=\"64\"",
        "vllm:prefix_cache_queries_total",
        "vllm:prefix_cache_hits_total",
        "vllm:request_success_total{model_name=\"demo\",engine=\"0\",finished_reason=\"length\"}",
        "vllm:time_to_first_token_seconds_bucket",
        "vllm:inter_token_latency_seconds_sum",
        "vllm:e2e_request_latency_seconds_count",
        "vllm:iteration_tokens_total_count",
        "vllm:spec_decode_num_drafts_total",
        "vllm:spec_decode_num_accepted_tokens_per_pos_total{model_name=\"demo\",engine=\"0\",position=\"0\"}",
        "llamacpp:prompt_tokens_total",
        "llamacpp:tokens_predicted_total",
        "llamacpp:requests_processing",
        "llamacpp:requests_deferred",
        "llamacpp:n_decode_total",
        "llamacpp:spec_decode_num_draft_tokens_total",
        "overdraft_rounds_total{mode=\"tree\"",
        "overdraft_http_requests_total{route=\"/v1/completions\",method=\"POST\",status=\"200\"}",
    ] {
        value(name);
    }
    assert!(value("vllm:generation_tokens_total") >= 4.0);
    // Every value stands under one declaration of its name.
    let declared: Vec<&str> =
        text.lines().filter_map(|l| l.strip_prefix("# TYPE ")?.split(' ').next()).collect();
    let mut once = declared.clone();
    once.sort();
    once.dedup();
    assert_eq!(once.len(), declared.len());
    for line in text.lines().filter(|l| !l.starts_with('#')) {
        let name = line.split(['{', ' ']).next().unwrap();
        let base = ["_bucket", "_sum", "_count"].iter().find_map(|s| name.strip_suffix(s)).unwrap_or(name);
        assert!(declared.contains(&name) || declared.contains(&base), "{line}");
        assert!(line.rsplit(' ').next().unwrap().parse::<f64>().is_ok(), "{line}");
    }
}

#[test]
fn settings_are_told_and_paths_are_not() {
    let props = get(plain(), "/props").ok();
    assert_eq!(props["default_generation_settings"]["n_ctx"], CONTEXT);
    assert_eq!((&props["model_alias"], &props["draft"]), (&json!("demo"), &json!("demo-draft")));
    assert!(!props.to_string().contains(env!("CARGO_MANIFEST_DIR")));
    assert_eq!(get(plain(), "/version").ok()["version"], env!("CARGO_PKG_VERSION"));
    assert!(get(plain(), "/tokenizer_info").ok()["vocab_size"].as_u64().unwrap() > 0);
}

/// Canaries: what must not be found in logs, errors or metrics.
const PROMPT: &str = "canary-prompt-7431";
const KEY: &str = "canary-key-90210";

#[test]
fn nothing_that_clients_wrote_is_found_in_logs_errors_or_metrics() {
    let kept = Kept::default();
    let keys = Keys::from_lines(KEY).unwrap();
    let log = Log::new(kept.clone(), LogFormat::Json);
    let address = with(HttpConfig { keys, log, ..HttpConfig::default() }).address;
    let bearer = format!("Bearer {KEY}");
    let wrong = format!("Bearer {KEY}x");
    let ask = |key: &str, path: &str, body: Value| {
        let headers =
            [("content-type", "application/json"), ("authorization", key), ("x-request-id", "canary-1")];
        send(address, "POST", path, &headers, body.to_string().as_bytes())
    };
    let right = json!({"messages": [{"role": "user", "content": PROMPT}], "max_tokens": 2, "user": PROMPT});
    assert_eq!(ask(&bearer, "/v1/chat/completions", right.clone()).status, 200);
    let mut refusals = vec![ask(&wrong, "/v1/chat/completions", right)];
    for body in [
        json!({"messages": PROMPT}),
        json!({"messages": [{"role": PROMPT, "content": PROMPT}]}),
        json!({"messages": [{"role": "user", "content": [{"type": PROMPT}]}]}),
        json!({"messages": [{"role": "user", "content": "x"}], "model": PROMPT}),
        json!({"messages": [{"role": "user", "content": "x"}], "tool_choice": PROMPT}),
        json!({"messages": [{"role": "user", "content": "x"}], "stop": {PROMPT: 1}}),
        json!({"messages": [{"role": "user", "content": "x"}], "logit_bias": {PROMPT: 1}}),
        json!({"messages": [{"role": "user", "content": "x"}], "response_format": {"type": PROMPT}}),
        json!({"messages": [{"role": "user", "content": "x"}], "temperature": PROMPT}),
    ] {
        refusals.push(ask(&bearer, "/v1/chat/completions", body));
    }
    refusals.push(ask(&bearer, &format!("/{PROMPT}"), json!({})));
    for refused in &refusals {
        assert!((400..500).contains(&refused.status), "{}", refused.text());
        assert!(!refused.text().contains("canary"), "{}", refused.text());
    }
    let metrics = send(address, "GET", "/metrics", &[("authorization", &bearer)], b"");
    assert!(metrics.status == 200 && !metrics.text().contains("canary"));
    let lines = || String::from_utf8(kept.0.lock().unwrap().clone()).unwrap();
    until("every request has its line", || {
        lines().matches("\"event\":\"request\"").count() == refusals.len() + 1
    });
    let lines = lines();
    assert!(!lines.contains(PROMPT) && !lines.contains(KEY), "{lines}");
    let first: Value =
        serde_json::from_str(lines.lines().find(|l| l.contains("\"status\":200")).unwrap()).unwrap();
    assert_eq!((&first["id"], &first["route"]), (&json!("canary-1"), &json!("/v1/chat/completions")));
    assert_eq!(first["completion_tokens"], 2);
}
