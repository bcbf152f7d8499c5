//! The decoder skeleton that every family shares: embed, layers of mixer and feed-forward, norm, head.

use std::sync::Arc;

use overdraft_plan::{Act, KvType, MatrixId, Op, Plan, Recorder, RmsNorm, StateSpec, Weights};

use crate::checkpoint::Checkpoint;
use crate::error::Result;
use crate::hyper::{Hyper, MixerKind};
use crate::loader::Loader;
use crate::parts::{AttentionPart, AttentionShape, DensePart, GdnPart, MoePart, Rotary};
use crate::rope;

enum Mixer {
    Attention(AttentionPart),
    Gdn(GdnPart),
}

enum FeedForward {
    Dense(DensePart),
    Moe(Box<MoePart>),
}

struct Layer {
    mixer_norm: RmsNorm,
    mixer: Mixer,
    ffn_norm: RmsNorm,
    ffn: FeedForward,
}

/// What a plan is to be for.
#[derive(Clone, Copy, Debug)]
pub struct RecordOptions<'a> {
    /// Rows of a step at most.
    pub bucket: usize,
    /// Rows of those that can be asked for their logits.
    pub logit_rows: usize,
    /// Layers (from 0, ascending) after which the residual stream is made readable.
    pub taps: &'a [usize],
    /// Steps may hold rows that are not sure; what a commit needs of them is kept.
    pub speculative: bool,
}

/// A target model: weights, and the forward pass to record for any bucket of rows.
pub struct Decoder {
    pub hyper: Hyper,
    pub weights: Arc<Weights>,
    embed: MatrixId,
    head: MatrixId,
    final_norm: RmsNorm,
    rotary: Rotary,
    layers: Vec<Layer>,
}

impl Decoder {
    /// Loads a target, reporting each layer as it is done to `progress(done, of)`.
    pub fn load(checkpoint: &Checkpoint, mut progress: impl FnMut(usize, usize)) -> Result<Self> {
        let hyper = checkpoint.hyper()?;
        let h = &hyper;
        let l = &mut Loader::new(checkpoint);
        let plus_one = h.arch.is_hybrid();
        let embed = l.matrix("token_embd.weight", h.vocab, h.hidden)?;
        let head = match l.opt_rows("output.weight", h.vocab, h.hidden)? {
            Some(rows) => l.add(rows),
            None => embed,
        };
        let final_norm = l.norm("output_norm.weight", h.hidden, h.eps, plus_one)?;
        let (inv_freq, magnitude) = rope::frequencies(h.rope_theta, h.rotary_dims, &h.rope_scaling);
        let inv_freq = l.weights.add_vector(inv_freq);
        let rotary = Rotary { inv_freq, magnitude, dims: h.rotary_dims, style: h.rope_style };
        let mut layers = Vec::with_capacity(h.layers.len());
        for (i, kind) in h.layers.iter().enumerate() {
            let mixer = match kind {
                MixerKind::Attention { window } => {
                    Mixer::Attention(AttentionPart::load(l, i, AttentionShape::of_target(h, i, *window))?)
                }
                MixerKind::Recurrent => {
                    let dims = h.gdn.expect("checked: recurrent layers have heads");
                    Mixer::Gdn(GdnPart::load(l, h, dims, i)?)
                }
            };
            let ffn = match &h.moe {
                Some(m) if h.is_moe_layer(i) => FeedForward::Moe(Box::new(MoePart::load(l, h, m, i)?)),
                _ => FeedForward::Dense(DensePart::load(l, i, "", h.hidden, h.ffn)?),
            };
            let post = [format!("blk.{i}.post_attention_norm.weight"), format!("blk.{i}.ffn_norm.weight")];
            let post = if checkpoint.tensor(&post[0])?.is_some() { &post[0] } else { &post[1] };
            layers.push(Layer {
                mixer_norm: l.norm(&format!("blk.{i}.attn_norm.weight"), h.hidden, h.eps, plus_one)?,
                mixer,
                ffn_norm: l.norm(post, h.hidden, h.eps, plus_one)?,
                ffn,
            });
            progress(i + 1, h.layers.len());
        }
        let weights = Arc::new(std::mem::take(&mut l.weights));
        Ok(Self { weights, embed, head, final_norm, rotary, layers, hyper })
    }

    /// The forward pass.
    pub fn record(&self, options: RecordOptions<'_>) -> Plan {
        let (recorder, logits) = self.record_open(options);
        recorder.finish(logits)
    }

    /// The forward pass, open for more ops behind it, and its logits.
    pub(crate) fn record_open(&self, options: RecordOptions<'_>) -> (Recorder, Act) {
        let RecordOptions { bucket, logit_rows, taps: tapped, speculative } = options;
        let h = &self.hyper;
        let mut recorder = Recorder::new(bucket, logit_rows);
        let r = &mut recorder;
        let (stream, x) = (r.act(h.hidden), r.act(h.hidden));
        let angles = r.act(h.rotary_dims);
        // Layers of a kind take turns with one set of buffers.
        let (mut attention_acts, mut gdn_acts, mut dense_act, mut moe_acts) = (None, None, None, None);
        r.push(Op::Embed { table: self.embed, out: stream });
        r.push(Op::Angles { inv_freq: self.rotary.inv_freq, magnitude: self.rotary.magnitude, out: angles });
        for (i, layer) in self.layers.iter().enumerate() {
            let tap = (i > 0 && tapped.contains(&(i - 1))).then(|| r.tap(h.hidden));
            r.push(Op::Norm { x: stream, norm: layer.mixer_norm, out: x, tap });
            match &layer.mixer {
                Mixer::Attention(part) => {
                    let acts = *attention_acts.get_or_insert_with(|| part.acts(r));
                    part.record(r, x, acts, angles, &self.rotary, stream);
                }
                Mixer::Gdn(part) => {
                    // A commit reads every layer's rows after the step, so they cannot take turns then.
                    let acts = match gdn_acts {
                        Some(acts) if !speculative => acts,
                        _ => *gdn_acts.insert(part.acts(r)),
                    };
                    part.record(r, x, acts, stream);
                    if speculative {
                        r.keep(part.kept(&acts));
                    }
                }
            }
            r.push(Op::Norm { x: stream, norm: layer.ffn_norm, out: x, tap: None });
            match &layer.ffn {
                FeedForward::Dense(part) => {
                    let act = *dense_act.get_or_insert_with(|| r.act(h.ffn));
                    part.record(r, x, act, None, stream);
                }
                FeedForward::Moe(part) => {
                    let shared = h.moe.as_ref().map_or(0, |m| m.shared_width);
                    let acts = *moe_acts.get_or_insert_with(|| part.acts(r, shared));
                    part.record(r, x, acts, stream);
                }
            }
        }
        if tapped.contains(&(self.layers.len() - 1)) {
            let tap = r.tap(h.hidden);
            // Only the copy is wanted; the norm of every row goes to scratch.
            r.push(Op::Norm { x: stream, norm: self.final_norm, out: x, tap: Some(tap) });
        }
        let (chosen, normed) = (r.logit_act(h.hidden), r.logit_act(h.hidden));
        let logits = r.logit_act(h.vocab);
        r.push(Op::Select { x: stream, out: chosen });
        r.push(Op::Norm { x: chosen, norm: self.final_norm, out: normed, tap: None });
        let outs = vec![overdraft_plan::LinearOut { weight: self.head, bias: None, out: logits }];
        r.push(Op::Linear { x: normed, outs });
        (recorder, logits)
    }

    /// What a draft borrows.
    pub(crate) fn embedding_and_head(&self) -> (MatrixId, MatrixId) {
        (self.embed, self.head)
    }

    /// The state its sequences keep; page counts are the engine's to fill in.
    pub fn state_spec(&self, kv: KvType) -> StateSpec {
        self.hyper.state_spec(kv)
    }
}
