//! HTTP as OpenAI's clients speak it, over a model that is served.
//!
//! A request is read with limits of size and time, each of its fields by name: what the server does not know is refused, and
//! nothing is ignored. Answers are made by one path, whether they are streamed or given whole.

mod answers;
mod app;
mod body;
mod calls;
mod connection;
mod error;
mod events;
mod fields;
mod form;
mod keys;
mod log;
mod messages;
mod probabilities;
mod reply;
mod routes;
mod sampling;
mod server;

pub use app::{Defaults, Settings, Texts};
pub use log::{Log, Record, RequestRecord};
pub use server::{Ended, serve};
