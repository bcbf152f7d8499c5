//! Flags from a file. Its keys are the flags' own long names and its values are given to the same parser, so a file can
//! say all that the command line can, nothing else, and is refused in the same words.

use std::ffi::OsString;
use std::path::Path;

use clap::parser::ValueSource;
use clap::{ArgMatches, Command, CommandFactory, FromArgMatches};
use toml::Value;

use crate::args::Cli;
use crate::failure::{Failure, Result};
use crate::input;

/// The command line with what the file adds.
pub(super) fn merged(path: &Path) -> Result<Cli> {
    let argv: Vec<OsString> = std::env::args_os().collect();
    let shown = path.display().to_string();
    let text = input::read_file(path)?;
    merge(argv, &shown, &text)
}

fn merge(mut argv: Vec<OsString>, file: &str, text: &str) -> Result<Cli> {
    let in_file = |message: String| Failure::input(format!("{file}: {message}"));
    // It was parsed before, or nobody had come here.
    let matches = Cli::command().try_get_matches_from(&argv)?;
    let given = matches.subcommand_matches("serve").ok_or_else(|| in_file("is for `serve` only".into()))?;
    let table: toml::Table = text.parse().map_err(|e: toml::de::Error| {
        let line = e.span().map_or(1, |s| text[..s.start.min(text.len())].matches('\n').count() + 1);
        in_file(format!("line {line}: {}", e.message()))
    })?;
    let command = Cli::command();
    let serve = command.find_subcommand("serve").ok_or_else(|| in_file("is for `serve` only".into()))?;
    for (key, value) in &table {
        argv.extend(flags(serve, given, key, value).map_err(in_file)?);
    }
    let matches =
        Cli::command().try_get_matches_from(&argv).map_err(|e| in_file(Failure::from(e).message))?;
    Ok(Cli::from_arg_matches(&matches)?)
}

/// A key of the file as flags; none where the command line has its own word.
fn flags(serve: &Command, given: &ArgMatches, key: &str, value: &Value) -> Result<Vec<OsString>, String> {
    let names =
        || serve.get_arguments().filter_map(|a| a.get_long()).filter(|n| !["config", "help"].contains(n));
    let arg = serve.get_arguments().find(|a| a.get_long() == Some(key)).filter(|_| names().any(|n| n == key));
    let Some(arg) = arg else {
        let near = names().max_by_key(|n| alike(n, key)).unwrap_or_default();
        return Err(format!("there is no setting `{key}`; the nearest is `{near}`"));
    };
    if given.value_source(arg.get_id().as_str()) == Some(ValueSource::CommandLine) {
        return Ok(Vec::new());
    }
    let takes_value = arg.get_action().takes_values();
    let one = |value: &Value| -> Result<Option<OsString>, String> {
        let text = match value {
            Value::Boolean(on) if !takes_value => return Ok(on.then(|| format!("--{key}").into())),
            _ if !takes_value => return Err(format!("`{key}` must be true or false")),
            Value::String(text) => text.clone(),
            Value::Integer(n) => n.to_string(),
            Value::Float(x) => x.to_string(),
            _ => return Err(format!("`{key}` must be a string or a number")),
        };
        Ok(Some(format!("--{key}={text}").into()))
    };
    let is_list = matches!(arg.get_action(), clap::ArgAction::Append);
    match value {
        Value::Array(values) if is_list => values.iter().filter_map(|v| one(v).transpose()).collect(),
        value => Ok(one(value)?.into_iter().collect()),
    }
}

/// Characters that two names begin with in common, and fewer for a different length.
fn alike(a: &str, b: &str) -> (usize, usize) {
    let shared = a.chars().filter(|c| b.contains(*c)).count();
    let begin = a.chars().zip(b.chars()).take_while(|(a, b)| a == b).count();
    (begin, shared)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::Command as Parsed;
    use crate::serve::args::ServeArgs;

    fn serve(args: &[&str], text: &str) -> Result<Box<ServeArgs>> {
        let argv = ["overdraft", "serve"].iter().chain(args).map(OsString::from).collect();
        match merge(argv, "o.toml", text)?.command {
            Parsed::Serve(args) => Ok(args),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn a_file_says_what_flags_say_and_flags_win() {
        let text = "port = 9000\nmax-streams = 4\nalias = ['a', 'b']\nno-cost-cache = true\nquiet = false\nctx = 512\nkv-memory = '1GiB'";
        let args = serve(&["--max-streams", "2"], text).unwrap();
        assert_eq!((args.address.port, args.load.max_streams), (9000, 2));
        assert_eq!(args.address.alias, ["a", "b"]);
        assert_eq!((args.model.drafting.no_cost_cache, args.quiet), (true, false));
        assert_eq!((args.model.pair.memory.ctx, args.load.kv_memory), (Some(512), Some(1 << 30)));
        assert_eq!(serve(&["--alias", "c"], text).unwrap().address.alias, ["c"]);
    }

    #[test]
    fn what_is_wrong_in_a_file_is_told_with_its_place() {
        for (text, message) in [
            ("prot = 1", "o.toml: there is no setting `prot`; the nearest is `port`"),
            ("port = [1]", "o.toml: `port` must be a string or a number"),
            ("quiet = 1", "o.toml: `quiet` must be true or false"),
            ("port = 99999", "o.toml: invalid value '99999' for '--port <PORT>': 99999 is not in 0..=65535"),
            ("\nport = = 1", "o.toml: line 2: "),
            ("config = 'other.toml'", "o.toml: there is no setting `config`"),
            ("[server]\nport = 1", "o.toml: there is no setting `server`"),
        ] {
            let failure = serve(&[], text).unwrap_err();
            assert!(failure.message.starts_with(message), "{text}: {}", failure.message);
        }
    }
}
