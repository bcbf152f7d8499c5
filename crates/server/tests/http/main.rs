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
mod seen;
mod server;
