//! Ctrl-C. While tokens are made it asks the loop to stop; a second one, or one at any other time, ends the process.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use crate::failure::Failure;

/// What shells report of a program that Ctrl-C ended.
pub(crate) const EXIT_CODE: u8 = 130;

static GENERATING: AtomicBool = AtomicBool::new(false);
static ASKED: AtomicBool = AtomicBool::new(false);

/// Takes over Ctrl-C (and SIGTERM, SIGHUP) for the life of the process.
pub(crate) fn listen() {
    let handler = || {
        if !GENERATING.load(SeqCst) || ASKED.swap(true, SeqCst) {
            std::process::exit(EXIT_CODE.into());
        }
    };
    // Where it cannot be installed, Ctrl-C ends the process at once, as it does by default.
    let _ = ctrlc::set_handler(handler);
}

/// What a command says that was stopped before it had anything to show.
pub(crate) fn failure() -> Failure {
    Failure { code: EXIT_CODE, message: "interrupted".into(), hint: None }
}

/// Held while tokens are made.
pub(crate) struct Generating(());

pub(crate) fn generating() -> Generating {
    ASKED.store(false, SeqCst);
    GENERATING.store(true, SeqCst);
    Generating(())
}

impl Generating {
    /// Whether Ctrl-C was pressed since this began.
    pub(crate) fn asked_to_stop(&self) -> bool {
        ASKED.load(SeqCst)
    }
}

impl Drop for Generating {
    fn drop(&mut self) {
        GENERATING.store(false, SeqCst);
    }
}
