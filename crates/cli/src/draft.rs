//! Which draft runs beside the target: the one named, the one inside the binary, or one found beside the target.

use std::path::{Path, PathBuf};

use overdraft_models::draft::{DraftSettings, check_fit};
use overdraft_models::{Checkpoint, Hyper, Kind};

use crate::args::{DraftArgs, DraftModeArg, ModelArgs, PairArgs};
use crate::demo;
use crate::failure::Result;
use crate::model::Model;
use crate::screen::Screen;

/// The draft to use, if any. One that was named must fit; one that is only found is left alone if it does not.
pub(crate) fn choose(args: &ModelArgs, model: &Model, screen: &Screen) -> Result<Option<Checkpoint>> {
    if is_off(&args.drafting) {
        return Ok(None);
    }
    find(&args.pair, model, screen)
}

/// Whether the user wants none.
pub(crate) fn is_off(args: &DraftArgs) -> bool {
    args.draft_mode == DraftModeArg::Off || args.budget == Some(0)
}

/// The draft of a pair, if it has one.
pub(crate) fn find(pair: &PairArgs, model: &Model, screen: &Screen) -> Result<Option<Checkpoint>> {
    if let Some(named) = &pair.draft {
        let draft = Checkpoint::open(named)?;
        check_fit(&DraftSettings::read(&draft)?, &model.hyper)?;
        return Ok(Some(draft));
    }
    match &pair.model {
        None => demo::draft().map(Some),
        Some(path) => Ok(found_beside(path, &model.hyper, screen)),
    }
}

/// A file in the target's folder that is a draft and fits; of several the one whose name shares most with the target's.
fn found_beside(target: &Path, hyper: &Hyper, screen: &Screen) -> Option<Checkpoint> {
    let folder = if target.is_dir() { target } else { target.parent()? };
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    let mut fitting: Vec<(PathBuf, Checkpoint)> = std::fs::read_dir(folder)
        .ok()?
        .filter_map(|e| e.ok().map(|e| e.path()))
        .filter(|p| p != target && (is_gguf(p) || p.join("config.json").is_file()))
        .filter_map(|p| fits(&p, hyper).map(|c| (p, c)))
        .collect();
    fitting.sort_by_key(|(p, _)| (std::cmp::Reverse(shared(&name(target), &name(p))), p.clone()));
    let names: Vec<String> = fitting.iter().map(|(p, _)| name(p)).collect();
    let (path, draft) = fitting.into_iter().next()?;
    if names.len() > 1 {
        let all = names.join(", ");
        screen.note(&format!(
            "drafts that fit: {all}; taking {}, the nearest by name (-d names another)",
            name(&path)
        ));
    } else {
        screen.note(&format!(
            "draft {} found beside the target, and it fits (--draft-mode off leaves it)",
            name(&path)
        ));
    }
    Some(draft)
}

fn fits(path: &Path, hyper: &Hyper) -> Option<Checkpoint> {
    let checkpoint = Checkpoint::open(path).ok()?;
    if !matches!(checkpoint.kind(), Ok(Kind::Draft(_))) {
        return None;
    }
    let settings = DraftSettings::read(&checkpoint).ok()?;
    check_fit(&settings, hyper).ok()?;
    Some(checkpoint)
}

fn is_gguf(path: &Path) -> bool {
    path.is_file() && path.extension().is_some_and(|e| e.eq_ignore_ascii_case("gguf"))
}

fn name(path: &Path) -> String {
    path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default()
}

/// Characters two names begin with in common.
fn shared(a: &str, b: &str) -> usize {
    a.chars().zip(b.chars()).take_while(|(a, b)| a.eq_ignore_ascii_case(b)).count()
}
