//! Runs a model as a service.
//!
//! One thread builds and owns the engine, because a GPU context belongs to the thread that opened it, and steps it
//! while there are requests. Callers hold a [`Service`]: they submit sequences and read the updates of a submission
//! from a [`Ticket`]. Dropping the ticket cancels its sequences before the next step.

mod embeddings;
mod failed_step;
mod grammar;
mod job;
mod limits;
mod logprobs;
mod metrics;
mod prefix_cache_verifier;
mod service;
mod state;
mod times;
mod token_rules;
mod update_dispatcher;
mod worker;

pub use grammar::{GrammarGuide, Grammars, StructuredOutput};
pub use job::{Sequence, SequenceError, Ticket, Update};
pub use limits::ServiceLimits;
pub use metrics::MetricLabels;
pub use models::TokenLogprobs;
pub use service::{EngineBuilder, EngineError, Service, ServiceSettings, SubmitError};
pub use state::{ServiceHealth, ServicePhase};
pub use token_rules::TokenRules;
