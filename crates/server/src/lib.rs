//! Many streams from one engine. [`handle`] is all that the rest of the server knows of it; [`output`] is what the text
//! of a conversation means.
#![forbid(unsafe_code)]

mod grammar;
pub mod handle;
pub mod output;
mod reasoning;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod test_data;
mod tools;
