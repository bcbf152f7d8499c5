//! Flags that say how tokens are chosen and when to stop.

use clap::Args;
use clap::builder::NonEmptyStringValueParser;

#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Choosing tokens")]
pub(crate) struct SamplingArgs {
    /// How boldly to choose, 0 to 100; 0 takes the likeliest token each time [default: what the model recommends,
    /// else 0, or 1 when --top-k, --top-p, --min-p or --seed is given]
    #[arg(long, value_name = "T", value_parser = finite, allow_negative_numbers = true)]
    pub(crate) temperature: Option<f32>,
    /// Choose among the K likeliest tokens; 0 is off [default: what the model recommends, else 0]
    #[arg(long, value_name = "K", allow_negative_numbers = true)]
    pub(crate) top_k: Option<u32>,
    /// Choose among the likeliest tokens that together reach probability P; 1 is off [default: what the model
    /// recommends, else 1]
    #[arg(long, value_name = "P", value_parser = finite, allow_negative_numbers = true)]
    pub(crate) top_p: Option<f32>,
    /// Leave out tokens less likely than P times the likeliest; 0 is off [default: what the model recommends, else 0]
    #[arg(long, value_name = "P", value_parser = finite, allow_negative_numbers = true)]
    pub(crate) min_p: Option<f32>,
    /// Divide the scores of tokens that occurred in prompt or answer; 1 is off [default: what the model recommends,
    /// else 1]
    #[arg(long, value_name = "X", value_parser = finite, allow_negative_numbers = true)]
    pub(crate) repetition_penalty: Option<f32>,
    /// Lower a token's score by X for each time it occurred in the answer [default: 0]
    #[arg(long, value_name = "X", value_parser = finite, allow_negative_numbers = true)]
    pub(crate) frequency_penalty: Option<f32>,
    /// Lower a token's score by X once it occurred in the answer [default: 0]
    #[arg(long, value_name = "X", value_parser = finite, allow_negative_numbers = true)]
    pub(crate) presence_penalty: Option<f32>,
    /// Add VALUE to the score of token ID; -inf forbids it; repeatable [default: none]
    #[arg(long, value_name = "ID=VALUE", value_parser = bias)]
    pub(crate) logit_bias: Vec<(u32, f32)>,
    /// Same seed, same text; matters only above temperature 0 [default: a new one each time]
    #[arg(long, value_name = "N", allow_negative_numbers = true)]
    pub(crate) seed: Option<u64>,
    /// Tokens to write at most [default: 256 for raw text, what the context leaves in a conversation]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..), allow_negative_numbers = true)]
    pub(crate) max_tokens: Option<u32>,
    /// End before this text; repeatable [default: none]
    #[arg(long, value_name = "STR", value_parser = NonEmptyStringValueParser::new(), allow_hyphen_values = true)]
    pub(crate) stop: Vec<String>,
    /// End at this token, beside the model's own end tokens; repeatable [default: none]
    #[arg(long, value_name = "ID", allow_negative_numbers = true)]
    pub(crate) stop_id: Vec<u32>,
    /// Write on when the model wants to end
    #[arg(long)]
    pub(crate) ignore_eos: bool,
}

fn finite(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(x) if x.is_finite() => Ok(x),
        _ => Err("not a finite number".into()),
    }
}

fn bias(text: &str) -> Result<(u32, f32), String> {
    let (id, value) = text.split_once('=').ok_or("expected ID=VALUE, such as 42=-1.5")?;
    let id = id.trim().parse().map_err(|_| format!("`{id}` is not a token id"))?;
    let value: f32 = value.trim().parse().map_err(|_| format!("`{value}` is not a number"))?;
    if value.is_nan() || value == f32::INFINITY {
        return Err("the value must be a finite number or -inf".into());
    }
    Ok((id, value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn biases_are_read_whole_or_refused() {
        assert_eq!(bias("42=-1.5"), Ok((42, -1.5)));
        assert_eq!(bias("7=-inf"), Ok((7, f32::NEG_INFINITY)));
        for bad in ["", "42", "=1", "x=1", "-1=1", "1=", "1=nan", "1=inf", "1=2=3", "99999999999=1"] {
            assert!(bias(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn only_finite_numbers_are_numbers() {
        assert_eq!(finite("-0.5"), Ok(-0.5));
        for bad in ["nan", "inf", "-inf", "1e99", "", "a"] {
            assert!(finite(bad).is_err(), "{bad}");
        }
    }
}
