//! The draft's tensors against its settings: all there, of the shapes the settings make them, and no layer too many.

use super::names::DraftNames;
use super::settings::DraftSettings;
use crate::error::{ModelError, Result};

impl DraftNames {
    pub(super) fn check(&self, s: &DraftSettings) -> Result<()> {
        if let Some(e) = self.entries().find(|e| e.layer.is_some_and(|l| l >= s.layers.len())) {
            let problem = format!("but the draft declares {} layers", s.layers.len());
            return Err(ModelError::setting(self.file(), &e.in_file, "present", problem));
        }
        self.check_fusion(s)?;
        self.check_shape("enc.output_norm.weight", &[s.hidden])?;
        self.check_shape("output_norm.weight", &[s.hidden])?;
        for (name, there) in [("token_embd.weight", s.has_embedding), ("output.weight", s.has_head)] {
            if let Some(vocab) = s.vocab.filter(|_| there) {
                self.check_shape(name, &[vocab, s.hidden])?;
            }
        }
        (0..s.layers.len()).try_for_each(|i| self.check_layer(s, i))
    }

    /// Drafts were published again under their old names with other taps; `fc` tells the two apart.
    fn check_fusion(&self, s: &DraftSettings) -> Result<()> {
        let name = "fc.weight";
        let expected = [s.hidden, s.taps.len() * s.hidden];
        let found = self.shape(name).ok_or_else(|| self.missing(name))?;
        if squeezed(found) == squeezed(&expected) {
            return Ok(());
        }
        let problem = format!(
            "{} taps of a target of hidden size {} make it {expected:?}\nhint: the settings may be of another \
             revision than the weights; take both from one download",
            s.taps.len(),
            s.hidden
        );
        let in_file = self.in_file(name).unwrap_or(name);
        Err(ModelError::setting(self.file(), in_file, format!("{found:?}"), problem))
    }

    fn check_layer(&self, s: &DraftSettings, i: usize) -> Result<()> {
        let (query, kv) = (s.heads * s.head_dim, s.kv_heads * s.head_dim);
        let check = |stem: &str, shape: &[usize]| self.check_shape(&format!("blk.{i}.{stem}"), shape);
        check("attn_norm.weight", &[s.hidden])?;
        check("ffn_norm.weight", &[s.hidden])?;
        check("attn_q_norm.weight", &[s.head_dim])?;
        check("attn_k_norm.weight", &[s.head_dim])?;
        check("attn_q.weight", &[query, s.hidden])?;
        check("attn_k.weight", &[kv, s.hidden])?;
        check("attn_v.weight", &[kv, s.hidden])?;
        check("attn_output.weight", &[s.hidden, query])?;
        check("ffn_gate.weight", &[s.ffn, s.hidden])?;
        check("ffn_up.weight", &[s.ffn, s.hidden])?;
        check("ffn_down.weight", &[s.hidden, s.ffn])?;
        if s.has_bias {
            check("attn_q.bias", &[query])?;
            check("attn_k.bias", &[kv])?;
            check("attn_v.bias", &[kv])?;
            check("attn_output.bias", &[s.hidden])?;
        }
        Ok(())
    }

    fn check_shape(&self, name: &str, expected: &[usize]) -> Result<()> {
        let found = self.shape(name).ok_or_else(|| self.missing(name))?;
        if squeezed(found) == squeezed(expected) {
            return Ok(());
        }
        Err(ModelError::Shape {
            file: self.file().into(),
            tensor: self.in_file(name).unwrap_or(name).into(),
            found: found.into(),
            expected: expected.into(),
        })
    }

    fn missing(&self, name: &str) -> ModelError {
        let hint = " (as upstream GGUF files name it)".into();
        ModelError::MissingTensor { file: self.file().into(), tensor: name.into(), hint }
    }
}

/// Writers differ in whether a vector has a second dimension of 1.
fn squeezed(shape: &[usize]) -> Vec<usize> {
    shape.iter().copied().filter(|d| *d != 1).collect()
}
