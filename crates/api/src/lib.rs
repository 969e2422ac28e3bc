//! HTTP as OpenAI's clients speak it, over a model that is served.
//!
//! A request is read with limits of size and time. One table ([`request_fields`]) says how each field of each API is treated.
//! All APIs share one request (`Work`) and one stream of answers (`Answers`); a `Renderer` gives them the form of an API.

mod answers;
mod app;
mod body;
mod calls;
mod connection;
mod cors;
mod error;
mod fields;
mod form;
mod keys;
mod log;
mod messages;
mod parsers;
mod probabilities;
mod render;
mod reply;
mod request_fields;
mod requests;
mod routes;
mod sampling;
mod server;
mod stored_responses;

pub use app::{Defaults, Settings, Texts};
pub use cors::{CorsError, CorsSettings};
pub use log::{Log, Record, RequestRecord};
pub use parsers::{reasoning_parsers, tool_call_parsers};
pub use server::{Ended, serve};
