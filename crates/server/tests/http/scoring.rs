//! Log-probabilities of prompts, as evaluation harnesses ask for them.

use serde_json::{Value, json};

use crate::client::post;
use crate::server::plain;

const RAW: &str = "/v1/completions";
const LISTS: [&str; 4] = ["tokens", "token_logprobs", "top_logprobs", "text_offset"];

fn ids(text: &str) -> Vec<u64> {
    let tokens = post(plain(), "/tokenize", &json!({"content": text})).ok();
    tokens["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap()).collect()
}

#[test]
fn a_prompt_is_scored_as_it_would_have_been_written() {
    let prompt = ids("def add(a, b):\n");
    let written = post(plain(), RAW, &json!({"prompt": prompt, "max_tokens": 80, "temperature": 0, "logprobs": 2, "return_token_ids": true})).ok();
    let lists = &written["choices"][0]["logprobs"];
    let text = written["choices"][0]["text"].as_str().unwrap();
    let whole = ids(&format!("def add(a, b):\n{text}"));
    assert!(whole.starts_with(&prompt) && whole.len() >= prompt.len() + 64, "more than a page");
    let n = (whole.len() - prompt.len()).min(lists["tokens"].as_array().unwrap().len());
    let scored =
        post(plain(), RAW, &json!({"prompt": whole, "max_tokens": 0, "echo": true, "logprobs": 2})).ok();
    let choice = &scored["choices"][0];
    assert_eq!(
        (&choice["finish_reason"], &scored["usage"]["completion_tokens"]),
        (&json!("length"), &json!(0))
    );
    let scores = &choice["logprobs"];
    assert!(LISTS.iter().all(|name| scores[name].as_array().unwrap().len() == whole.len()));
    assert_eq!((&scores["token_logprobs"][0], &scores["top_logprobs"][0]), (&Value::Null, &Value::Null));
    // Texts that are the same tokens again have the same bits, read or written.
    for i in 0..n {
        assert_eq!(scores["tokens"][prompt.len() + i], lists["tokens"][i]);
        assert_eq!(scores["token_logprobs"][prompt.len() + i], lists["token_logprobs"][i], "{i}");
        assert_eq!(scores["top_logprobs"][prompt.len() + i], lists["top_logprobs"][i], "{i}");
    }
    let tokens = scores["tokens"].as_array().unwrap();
    let joined: String = tokens.iter().map(|t| t.as_str().unwrap()).collect();
    assert_eq!(joined, choice["text"]);
    for (i, token) in tokens.iter().enumerate() {
        let offset = scores["text_offset"][i].as_u64().unwrap() as usize;
        assert!(joined.chars().skip(offset).collect::<String>().starts_with(token.as_str().unwrap()));
    }
}

#[test]
fn a_harness_finds_what_it_counts() {
    // As lm-eval asks: lists of ids, one token more than is wanted.
    let prompts = [ids("def add(a, b):\n    return a + b"), ids("class Stack:\n    pass\n")];
    let body = json!({"prompt": prompts, "max_tokens": 1, "temperature": 0, "echo": true, "logprobs": 1, "seed": 1234});
    let answer = post(plain(), RAW, &body).ok();
    for (i, prompt) in prompts.iter().enumerate() {
        let scores = &answer["choices"][i]["logprobs"];
        assert_eq!(scores["tokens"].as_array().unwrap().len(), prompt.len() + 1);
        let mut greedy = 0;
        for at in 1..prompt.len() {
            let own = scores["token_logprobs"][at].as_f64().unwrap();
            let top = scores["top_logprobs"][at].as_object().unwrap();
            let best = top.values().map(|p| p.as_f64().unwrap()).fold(f64::MIN, f64::max);
            assert!(own <= best && best <= 0.0 && (1..=2).contains(&top.len()));
            greedy += usize::from(own == best);
        }
        assert!(greedy > 0 && greedy < prompt.len() - 1, "{greedy}");
    }
    let streamed = post(plain(), RAW, &{
        let mut body = body.clone();
        body["stream"] = true.into();
        body
    })
    .events();
    for name in LISTS {
        let mut joined = [Vec::new(), Vec::new()];
        for (_, chunk) in &streamed {
            if let Some(list) = chunk["choices"][0]["logprobs"][name].as_array() {
                joined[chunk["choices"][0]["index"].as_u64().unwrap() as usize].extend(list.clone());
            }
        }
        for (i, joined) in joined.into_iter().enumerate() {
            assert_eq!(Value::from(joined), answer["choices"][i]["logprobs"][name], "{name}");
        }
    }
}

#[test]
fn vllms_own_field_names_every_token_by_its_id() {
    let prompt = ids("def add(a, b):\n    return a + b");
    let body = json!({"prompt": prompt, "max_tokens": 0, "prompt_logprobs": 2});
    let answer = post(plain(), RAW, &body).ok();
    let entries = answer["choices"][0]["prompt_logprobs"].as_array().unwrap();
    assert_eq!(
        (entries.len(), &entries[0], &answer["choices"][0]["text"]),
        (prompt.len(), &Value::Null, &json!(""))
    );
    for (entry, id) in entries.iter().zip(&prompt).skip(1) {
        assert!((2..=3).contains(&entry.as_object().unwrap().len()));
        let own = &entry[id.to_string()];
        assert!(own["logprob"].is_f64() && own["decoded_token"].is_string(), "{own}");
    }
}
