//! What a text may go on with, as a grammar or a schema says.

/// Decides which tokens may come next. One per sequence, in step with its text; the engine asks it on its own thread, so
/// an answer should take microseconds.
///
/// A constraint must be a pure function of the tokens accepted so far: the engine tries drafted paths on it and takes
/// them back, and the text stays what it would be without any draft.
pub trait Constraint: Send {
    /// Sets the bit of every token that may come next: bit `t % 32` of word `t / 32`. The mask comes all zero. Tokens
    /// that end the text count like any other; where none is set the text is over.
    fn mask(&mut self, allowed: &mut [u32]);

    /// Goes on with `token` if it may come next; says whether it did.
    fn accept(&mut self, token: u32) -> bool;

    /// Takes back the last `n` tokens that were accepted. Never more than 16 at once, and only of a draft.
    fn rollback(&mut self, n: usize);
}
