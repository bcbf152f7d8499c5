//! The server over real sockets, with the demo pair behind it.

mod anthropic;
mod client;
mod door;
mod leaving;
mod limits;
mod load;
mod loading;
mod openai;
mod responses;
mod scoring;
mod seen;
mod server;
mod tools;
mod trace;
