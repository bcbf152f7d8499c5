//! One formatted field: what `%08.3f` and `{:>8,.2f}` share.

use super::meter::{Meter, Outcome, TextBuilder, fault};
use super::print;
use super::value::Value;

#[derive(Debug, Clone)]
pub(crate) struct Spec {
    pub(crate) fill: char,
    /// `<`, `>`, `^` or `=` (padding after the sign).
    pub(crate) align: Option<char>,
    /// Whether fill and alignment come from a leading `0`.
    pub(crate) zero: bool,
    /// `+`, `-` or a space.
    pub(crate) sign: Option<char>,
    pub(crate) alternate: bool,
    /// The separator of thousands.
    pub(crate) grouping: Option<char>,
    pub(crate) width: usize,
    pub(crate) precision: Option<usize>,
    pub(crate) kind: Option<char>,
}

impl Default for Spec {
    fn default() -> Self {
        Self {
            fill: ' ',
            align: None,
            zero: false,
            sign: None,
            alternate: false,
            grouping: None,
            width: 0,
            precision: None,
            kind: None,
        }
    }
}

/// Reads a format character by character; what is left is the field.
pub(crate) struct Cursor<'a>(pub(crate) &'a str);

impl Cursor<'_> {
    pub(crate) fn next(&mut self) -> Option<char> {
        self.next_if(|_| true)
    }

    pub(crate) fn next_if(&mut self, wanted: impl Fn(&char) -> bool) -> Option<char> {
        let c = self.0.chars().next().filter(wanted)?;
        self.0 = &self.0[c.len_utf8()..];
        Some(c)
    }

    pub(crate) fn next_if_eq(&mut self, wanted: &char) -> Option<char> {
        self.next_if(|c| c == wanted)
    }

    /// The decimal digits here, if any; what does not fit is as good as the largest.
    pub(crate) fn number(&mut self) -> Option<usize> {
        let mut number = None;
        while let Some(digit) = self.next_if(char::is_ascii_digit).and_then(|c| c.to_digit(10)) {
            number = Some(number.unwrap_or(0_usize).saturating_mul(10).saturating_add(digit as usize));
        }
        number
    }
}

/// No double has more digits after the point.
const MAX_FLOAT_DIGITS: usize = 1100;

pub(crate) fn parse_int(digits: &str, base: u32) -> Option<i128> {
    let unsigned = digits.strip_prefix(['-', '+']).unwrap_or(digits);
    let prefix = match base {
        16 => "0x",
        8 => "0o",
        2 => "0b",
        _ => "",
    };
    let bare = unsigned
        .get(..prefix.len())
        .filter(|have| have.eq_ignore_ascii_case(prefix))
        .map_or(unsigned, |have| &unsigned[have.len()..]);
    if !(2..=36).contains(&base) || bare.starts_with(['-', '+']) {
        return None;
    }
    let value = i128::from_str_radix(bare, base).ok()?;
    Some(if digits.starts_with('-') { -value } else { value })
}

/// The text of a field, cut to the precision and padded.
pub(crate) fn text(meter: &mut Meter, out: &mut TextBuilder, spec: &Spec, text: &str) -> Outcome<()> {
    let cut = match spec.precision {
        Some(precision) => text.char_indices().nth(precision).map_or(text, |(at, _)| &text[..at]),
        None => text,
    };
    meter.scan(cut.len())?;
    pad(meter, out, spec, "", cut, '<')
}

fn pad(
    meter: &mut Meter,
    out: &mut TextBuilder,
    spec: &Spec,
    sign: &str,
    body: &str,
    default_align: char,
) -> Outcome<()> {
    let padding = spec.width.saturating_sub(sign.chars().count() + body.chars().count());
    let (before, inside, after) = match spec.align.unwrap_or(default_align) {
        '<' => (0, 0, padding),
        '^' => (padding / 2, 0, padding - padding / 2),
        '=' => (0, padding, 0),
        _ => (padding, 0, 0),
    };
    out.repeat(meter, spec.fill, before)?;
    out.push(meter, sign)?;
    out.repeat(meter, spec.fill, inside)?;
    out.push(meter, body)?;
    out.repeat(meter, spec.fill, after)
}

pub(crate) fn number(meter: &mut Meter, out: &mut TextBuilder, spec: &Spec, value: &Value) -> Outcome<()> {
    let kind = spec.kind.unwrap_or(if matches!(value, Value::Float(_)) { 'r' } else { 'd' });
    if let Some(precision) = spec.precision.filter(|&precision| precision > MAX_FLOAT_DIGITS) {
        return fault(format!("a number can't be shown with {precision} digits"));
    }
    let (negative, mut body) = match (kind, value.as_int(), value.as_float()) {
        ('d' | 'i' | 'u' | 'x' | 'X' | 'o' | 'b', Some(i), _) => {
            let magnitude = i.unsigned_abs();
            let prefix = if spec.alternate { 1 } else { 0 };
            let digits = match kind {
                'x' => format!("{}{magnitude:x}", &["", "0x"][prefix]),
                'X' => format!("{}{magnitude:X}", &["", "0X"][prefix]),
                'o' => format!("{}{magnitude:o}", &["", "0o"][prefix]),
                'b' => format!("{}{magnitude:b}", &["", "0b"][prefix]),
                _ => magnitude.to_string(),
            };
            (i < 0, digits)
        }
        ('f' | 'F' | 'e' | 'E' | 'g' | 'G' | 'r' | '%', _, Some(f)) => {
            (f.is_sign_negative(), float(kind, f.abs(), spec))
        }
        _ => return fault(format!("the format `{kind}` does not fit a {}", value.type_name())),
    };
    if let Some(separator) = spec.grouping {
        body = group(&body, separator);
    }
    let sign = match (negative, spec.sign) {
        (true, _) => "-",
        (false, Some('+')) => "+",
        (false, Some(' ')) => " ",
        _ => "",
    };
    pad(meter, out, spec, sign, &body, '>')
}

fn float(kind: char, value: f64, spec: &Spec) -> String {
    if !value.is_finite() {
        let name = if value.is_nan() { "nan" } else { "inf" };
        return if kind.is_uppercase() { name.to_uppercase() } else { name.into() };
    }
    let precision = spec.precision.unwrap_or(6);
    match kind {
        'f' | 'F' => format!("{value:.precision$}"),
        '%' => format!("{:.precision$}%", value * 100.0),
        'e' => exponent(&format!("{value:.precision$e}")),
        'E' => exponent(&format!("{value:.precision$e}")).to_uppercase(),
        'r' if spec.precision.is_none() => print::float(value),
        'G' => general(value, precision).to_uppercase(),
        _ => general(value, precision),
    }
}

/// Python writes at least two digits of exponent and always its sign.
fn exponent(scientific: &str) -> String {
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((scientific, "0"));
    match exponent.strip_prefix('-') {
        Some(digits) => format!("{mantissa}e-{digits:0>2}"),
        None => format!("{mantissa}e+{exponent:0>2}"),
    }
}

fn general(value: f64, precision: usize) -> String {
    let digits = precision.max(1);
    let scientific = format!("{value:.*e}", digits - 1);
    let power: i64 = scientific.split_once('e').and_then(|(_, power)| power.parse().ok()).unwrap_or(0);
    let strip = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_string(),
        false => text.to_string(),
    };
    if power < -4 || power >= digits as i64 {
        let (mantissa, power) = scientific.split_once('e').unwrap_or((&scientific, "0"));
        return exponent(&format!("{}e{power}", strip(mantissa)));
    }
    let decimals = usize::try_from(digits as i64 - 1 - power).unwrap_or(0);
    strip(&format!("{value:.decimals$}"))
}

fn group(body: &str, separator: char) -> String {
    let whole = body.find(|c: char| !c.is_ascii_digit()).unwrap_or(body.len());
    let mut grouped = String::new();
    for (at, digit) in body[..whole].chars().enumerate() {
        if at > 0 && (whole - at).is_multiple_of(3) {
            grouped.push(separator);
        }
        grouped.push(digit);
    }
    grouped + &body[whole..]
}
