//! A draft's pass against its definition, written out here in f64: also with the biases that gpt-oss drafts have, and
//! with layers that see a window, ahead or not. The features come from Hugging Face's hidden states of the target.

mod common;

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};

use common::repository;
use overdraft_cpu::Cpu;
use overdraft_engine::spec::accept::Verdict;
use overdraft_engine::spec::budget::{Forecast, Growth};
use overdraft_engine::spec::drafter::{Candidates, Drafter, ProposeInput};
use overdraft_engine::spec::policy::Mode;
use overdraft_engine::spec::tree::TokenTree;
use overdraft_engine::{Engine, EngineConfig, Request, Sampling};
use overdraft_formats::safetensors::{SafeTensors, SafeTensorsWriter};
use overdraft_formats::{Bytes, DType};
use overdraft_models::draft::DraftSettings;
use overdraft_models::{Checkpoint, Decoder, Draft};
use overdraft_plan::KvType;

type Rows = Vec<Vec<f64>>;

struct Tensors(SafeTensors);

impl Tensors {
    fn vector(&self, name: &str) -> Vec<f64> {
        self.0.need_tensor(name).unwrap().to_f32().unwrap().iter().map(|x| f64::from(*x)).collect()
    }

    fn matrix(&self, name: &str) -> Rows {
        let cols = self.0.need_tensor(name).unwrap().row_len();
        self.vector(name).chunks(cols).map(<[f64]>::to_vec).collect()
    }

    /// `W x + b`, where the file has a `b`.
    fn project(&self, name: &str, x: &[f64]) -> Vec<f64> {
        let mut y: Vec<f64> = self.matrix(&format!("{name}.weight")).iter().map(|row| dot(row, x)).collect();
        if self.0.tensor_info(&format!("{name}.bias")).is_some() {
            y.iter_mut().zip(self.vector(&format!("{name}.bias"))).for_each(|(y, b)| *y += b);
        }
        y
    }

    fn norm(&self, name: &str, x: &[f64], eps: f64) -> Vec<f64> {
        let scale = (x.iter().map(|x| x * x).sum::<f64>() / x.len() as f64 + eps).sqrt().recip();
        x.iter().zip(self.vector(&format!("{name}.weight"))).map(|(x, w)| x * scale * w).collect()
    }

    /// Norm and rotary of every head at `pos`.
    fn heads(&self, norm: &str, x: &[f64], s: &DraftSettings, pos: usize) -> Rows {
        let half = s.head_dim / 2;
        let turn = |x: Vec<f64>| -> Vec<f64> {
            let angle = |i: usize| pos as f64 * s.rope_theta.powf(-2.0 * i as f64 / s.head_dim as f64);
            let first = (0..half).map(|i| x[i] * angle(i).cos() - x[i + half] * angle(i).sin());
            let second = (0..half).map(|i| x[i + half] * angle(i).cos() + x[i] * angle(i).sin());
            first.chain(second).collect()
        };
        x.chunks(s.head_dim).map(|head| turn(self.norm(norm, head, f64::from(s.eps)))).collect()
    }
}

fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

fn add(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// Log-probabilities of the tokens at the block's masks. `features`: the taps of each position, one after another.
fn definition(draft: &Tensors, embed: &Rows, s: &DraftSettings, features: &Rows, anchor: u32) -> Rows {
    let eps = f64::from(s.eps);
    let context: Rows =
        features.iter().map(|f| draft.norm("hidden_norm", &draft.project("fc", f), eps)).collect();
    let first = context.len();
    let mut x: Rows = (0..s.block_size)
        .map(|j| embed[if j == 0 { anchor } else { s.mask_token } as usize].clone())
        .collect();
    for (i, layer) in s.layers.iter().enumerate() {
        let name = |stem: &str| format!("layers.{i}.{stem}");
        let attn = |stem: &str| format!("layers.{i}.self_attn.{stem}");
        let normed: Rows = x.iter().map(|x| draft.norm(&name("input_layernorm"), x, eps)).collect();
        // No layer's own norm touches the context.
        let seen = || context.iter().chain(&normed).enumerate();
        let keys: Vec<Rows> = seen()
            .map(|(pos, x)| draft.heads(&attn("k_norm"), &draft.project(&attn("k_proj"), x), s, pos))
            .collect();
        let values: Rows = seen().map(|(_, x)| draft.project(&attn("v_proj"), x)).collect();
        for (j, x) in x.iter_mut().enumerate() {
            let pos = first + j;
            let queries = draft.heads(&attn("q_norm"), &draft.project(&attn("q_proj"), &normed[j]), s, pos);
            let from = layer.window.map_or(0, |w| (pos + 1).saturating_sub(w as usize));
            let end = if layer.causal { pos + 1 } else { first + s.block_size };
            let mut out = Vec::new();
            for (h, q) in queries.iter().enumerate() {
                let kv = h / (s.heads / s.kv_heads);
                let scores: Vec<f64> =
                    (from..end).map(|p| (dot(q, &keys[p][kv]) / (s.head_dim as f64).sqrt()).exp()).collect();
                let total: f64 = scores.iter().sum();
                out.extend((0..s.head_dim).map(|d| {
                    let value = |p: usize| values[p][kv * s.head_dim + d];
                    (from..end).map(|p| scores[p - from] / total * value(p)).sum::<f64>()
                }));
            }
            add(x, &draft.project(&attn("o_proj"), &out));
            let normed = draft.norm(&name("post_attention_layernorm"), x, eps);
            let up = draft.project(&name("mlp.up_proj"), &normed);
            let gate = draft.project(&name("mlp.gate_proj"), &normed);
            let h: Vec<f64> = gate.iter().zip(&up).map(|(g, u)| g / (1.0 + (-g).exp()) * u).collect();
            add(x, &draft.project(&name("mlp.down_proj"), &h));
        }
    }
    x[1..]
        .iter()
        .map(|x| {
            let x = draft.norm("norm", x, eps);
            let logits: Vec<f64> = embed.iter().map(|row| dot(row, &x)).collect();
            let total: f64 = logits.iter().map(|l| l.exp()).sum();
            logits.iter().map(|l| l - total.ln()).collect()
        })
        .collect()
}

/// Candidates by depth.
type Seen = Vec<Vec<(u32, f32)>>;

/// Writes down the candidates of the first pass.
struct Listener(Arc<Mutex<Seen>>);

impl Drafter for Listener {
    fn wants_forward(&self) -> bool {
        true
    }

    fn proposes_unaided(&self) -> bool {
        false
    }

    fn propose(&mut self, input: &ProposeInput<'_>, growth: &Growth<'_>, tree: &mut TokenTree) -> Forecast {
        let mut seen = self.0.lock().unwrap();
        if let (Candidates::Depths(depths), true) = (input.candidates, seen.is_empty()) {
            seen.extend(depths.iter().map(|d| d.to_vec()));
        }
        growth.settle(tree)
    }

    fn learn(&mut self, _: &TokenTree, _: &Verdict) {}

    fn committed(&mut self, _: u32) {}
}

/// A copy of the fixture's draft with other settings, and biases where asked for.
fn variant(name: &str, changes: &[(&str, &str)], biased: bool) -> PathBuf {
    let from = repository("tests/fixtures/qwen3_dflash");
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("draft-{name}"));
    std::fs::create_dir_all(&folder).unwrap();
    let mut config = std::fs::read_to_string(from.join("config.json")).unwrap();
    for (old, new) in changes {
        assert!(config.contains(old), "{old}");
        config = config.replace(old, new);
    }
    std::fs::write(folder.join("config.json"), config).unwrap();
    let file = SafeTensors::open(&from.join("model.safetensors")).unwrap();
    let mut writer = SafeTensorsWriter::new();
    for info in file.tensors() {
        let tensor = file.need_tensor(&info.name).unwrap();
        if let Some(stem) =
            info.name.strip_suffix("_proj.weight").filter(|s| biased && s.contains("self_attn"))
        {
            let n = tensor.shape[0];
            let bias = |i: usize| ((i * 37 + stem.len() * 11) % 29) as f32 / 14.0 - 1.0;
            let bytes = (0..n).flat_map(|i| bias(i).to_le_bytes()).collect();
            writer.tensor(&format!("{stem}_proj.bias"), DType::F32, &[n], Bytes::from_vec(bytes));
        }
        writer.tensor(&info.name, tensor.dtype, &tensor.shape, tensor.bytes);
    }
    std::fs::write(folder.join("model.safetensors"), writer.to_bytes().unwrap()).unwrap();
    folder
}

#[test]
#[rustfmt::skip]
fn a_draft_proposes_what_its_definition_says() {
    let target = repository("tests/fixtures/qwen3");
    let golden = Tensors(SafeTensors::open(&target.join("golden.safetensors")).unwrap());
    let ids = golden.0.need_tensor("input_ids").unwrap();
    let ids: Vec<u32> = ids.bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as u32).collect();
    let hidden = golden.matrix("hidden");
    let logits = golden.matrix("logits");
    let last = &logits[ids.len() - 1];
    let anchor = (0..last.len()).fold(0, |best, i| if last[i] > last[best] { i } else { best }) as u32;
    let embed = Tensors(SafeTensors::open(&target.join("model.safetensors")).unwrap()).matrix("model.embed_tokens.weight");
    let demo = Checkpoint::open(&repository("models/pycoder-q4_k_m.gguf")).unwrap();
    let tokenizer = Arc::new(demo.tokenizer().unwrap());

    let bias = ("\"attention_bias\": false", "\"attention_bias\": true");
    let sliding = ("\"layer_types\": [\n  \"full_attention\"", "\"sliding_window\": 24, \"layer_types\": [\n  \"sliding_attention\"");
    let mut firsts: Vec<Rows> = Vec::new();
    for (name, changes, biased) in [
        ("plain",            &[][..],          false),
        ("biases",           &[bias][..],      true),
        ("window",           &[sliding],       false),
        ("window-and-bias",  &[bias, sliding], true),
    ] {
        let folder = variant(name, changes, biased);
        let mut decoder = Decoder::load(&Checkpoint::open(&target).unwrap(), |_, _| {}).unwrap();
        let draft = Draft::load(&Checkpoint::open(&folder).unwrap(), &mut decoder).unwrap();
        let settings = draft.settings.clone();
        assert_eq!((settings.has_bias, settings.layers[0].window.is_some()), (biased, name.contains("window")));
        let features: Rows = (0..ids.len())
            .map(|p| settings.taps.iter().flat_map(|t| hidden[(usize::from(t.0) + 1) * ids.len() + p].clone()).collect())
            .collect();
        let want = definition(&Tensors(SafeTensors::open(&folder.join("model.safetensors")).unwrap()), &embed, &settings, &features, anchor);

        let config = EngineConfig { context: 256, kv: KvType::F32, draft_mode: Mode::Chain, budget: Some(7), ..Default::default() };
        let mut engine = Engine::new(decoder, Some(draft), tokenizer.clone(), Box::new(Cpu::new(2)), config).unwrap();
        let seen = Arc::new(Mutex::new(Vec::new()));
        let request = Request { prompt: ids.clone(), max_tokens: 12, sampling: Sampling::default(), stop_ids: vec![], stop_strings: vec![] };
        engine.admit_with(request, Box::new(Listener(seen.clone()))).unwrap();
        while !engine.is_idle() {
            engine.step().unwrap();
        }
        let seen = seen.lock().unwrap();
        assert_eq!(seen.len(), 7, "{name}");
        for (depth, (candidates, want)) in seen.iter().zip(&want).enumerate() {
            for (token, logp) in candidates {
                let want = want[*token as usize];
                assert!((f64::from(*logp) - want).abs() < 4e-3, "{name}, depth {}: token {token} at {logp}, not {want}", depth + 1);
            }
        }
        firsts.push(want);
    }
    for (i, a) in firsts.iter().enumerate() {
        for b in &firsts[..i] {
            let most = a.iter().flatten().zip(b.iter().flatten()).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(most > 0.1, "what is tested here makes a difference of only {most}");
        }
    }
}
