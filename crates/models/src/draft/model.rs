//! A DFlash draft: context from the target's taps, and one pass over a block of masks that proposes its tokens.

use std::sync::Arc;

use overdraft_plan::{
    Act, AttentionState, Choice, LayerState, LinearOut, MatrixId, Op, Plan, Recorder, Retention, RmsNorm,
    RopeStyle, StateSpec,
};

use super::check_fit;
use super::names::DraftNames;
use super::settings::DraftSettings;
use crate::checkpoint::Checkpoint;
use crate::decoder::{Decoder, RecordOptions};
use crate::error::Result;
use crate::loader::Loader;
use crate::parts::{AttentionPart, AttentionShape, DensePart, Rotary};
use crate::rope;

/// Up to which a draft's context is made for all layers at once.
const FEW_ROWS: usize = 64;

struct Layer {
    attention_norm: RmsNorm,
    attention: AttentionPart,
    ffn_norm: RmsNorm,
    ffn: DensePart,
}

/// A draft beside its target. Its weights live with the target's, its keys and values in pages of their own layers
/// under the target's page tables.
pub struct Draft {
    pub settings: DraftSettings,
    fc: MatrixId,
    context_norm: RmsNorm,
    final_norm: RmsNorm,
    rotary: Rotary,
    layers: Vec<Layer>,
    embed: MatrixId,
    head: MatrixId,
    /// The state layer of its first layer: they follow the target's.
    first_layer: usize,
}

/// A recorded draft pass and where its candidates are.
pub struct DraftPlan {
    pub plan: Plan,
    /// Per row asked for: the most likely tokens with log-probabilities over the whole vocabulary.
    pub candidates: Choice,
}

impl Draft {
    /// Loads the draft and adds its weights to the target's, before any backend has taken them.
    pub fn load(checkpoint: &Checkpoint, target: &mut Decoder) -> Result<Self> {
        let settings = DraftSettings::read(checkpoint)?;
        check_fit(&settings, &target.hyper)?;
        let names = DraftNames::of(checkpoint)?;
        let s = &settings;
        let weights = Arc::get_mut(&mut target.weights).expect("no backend has the weights yet");
        let mut l = Loader::for_draft(checkpoint, &names, std::mem::take(weights));
        let loaded = Self::load_parts(&mut l, s, target);
        *Arc::get_mut(&mut target.weights).expect("as above") = l.weights;
        let (fc, context_norm, final_norm, rotary, layers) = loaded?;
        let (embed, head) = target.embedding_and_head();
        let first_layer = target.hyper.layers.len();
        Ok(Self { fc, context_norm, final_norm, rotary, layers, embed, head, first_layer, settings })
    }

    #[allow(clippy::type_complexity, reason = "the fields of Self in order, used once")]
    fn load_parts(
        l: &mut Loader<'_>,
        s: &DraftSettings,
        target: &Decoder,
    ) -> Result<(MatrixId, RmsNorm, RmsNorm, Rotary, Vec<Layer>)> {
        let hidden = s.hidden;
        let fc = l.matrix("fc.weight", hidden, s.taps.len() * target.hyper.hidden)?;
        let context_norm = l.norm("enc.output_norm.weight", hidden, s.eps, false)?;
        let final_norm = l.norm("output_norm.weight", hidden, s.eps, false)?;
        let (inv_freq, magnitude) = rope::frequencies(s.rope_theta, s.rotary_dims, &s.rope_scaling);
        let inv_freq = l.weights.add_vector(inv_freq);
        let rotary = Rotary { inv_freq, magnitude, dims: s.rotary_dims, style: RopeStyle::Halves };
        let mut layers = Vec::with_capacity(s.layers.len());
        for (i, layer) in s.layers.iter().enumerate() {
            let shape = AttentionShape {
                hidden,
                heads: s.heads,
                kv_heads: s.kv_heads,
                head_dim: s.head_dim,
                scale: (s.head_dim as f32).sqrt().recip(),
                gated: false,
                head_norms: Some(s.eps),
                norms_less_one: false,
                window: layer.window,
                see_ahead: !layer.causal,
                state_layer: target.hyper.layers.len() + i,
            };
            layers.push(Layer {
                attention_norm: l.norm(&format!("blk.{i}.attn_norm.weight"), hidden, s.eps, false)?,
                attention: AttentionPart::load(l, i, shape)?,
                ffn_norm: l.norm(&format!("blk.{i}.ffn_norm.weight"), hidden, s.eps, false)?,
                ffn: DensePart::load(l, i, "", hidden, s.ffn)?,
            });
        }
        Ok((fc, context_norm, final_norm, rotary, layers))
    }

    /// Bounds how far back its layers see, and with it what they keep: a draft's guesses hardly need a whole long
    /// context, and the text is the target's anyway. Layers that see less already stay as they are. At least
    /// [`Self::MIN_WINDOW`].
    pub fn limit_window(&mut self, positions: u32) {
        let limit = positions.max(Self::MIN_WINDOW);
        for (settings, layer) in self.settings.layers.iter_mut().zip(&mut self.layers) {
            settings.window = Some(settings.window.map_or(limit, |w| w.min(limit)));
            layer.attention.set_window(settings.window);
        }
    }

    /// A page of positions; to see less would take no less memory.
    pub const MIN_WINDOW: u32 = 64;

    /// Target layers whose outputs the draft reads, ascending.
    pub fn taps(&self) -> Vec<usize> {
        self.settings.taps.iter().map(|t| t.0 as usize).collect()
    }

    /// Adds the draft's layers and the ring of waiting taps to the target's state.
    pub fn extend_state(&self, spec: &mut StateSpec, target_hidden: usize) {
        for layer in &self.settings.layers {
            let retention = layer.window.map_or(Retention::Full, Retention::Sliding);
            let class = spec.classes.iter().position(|c| *c == retention).unwrap_or_else(|| {
                spec.classes.push(retention);
                spec.pages.push(0);
                spec.classes.len() - 1
            });
            let (kv_heads, head_dim) = (self.settings.kv_heads, self.settings.head_dim);
            spec.layers.push(LayerState::Attention(AttentionState { kv_heads, head_dim, class }));
        }
        spec.tap_width = self.settings.taps.len() * target_hidden;
        debug_assert_eq!(spec.layers.len(), self.first_layer + self.layers.len());
    }

    /// A target pass whose rows, all sure, also enter the draft's context: for reading prompts.
    pub fn record_reading(&self, target: &Decoder, options: RecordOptions<'_>) -> Plan {
        let (mut r, logits) = target.record_open(options);
        let features = r.act(self.settings.taps.len() * target.hyper.hidden);
        let xs = r.taps().to_vec();
        r.push(Op::Concat { xs, out: features });
        self.record_context(&mut r, features);
        r.finish(logits)
    }

    /// Waiting taps enter the draft's context: a row per position.
    pub fn record_injection(&self, target: &Decoder, bucket: usize) -> Plan {
        let mut r = Recorder::new(bucket, 1);
        let features = r.act(self.settings.taps.len() * target.hyper.hidden);
        r.push(Op::LoadTaps { out: features });
        self.record_context(&mut r, features);
        let none = r.logit_act(1);
        r.finish(none)
    }

    /// Features through `fc` and norm to each layer's keys and values. No layer's own norm touches them.
    fn record_context(&self, r: &mut Recorder, features: Act) {
        let (fused, x) = (r.act(self.settings.hidden), r.act(self.settings.hidden));
        let angles = self.record_angles(r);
        r.push(Op::Linear { x: features, outs: vec![LinearOut { weight: self.fc, bias: None, out: fused }] });
        r.push(Op::Norm { x: fused, norm: self.context_norm, out: x, tap: None });
        // Of many rows the keys and values of all layers would be much to keep.
        let at_once = if r.bucket() <= FEW_ROWS { self.layers.len() } else { 1 };
        let acts: Vec<_> = self.layers.iter().take(at_once).map(|l| l.attention.context_acts(r)).collect();
        for layers in self.layers.chunks(at_once.max(1)) {
            let layers = layers.iter().map(|layer| &layer.attention);
            AttentionPart::record_context(layers, r, x, &acts, angles, &self.rotary);
        }
    }

    fn record_angles(&self, r: &mut Recorder) -> Act {
        let out = r.act(self.rotary.dims);
        r.push(Op::Angles { inv_freq: self.rotary.inv_freq, magnitude: self.rotary.magnitude, out });
        out
    }

    /// The draft's own pass over blocks of anchor and masks; row `j` of a block proposes the token at its own
    /// position. `k` candidates for each of at most `logit_rows` rows.
    pub fn record_block(&self, bucket: usize, logit_rows: usize, vocab: usize, k: usize) -> DraftPlan {
        let s = &self.settings;
        let mut r = Recorder::new(bucket, logit_rows);
        let (stream, x, h) = (r.act(s.hidden), r.act(s.hidden), r.act(s.ffn));
        r.push(Op::Embed { table: self.embed, out: stream });
        let angles = self.record_angles(&mut r);
        let mut acts = None;
        for layer in &self.layers {
            r.push(Op::Norm { x: stream, norm: layer.attention_norm, out: x, tap: None });
            let acts = *acts.get_or_insert_with(|| layer.attention.acts(&mut r));
            layer.attention.record(&mut r, x, acts, angles, &self.rotary, stream);
            r.push(Op::Norm { x: stream, norm: layer.ffn_norm, out: x, tap: None });
            layer.ffn.record(&mut r, x, h, None, stream);
        }
        let (chosen, normed) = (r.logit_act(s.hidden), r.logit_act(s.hidden));
        let logits = r.logit_act(vocab);
        let candidates = r.logit_choice(k.min(vocab));
        r.push(Op::Select { x: stream, out: chosen });
        r.push(Op::Norm { x: chosen, norm: self.final_norm, out: normed, tap: None });
        r.push(Op::Linear {
            x: normed,
            outs: vec![LinearOut { weight: self.head, bias: None, out: logits }],
        });
        r.push(Op::TopTokens { logits, choice: candidates });
        DraftPlan { plan: r.finish(logits), candidates }
    }
}
