//! A module: its variables, its functions and its kernels.

use std::collections::HashMap;

use super::body;
use super::statements::{Cursor, Result};
use super::tokens::{Token, tokens};
use crate::code::Code;
use crate::space::Space;

/// A kernel as it runs.
pub(crate) struct Entry {
    pub(crate) name: String,
    pub(crate) code: Code,
    pub(crate) param_bytes: usize,
    pub(crate) max_threads: u32,
    pub(crate) cluster: u32,
    pub(crate) static_shared: usize,
}

#[derive(Clone)]
pub(super) struct Function<'t, 'a> {
    pub(super) results: Vec<Parameter<'a>>,
    pub(super) parameters: Vec<Parameter<'a>>,
    pub(super) body: Cursor<'t, 'a>,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Parameter<'a> {
    pub(super) name: &'a str,
    pub(super) bytes: usize,
    pub(super) alignment: usize,
}

/// What every body of the module may name.
#[derive(Default)]
pub(super) struct Surroundings<'t, 'a> {
    /// Addresses of variables.
    pub(super) globals: HashMap<&'a str, u64>,
    /// Places of variables in shared memory that functions name, and so every kernel has.
    pub(super) shared: HashMap<&'a str, usize>,
    pub(super) static_shared: usize,
    /// Shared memory whose size is the launch's, and what it is aligned to.
    pub(super) dynamic_shared: Vec<(&'a str, usize)>,
    pub(super) functions: HashMap<&'a str, Function<'t, 'a>>,
}

/// A declaration of memory, `.align 4 .b8 name[16] = {...}`, up to its end.
pub(super) struct Variable<'a> {
    pub(super) name: &'a str,
    pub(super) alignment: usize,
    /// None where the size is left open.
    pub(super) bytes: Option<usize>,
    pub(super) initial: Vec<u8>,
}

pub(super) fn type_bytes(suffix: &str) -> Result<usize> {
    Ok(match suffix.trim_start_matches('.') {
        "b8" | "u8" | "s8" => 1,
        "b16" | "u16" | "s16" | "f16" | "bf16" => 2,
        "b32" | "u32" | "s32" | "f32" | "f16x2" | "bf16x2" => 4,
        "b64" | "u64" | "s64" | "f64" => 8,
        other => return Err(format!("the type `{other}` is not known")),
    })
}

/// Behind `.shared`, `.local`, `.global` or `.param`; without the mark at its end.
pub(super) fn variable<'a>(cursor: &mut Cursor<'_, 'a>) -> Result<Variable<'a>> {
    let (mut alignment, mut element) = (0, 0);
    let name = loop {
        match cursor.name()? {
            ".align" => alignment = cursor.number()? as usize,
            ".attribute" => cursor.skip_statement()?,
            suffix if suffix.starts_with('.') => element = type_bytes(suffix)?,
            name => break name,
        }
    };
    let mut n = Some(1);
    if cursor.takes(b'[') {
        n = if cursor.takes(b']') { None } else { Some(cursor.number()? as usize) };
        if n.is_some() {
            cursor.expect(b']')?;
        }
    }
    let mut initial = Vec::new();
    if cursor.takes(b'=') {
        let in_braces = cursor.takes(b'{');
        loop {
            initial.extend(&cursor.number()?.to_le_bytes()[..element]);
            if !in_braces || !cursor.takes(b',') {
                break;
            }
        }
        if in_braces {
            cursor.expect(b'}')?;
        }
    }
    Ok(Variable { name, alignment: alignment.max(element), bytes: n.map(|n| n * element), initial })
}

/// `(.param .b64 a, .param .b32 b)`, if there is one.
fn parameters<'a>(cursor: &mut Cursor<'_, 'a>) -> Result<Vec<Parameter<'a>>> {
    let mut found = Vec::new();
    if cursor.takes(b'(') {
        while !cursor.takes(b')') {
            let _param = cursor.name()?;
            let v = variable(cursor)?;
            found.push(Parameter { name: v.name, bytes: v.bytes.unwrap_or(0), alignment: v.alignment });
            cursor.takes(b',');
        }
    }
    Ok(found)
}

struct Limits {
    max_threads: u32,
    cluster: u32,
}

fn limits(cursor: &mut Cursor<'_, '_>) -> Result<Limits> {
    let mut limits = Limits { max_threads: 1024, cluster: 1 };
    while let Some(Token::Name(word)) = cursor.peek() {
        cursor.next()?;
        let mut numbers = Vec::new();
        while matches!(cursor.peek(), Some(Token::Number(_))) {
            numbers.push(cursor.number()? as u32);
            cursor.takes(b',');
        }
        match word {
            ".maxntid" | ".reqntid" => limits.max_threads = numbers.iter().product(),
            ".reqnctapercluster" => limits.cluster = numbers.iter().product(),
            ".minnctapersm" | ".maxnreg" | ".explicitcluster" | ".maxclusterrank" => {}
            other => return Err(format!("line {}: `{other}` is not known", cursor.line())),
        }
    }
    Ok(limits)
}

/// Reads a module's text and places its variables.
pub(crate) fn read(text: &str, space: &Space) -> Result<Vec<Entry>> {
    let tokens = tokens(text)?;
    let mut cursor = Cursor::new(&tokens);
    let mut around = Surroundings::default();
    let mut entries = Vec::new();
    while !cursor.is_at_end() {
        match cursor.name()? {
            ".version" | ".target" | ".address_size" => {
                while !matches!(cursor.peek(), Some(Token::Name(word)) if word.starts_with('.')) {
                    cursor.next()?;
                }
            }
            ".visible" | ".weak" | ".extern" => {}
            ".shared" => {
                let v = variable(&mut cursor)?;
                cursor.expect(b';')?;
                match v.bytes {
                    None => around.dynamic_shared.push((v.name, v.alignment)),
                    Some(bytes) => {
                        let at = around.static_shared.next_multiple_of(v.alignment.max(1));
                        around.static_shared = at + bytes;
                        around.shared.insert(v.name, at);
                    }
                }
            }
            ".global" | ".const" => {
                let v = variable(&mut cursor)?;
                cursor.expect(b';')?;
                let bytes = v.bytes.unwrap_or(0);
                let at = space.alloc(bytes).ok_or_else(|| format!("`{}`: no memory left", v.name))?;
                let mut value = v.initial;
                value.resize(bytes, 0);
                space.write(at, &value)?;
                around.globals.insert(v.name, at);
            }
            ".func" => {
                let results = parameters(&mut cursor)?;
                let name = cursor.name()?;
                let parameters = parameters(&mut cursor)?;
                limits(&mut cursor)?;
                // Only announced, where nothing follows.
                if !cursor.takes(b';') {
                    around.functions.insert(name, Function { results, parameters, body: cursor.block()? });
                }
            }
            ".entry" => {
                let name = cursor.name()?;
                let parameters = parameters(&mut cursor)?;
                let limits = limits(&mut cursor)?;
                entries.push((name, parameters, limits, cursor.block()?));
            }
            other => return Err(format!("line {}: `{other}` is not known", cursor.line())),
        }
    }
    let made = entries.into_iter().map(|(name, parameters, limits, text)| {
        let made = body::lower(&around, &parameters, text).map_err(|e| format!("{name}: {e}"))?;
        Ok(Entry {
            name: name.into(),
            code: made.code,
            param_bytes: made.param_bytes,
            max_threads: limits.max_threads,
            cluster: limits.cluster,
            static_shared: made.static_shared,
        })
    });
    made.collect()
}
