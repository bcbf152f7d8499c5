//! A buffer that every thread keeps for the task it runs: a tile of products, a page of keys and values, a state one
//! grid ahead. A thread runs one task at a time and no task needs two, so there is one.

use std::cell::RefCell;

use super::Mode;

thread_local! {
    static BUFFER: RefCell<Vec<f32>> = const { RefCell::new(Vec::new()) };
}

fn grow(buffer: &mut Vec<f32>, len: usize) {
    if buffer.len() < len {
        buffer.resize(len, 0.0);
    }
}

/// Calls `work` with `len` floats of whatever was there before.
pub(super) fn with_buffer<R>(len: usize, work: impl FnOnce(&mut [f32]) -> R) -> R {
    BUFFER.with_borrow_mut(|buffer| {
        grow(buffer, len);
        work(&mut buffer[..len])
    })
}

/// Makes room on every thread that will run tasks, so that no step has to.
pub(crate) fn reserve(mode: &Mode, len: usize) {
    let reserve = || BUFFER.with_borrow_mut(|buffer| grow(buffer, len));
    match mode {
        Mode::Definition => reserve(),
        Mode::Fast { pool, .. } => pool.on_every_thread(&reserve),
    }
}
