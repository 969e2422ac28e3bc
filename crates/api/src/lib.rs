//! An HTTP server with OpenAI's and Anthropic's APIs for a served model.
//!
//! A request body is read within limits of size and time. One table ([`request_fields`]) defines how each field of each API is
//! handled. All APIs share one request type (`Work`) and one stream of answers (`Answers`); a `Renderer` writes it
//! in the format of an API.

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

pub use app::{ApiSettings, SamplingDefaults, TextProcessor};
pub use cors::{CorsError, CorsSettings};
pub use log::{Log, Record, RequestRecord};
pub use parsers::{reasoning_parsers, tool_call_parsers};
pub use server::{ServerExit, serve};
