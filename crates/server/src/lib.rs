//! Many streams from one engine, behind HTTP. [`handle`] is all that the rest of the server knows of the engine;
//! [`output`] is what the text of a conversation means; [`http`] is where clients come in.
#![forbid(unsafe_code)]

mod grammar;
pub mod handle;
pub mod http;
pub mod output;
mod page;
mod reasoning;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod test_data;
mod tools;
