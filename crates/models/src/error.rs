//! What can be wrong with a checkpoint beyond its bytes.

#[derive(Debug, thiserror::Error)]
pub enum ModelError {
    #[error(transparent)]
    Format(#[from] overdraft_formats::Error),
    #[error("{file}: architecture `{found}` is not one this build has; it has {known}")]
    UnknownArch { file: String, found: String, known: String },
    #[error(
        "{file}: this is a draft model ({what}), not a target\nhint: pass the target with -m and this file with -d"
    )]
    Draft { file: String, what: String },
    #[error(
        "{file}: this is not a DFlash draft but {what}\nhint: pass a DFlash draft with -d, the target with -m"
    )]
    NotADraft { file: String, what: String },
    #[error(
        "{file}: {at}: {method}, which is not supported\nhint: this build runs plain DFlash drafts (full and sliding \
         layers, YaRN and biases included)"
    )]
    DraftMethod { file: String, at: String, method: String },
    #[error("{draft} does not fit {target}: {problem}\nhint: {hint}")]
    Misfit { draft: String, target: String, problem: String, hint: String },
    #[error("{file}: tensor `{tensor}` is missing{hint}")]
    MissingTensor { file: String, tensor: String, hint: String },
    #[error("{file}: tensor `{tensor}` is {found:?}, but the file's settings make it {expected:?}")]
    Shape { file: String, tensor: String, found: Vec<usize>, expected: Vec<usize> },
    #[error("{file}: tensor `{tensor}` has type {dtype}, which cannot be used as a weight")]
    WeightType { file: String, tensor: String, dtype: String },
    #[error("{file}: {key} = {value}: {problem}")]
    Setting { file: String, key: String, value: String, problem: String },
}

pub type Result<T, E = ModelError> = std::result::Result<T, E>;

impl ModelError {
    pub(crate) fn setting(file: &str, key: &str, value: impl ToString, problem: impl Into<String>) -> Self {
        let (key, value) = (format!("`{}`", shown(key)), shown(&value.to_string()));
        Self::Setting { file: file.into(), key, value, problem: problem.into() }
    }
}

/// Words out of a file, fit for a message: they can neither flood nor drive a terminal.
pub(crate) fn shown(words: &str) -> String {
    const LONGEST: usize = 120;
    let mut out = String::new();
    for c in words.chars().take(LONGEST) {
        if c.is_control() { out.extend(c.escape_debug()) } else { out.push(c) }
    }
    if words.chars().nth(LONGEST).is_some() {
        out.push('…');
    }
    out
}
