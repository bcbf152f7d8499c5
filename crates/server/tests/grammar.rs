//! The demo pair held to a schema, and made to call: with a draft and without, the same text.

use std::path::Path;
use std::sync::Arc;

use overdraft_cpu::Cpu;
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::{Drawing, Engine, EngineConfig, Finish, Options, Request, Sampling};
use overdraft_models::{Checkpoint, Decoder, Draft};
use overdraft_server::output::{ChatFormat, Conversation, Piece, ResponseFormat, ToolChoice};
use serde_json::{Value, json};

fn checkpoint(name: &str) -> Checkpoint {
    Checkpoint::open(&Path::new(env!("CARGO_MANIFEST_DIR")).join("../../models").join(name)).unwrap()
}

fn engine(draft_mode: Mode, budget: Option<usize>) -> Engine {
    let target = checkpoint("pycoder-q4_k_m.gguf");
    let mut decoder = Decoder::load(&target, |_, _| {}).unwrap();
    let draft = Draft::load(&checkpoint("pycoder-dflash-q8_0.gguf"), &mut decoder).unwrap();
    let config = EngineConfig { context: 1024, draft_mode, budget, ..Default::default() };
    let tokenizer = Arc::new(target.tokenizer().unwrap());
    Engine::new(decoder, Some(draft), tokenizer, Box::new(Cpu::new(1)), config).unwrap()
}

fn chat() -> ChatFormat {
    let target = checkpoint("pycoder-q4_k_m.gguf");
    let source = target.chat_template().unwrap().unwrap();
    ChatFormat::new(target.name(), &source, Arc::new(target.tokenizer().unwrap())).unwrap()
}

fn answer(
    engine: &mut Engine,
    chat: &ChatFormat,
    conversation: &Conversation,
    temperature: f32,
) -> (String, Finish, usize) {
    let prompt = chat.prompt(conversation).unwrap();
    let request = Request {
        prompt: prompt.tokens.clone(),
        max_tokens: 300,
        sampling: Sampling::from(Drawing { temperature, top_p: 0.95, seed: 11, ..Default::default() }),
        stop_ids: engine.tokenizer().end_ids().to_vec(),
        stop_strings: vec![],
    };
    let constraint = chat.constraint(conversation, &prompt).unwrap();
    engine.admit_as(request, Options { constraint, ..Default::default() }).unwrap();
    let mut text = String::new();
    loop {
        for event in engine.step().unwrap() {
            text += &event.text;
            if let Some((finish, stats)) = event.finish {
                return (text, finish, stats.accepted);
            }
        }
    }
}

/// Bounded everywhere, so that the text ends although the model would rather write Python.
fn person() -> Value {
    json!({"type": "object", "additionalProperties": false, "required": ["name", "age", "tags"], "properties": {
        "name": {"type": "string", "maxLength": 24}, "age": {"type": "integer", "minimum": 0, "maximum": 130},
        "tags": {"type": "array", "maxItems": 3, "items": {"enum": ["new", "old", "self.assertEqual"]}}}})
}

#[test]
fn text_under_a_schema_fits_it_and_is_the_same_with_and_without_drafts() {
    let chat = chat();
    let conversation = Conversation {
        messages: vec![json!({"role": "user", "content": "def make_person():\n    return "})],
        format: ResponseFormat::JsonSchema { schema: person(), strict: true },
        add_generation_prompt: true,
        ..Default::default()
    };
    let mut plainly = engine(Mode::Off, None);
    let mut drafting = engine(Mode::Tree, Some(22));
    for temperature in [0.0, 0.9] {
        let (plain, finish, _) = answer(&mut plainly, &chat, &conversation, temperature);
        assert_eq!(finish, Finish::EndToken, "{plain}");
        let value: Value = serde_json::from_str(&plain).unwrap_or_else(|e| panic!("{e}: {plain}"));
        assert!(value["name"].as_str().unwrap().chars().count() <= 24, "{plain}");
        assert!((0..=130).contains(&value["age"].as_i64().unwrap()), "{plain}");
        assert!(value["tags"].as_array().unwrap().len() <= 3, "{plain}");
        let (text, ..) = answer(&mut drafting, &chat, &conversation, temperature);
        assert_eq!(text, plain, "T = {temperature}");
    }
}

#[test]
fn a_call_that_is_required_comes_with_and_without_drafts() {
    let chat = chat();
    let tool = |name: &str| json!({"type": "function", "function": {"name": name, "description": "keeps a person", "parameters": person()}});
    let conversation = Conversation {
        messages: vec![json!({"role": "user", "content": "Keep Ann, who is 30."})],
        tools: vec![tool("keep"), tool("forget")],
        tool_choice: ToolChoice::Required,
        add_generation_prompt: true,
        ..Default::default()
    };
    let mut texts = Vec::new();
    for (mode, budget) in [(Mode::Off, None), (Mode::Tree, Some(22))] {
        let (text, finish, _) = answer(&mut engine(mode, budget), &chat, &conversation, 0.0);
        assert_eq!(finish, Finish::EndToken, "{text}");
        let mut pieces = Vec::new();
        let mut parser = chat.parser(&chat.prompt(&conversation).unwrap());
        parser.push(&text, &mut pieces);
        parser.finish(&mut pieces);
        let [Piece::CallStart { name, .. }, Piece::CallArgs { text: args, .. }, Piece::CallEnd { .. }] =
            &pieces[..]
        else {
            panic!("{pieces:?}");
        };
        assert!(["keep", "forget"].contains(&name.as_str()));
        assert!(serde_json::from_str::<Value>(args).unwrap()["age"].is_i64(), "{args}");
        texts.push(text);
    }
    assert_eq!(texts[0], texts[1]);
}
