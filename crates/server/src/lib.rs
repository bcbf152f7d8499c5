//! Many streams from one engine. [`handle`] is all that the rest of the server knows of it.
#![forbid(unsafe_code)]

pub mod handle;
#[cfg(test)]
mod sim;
