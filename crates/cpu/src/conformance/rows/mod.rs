//! The rows of the table, a file per family of ops.

mod attention;
mod draft;
mod experts;
mod linear;
mod recurrent;
mod row_ops;
mod sample;

use super::case::{Case, Kind};

/// The rows of one op. Made when asked for: all of them together take a second or two.
pub fn cases(kind: Kind) -> Vec<Case> {
    match kind {
        Kind::Embed => row_ops::embeds(),
        Kind::Norm => row_ops::norms(),
        Kind::Select => row_ops::selects(),
        Kind::Angles => row_ops::angles(),
        Kind::GatedNorm => row_ops::gated_norms(),
        Kind::Linear => linear::linears().into_iter().chain(attention::projections()).collect(),
        Kind::LinearAdd => linear::adds().into_iter().chain(experts::shared_layers()).collect(),
        Kind::LinearGlu => linear::glus(),
        Kind::AttentionPrepare => attention::prepares(),
        Kind::Attention => attention::attentions(),
        Kind::RecurrentPrepare => recurrent::prepares(),
        Kind::Recurrent => recurrent::recurrents(),
        Kind::Route => experts::routes(),
        Kind::ExpertGlu => experts::glus(),
        Kind::ExpertAdd => experts::adds(),
        Kind::LoadTaps => draft::load_taps(),
        Kind::Concat => draft::concats(),
        Kind::TopTokens => draft::top_tokens(),
        Kind::Sample => sample::samples(),
    }
}
