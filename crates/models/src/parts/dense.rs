//! The dense feed-forward layer: `stream += down(glu(gate x, up x))`.

use overdraft_plan::{Act, Glu, MatrixId, Op, Recorder};

use crate::error::Result;
use crate::loader::Loader;

#[derive(Debug)]
pub(crate) struct DensePart {
    gate: MatrixId,
    up: MatrixId,
    down: MatrixId,
}

impl DensePart {
    /// `suffix` tells the shared expert of a mixture (`_shexp`) from a layer's own.
    pub(crate) fn load(
        l: &mut Loader<'_>,
        layer: usize,
        suffix: &str,
        hidden: usize,
        width: usize,
    ) -> Result<Self> {
        let name = |stem: &str| format!("blk.{layer}.{stem}{suffix}.weight");
        Ok(Self {
            gate: l.matrix(&name("ffn_gate"), width, hidden)?,
            up: l.matrix(&name("ffn_up"), width, hidden)?,
            down: l.matrix(&name("ffn_down"), hidden, width)?,
        })
    }

    /// `h` is scratch of at least the layer's width; a `gate` scales what is added.
    pub(crate) fn record(&self, r: &mut Recorder, x: Act, h: Act, gate: Option<Act>, stream: Act) {
        r.push(Op::LinearGlu { x, gate: self.gate, up: self.up, glu: Glu::Swish, out: h });
        r.push(Op::LinearAdd { x: h, weight: self.down, bias: None, gate, stream });
    }
}
