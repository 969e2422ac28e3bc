//! A model as a service.
//!
//! One thread builds and owns the engine, because a GPU's engine belongs to the thread that opened it, and steps it for as long
//! as there are requests. Callers hold a [`Service`]: they submit sequences, and read what becomes of them from a [`Ticket`].
//! Whoever drops the ticket is no longer waited for: it is looked at before every step.

mod blame;
mod embeddings;
mod grammar;
mod job;
mod limits;
mod logprobs;
mod metrics;
mod post;
mod second_look;
mod service;
mod state;
mod times;
mod token_rules;
mod worker;

pub use grammar::{Bound, Form, Grammars};
pub use job::{Sequence, Ticket, Update, Why};
pub use limits::Limits;
pub use metrics::Named;
pub use models::TokenLogprobs;
pub use service::{Build, BuildError, Refusal, Service, Settings};
pub use state::{Health, Phase};
pub use token_rules::TokenRules;
