//! `/metrics` for Prometheus: our names, and those that users of vLLM and llama.cpp already chart.

use std::fmt::Write;
use std::sync::Arc;

use axum::body::Body;
use axum::extract::State;
use axum::http::{HeaderValue, Response, header};
use overdraft_engine::{Plain, Stats};

use super::app::App;
use super::counts::Counts;
use crate::handle::{Gauges, Health, Histogram, ModelFacts, Totals};

pub(crate) async fn metrics(State(app): State<Arc<App>>) -> Response<Body> {
    let ready = app.handle.health() == Health::Ready;
    let mut text =
        exposition(app.handle.facts(), &app.handle.gauges(), &app.handle.totals(), &app.counts, ready);
    if let Some((exported, dropped)) = app.config.tracer.counts() {
        let mut of_traces = Exposition { text: String::new(), labels: String::new() };
        let taken = "Spans that the trace collector took.";
        of_traces.counter("overdraft_trace_spans_exported_total", taken, exported as f64);
        let lost = "Spans that the trace collector did not take, or not in time.";
        of_traces.counter("overdraft_trace_spans_dropped_total", lost, dropped as f64);
        text.push_str(&of_traces.text);
    }
    let mut response = Response::new(Body::from(text));
    let kind = HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(header::CONTENT_TYPE, kind);
    response
}

/// The text format. Every name is declared once, before its values.
struct Exposition {
    text: String,
    /// What every value of one maker's names carries.
    labels: String,
}

impl Exposition {
    fn declare(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(self.text, "# HELP {name} {help}\n# TYPE {name} {kind}");
    }

    fn value(&mut self, name: &str, more_labels: &str, value: f64) {
        let labels = [self.labels.as_str(), more_labels];
        let labels: Vec<&str> = labels.into_iter().filter(|l| !l.is_empty()).collect();
        let braces = if labels.is_empty() { String::new() } else { format!("{{{}}}", labels.join(",")) };
        let _ = writeln!(self.text, "{name}{braces} {value}");
    }

    fn counter(&mut self, name: &str, help: &str, value: impl Into<f64>) {
        self.declare(name, "counter", help);
        self.value(name, "", value.into());
    }

    fn gauge(&mut self, name: &str, help: &str, value: impl Into<f64>) {
        self.declare(name, "gauge", help);
        self.value(name, "", value.into());
    }

    fn labelled(&mut self, name: &str, kind: &str, help: &str, values: &[(String, f64)]) {
        self.declare(name, kind, help);
        values.iter().for_each(|(labels, value)| self.value(name, labels, *value));
    }

    fn histogram(&mut self, name: &str, help: &str, histogram: &Histogram) {
        self.declare(name, "histogram", help);
        let mut up_to = 0;
        for (bound, count) in histogram.bounds.iter().zip(&histogram.counts) {
            up_to += count;
            self.value(&format!("{name}_bucket"), &format!("le=\"{bound}\""), up_to as f64);
        }
        self.value(&format!("{name}_bucket"), "le=\"+Inf\"", histogram.count() as f64);
        self.value(&format!("{name}_sum"), "", histogram.sum);
        self.value(&format!("{name}_count"), "", histogram.count() as f64);
    }

    /// The four names both peers have for speculation.
    fn speculation(&mut self, prefix: &str, stats: &Stats) {
        let name = |what: &str| format!("{prefix}spec_decode_num_{what}_total");
        let (drafts, tokens, accepted) = by_depth(stats);
        self.counter(&name("drafts"), "Rounds that drafted.", drafts as f64);
        self.counter(&name("draft_tokens"), "Tokens drafted, a tree counted by its depth.", tokens as f64);
        self.counter(&name("accepted_tokens"), "Drafted tokens that were accepted.", accepted as f64);
        let values: Vec<(String, f64)> = stats
            .by_depth
            .iter()
            .enumerate()
            .map(|(position, (_, accepted))| (format!("position=\"{position}\""), f64::from(*accepted)))
            .collect();
        self.labelled(&name("accepted_tokens_per_pos"), "counter", "Accepted tokens by depth.", &values);
    }
}

fn by_depth(stats: &Stats) -> (u64, u64, u64) {
    let sum = |of: fn(&(u32, u32)) -> u32| stats.by_depth.iter().map(|d| u64::from(of(d))).sum();
    (u64::from(stats.by_depth[0].0), sum(|d| d.0), sum(|d| d.1))
}

/// A label's value: quotes, backslashes and line feeds escaped.
fn label(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n")
}

fn exposition(facts: &ModelFacts, gauges: &Gauges, totals: &Totals, counts: &Counts, ready: bool) -> String {
    let mut e = Exposition { text: String::with_capacity(32 << 10), labels: String::new() };
    ours(&mut e, gauges, totals, counts, ready);
    e.labels = format!("model_name=\"{}\",engine=\"0\"", label(&facts.about.name));
    vllm(&mut e, gauges, totals);
    e.labels = String::new();
    llama_cpp(&mut e, gauges, totals);
    e.text
}

fn ours(e: &mut Exposition, gauges: &Gauges, totals: &Totals, counts: &Counts, ready: bool) {
    e.gauge("overdraft_ready", "1 while new requests are taken.", f64::from(u8::from(ready)));
    e.gauge("overdraft_slots", "Requests that can run at once.", gauges.slots as f64);
    e.gauge("overdraft_slots_used", "Requests that have a place.", gauges.slots_used as f64);
    e.gauge("overdraft_kv_pages", "Pages of 64 positions.", gauges.pages as f64);
    e.gauge("overdraft_kv_pages_used", "Pages in use.", gauges.pages_used as f64);
    e.gauge(
        "overdraft_prefix_blocks",
        "Blocks of 64 tokens in the prefix cache.",
        gauges.cached_blocks as f64,
    );
    let s = &totals.stats;
    let mut rounds = vec![
        ("mode=\"chain\",reason=\"\"".to_owned(), s.chains as f64),
        ("mode=\"tree\",reason=\"\"".to_owned(), s.trees as f64),
    ];
    let plain = s.plain.iter().zip(Plain::ALL);
    rounds.extend(plain.map(|(n, why)| (format!("mode=\"plain\",reason=\"{}\"", why.name()), *n as f64)));
    e.labelled("overdraft_rounds_total", "counter", "Rounds that wrote, by mode and why.", &rounds);
    e.counter("overdraft_draft_nodes_total", "Nodes of draft trees.", s.drafted as f64);
    e.gauge("overdraft_tokens_per_round", "Tokens that a round brought, on average.", s.tokens_per_round());
    let phases = [
        ("propose", s.phases.propose),
        ("verify", s.phases.verify),
        ("accept", s.phases.accept),
        ("commit", s.phases.commit),
    ];
    let phases = phases.map(|(name, time)| (format!("phase=\"{name}\""), time.as_secs_f64()));
    e.labelled("overdraft_phase_seconds_total", "counter", "Where the time of rounds went.", &phases);
    let f = &totals.failed;
    let failed = [
        ("request", f.request),
        ("deadline", f.deadline),
        ("slow_reader", f.slow_reader),
        ("engine", f.engine),
        ("cancelled", f.cancelled),
        ("queue_full", f.refused_busy),
    ];
    let failed = failed.map(|(reason, n)| (format!("reason=\"{reason}\""), n as f64));
    e.labelled("overdraft_requests_failed_total", "counter", "Requests that did not finish.", &failed);
    let all = counts.all();
    let by = |of: fn(&super::counts::Counted) -> f64| -> Vec<(String, f64)> {
        let value = |((route, method, status), counted): &((String, &str, u16), _)| {
            (format!("route=\"{}\",method=\"{method}\",status=\"{status}\"", label(route)), of(counted))
        };
        all.iter().map(value).collect()
    };
    e.labelled(
        "overdraft_http_requests_total",
        "counter",
        "Requests; 499 left early.",
        &by(|c| c.requests as f64),
    );
    e.labelled("overdraft_http_request_seconds_total", "counter", "Time they took.", &by(|c| c.seconds));
}

fn vllm(e: &mut Exposition, gauges: &Gauges, totals: &Totals) {
    e.gauge("vllm:num_requests_running", "Requests that run.", gauges.running as f64);
    e.gauge("vllm:num_requests_waiting", "Requests that wait.", gauges.waiting as f64);
    let used = if gauges.pages == 0 { 0.0 } else { gauges.pages_used as f64 / gauges.pages as f64 };
    e.gauge("vllm:kv_cache_usage_perc", "Share of KV pages in use, 0 to 1.", used);
    let config = format!("block_size=\"{}\",num_gpu_blocks=\"{}\"", overdraft_plan::PAGE, gauges.pages);
    e.labelled("vllm:cache_config_info", "gauge", "Sizes of the KV cache.", &[(config, 1.0)]);
    e.counter("vllm:prompt_tokens_total", "Prompt tokens.", totals.prompt_tokens as f64);
    e.counter(
        "vllm:prefix_cache_queries_total",
        "Prompt tokens looked for in it.",
        totals.prompt_tokens as f64,
    );
    e.counter("vllm:prefix_cache_hits_total", "Those found in it.", totals.cached_tokens as f64);
    e.counter("vllm:generation_tokens_total", "Tokens written.", totals.generated_tokens as f64);
    let f = &totals.finished;
    let finished = [
        ("stop", f.end_token + f.stop_string + f.constraint),
        ("length", f.max_tokens + f.context),
        ("abort", totals.failed.cancelled),
    ];
    let finished = finished.map(|(reason, n)| (format!("finished_reason=\"{reason}\""), n as f64));
    e.labelled("vllm:request_success_total", "counter", "Requests that finished.", &finished);
    e.counter(
        "vllm:num_preemptions_total",
        "Requests put back; admission reserves a whole life, so none.",
        0.0,
    );
    for (name, help, histogram) in [
        ("time_to_first_token_seconds", "From submission to the first token.", &totals.first_token_seconds),
        ("inter_token_latency_seconds", "Between tokens of a stream.", &totals.inter_token_seconds),
        ("request_time_per_output_token_seconds", "Of a request, by its tokens.", &totals.per_token_seconds),
        ("e2e_request_latency_seconds", "From submission to the end.", &totals.request_seconds),
        ("request_queue_time_seconds", "Waiting to be admitted.", &totals.queue_seconds),
        ("request_prefill_time_seconds", "Reading the prompt.", &totals.prompt_seconds),
        ("request_decode_time_seconds", "Writing.", &totals.generation_seconds),
        ("iteration_tokens_total", "Tokens that a step brought.", &totals.step_tokens),
    ] {
        e.histogram(&format!("vllm:{name}"), help, histogram);
    }
    e.speculation("vllm:", &totals.stats);
}

fn llama_cpp(e: &mut Exposition, gauges: &Gauges, totals: &Totals) {
    let s = &totals.stats;
    e.counter("llamacpp:prompt_tokens_total", "Prompt tokens.", totals.prompt_tokens as f64);
    e.counter("llamacpp:prompt_seconds_total", "Time of reading prompts.", s.prompt_time.as_secs_f64());
    e.counter("llamacpp:tokens_predicted_total", "Tokens written.", totals.generated_tokens as f64);
    e.counter("llamacpp:tokens_predicted_seconds_total", "Time of writing.", s.generation_time.as_secs_f64());
    e.gauge("llamacpp:prompt_tokens_seconds", "Prompt tokens a second.", s.prompt_rate());
    e.gauge("llamacpp:predicted_tokens_seconds", "Tokens written a second.", s.generation_rate());
    e.gauge("llamacpp:requests_processing", "Requests that run.", gauges.running as f64);
    e.gauge("llamacpp:requests_deferred", "Requests that wait.", gauges.waiting as f64);
    e.counter("llamacpp:n_decode_total", "Steps of the engine.", totals.steps as f64);
    let busy = if totals.steps == 0 { 0.0 } else { s.rounds as f64 / totals.steps as f64 };
    e.gauge("llamacpp:n_busy_slots_per_decode", "Requests that wrote in a step, on average.", busy);
    e.speculation("llamacpp:", s);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn histograms_are_cumulated_and_end_at_infinity() {
        let mut h = Histogram::new(&[1.0, 2.0]);
        [0.5, 1.5, 9.0].into_iter().for_each(|v| h.add(v));
        let mut e = Exposition { text: String::new(), labels: "a=\"b\"".into() };
        e.histogram("x", "help", &h);
        assert_eq!(
            e.text,
            "# HELP x help\n# TYPE x histogram\nx_bucket{a=\"b\",le=\"1\"} 1\nx_bucket{a=\"b\",le=\"2\"} 2\n\
             x_bucket{a=\"b\",le=\"+Inf\"} 3\nx_sum{a=\"b\"} 11\nx_count{a=\"b\"} 3\n"
        );
    }

    #[test]
    fn labels_cannot_break_out() {
        assert_eq!(label("a\"b\\c\nd"), "a\\\"b\\\\c\\nd");
    }
}
