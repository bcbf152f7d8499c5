//! What stands behind a command: flags with and without a value, lists of numbers. What is not understood is said, never left out.

use std::str::FromStr;

use crate::common::FAMILIES;

/// Whether the flag is there; no longer, then.
pub(crate) fn flag(args: &mut Vec<String>, name: &str) -> bool {
    let at = args.iter().position(|a| a == name);
    at.map(|at| args.remove(at)).is_some()
}

/// What stands behind the flag, if it is there; neither is any longer.
pub(crate) fn value<T: FromStr>(args: &mut Vec<String>, name: &str) -> Result<Option<T>, String> {
    let Some(at) = args.iter().position(|a| a == name) else { return Ok(None) };
    args.remove(at);
    let given = if at < args.len() { args.remove(at) } else { return Err(format!("{name} wants a value")) };
    given.parse().map(Some).map_err(|_| format!("{name} cannot be `{given}`"))
}

/// With commas between them.
pub(crate) fn numbers(list: &str) -> Result<Vec<usize>, String> {
    list.split(',').map(|n| n.parse().map_err(|_| format!("`{n}` of `{list}` is no number"))).collect()
}

/// Whose fixtures are meant: all, or the one behind `--only`.
pub(crate) fn families(args: &[String]) -> Result<Vec<&'static str>, String> {
    let mut args = args.to_vec();
    let only: Option<String> = value(&mut args, "--only")?;
    let mut families: Vec<&str> = FAMILIES.to_vec();
    families.retain(|name| only.as_deref().is_none_or(|only| only == *name));
    let is_clear = args.is_empty() && !families.is_empty();
    is_clear
        .then_some(families)
        .ok_or_else(|| format!("behind it only `--only` may stand, and one of {FAMILIES:?}"))
}
