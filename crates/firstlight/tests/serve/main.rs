//! `firstlight serve`: answers, errors for invalid requests, and the resources that are freed after disconnects.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

mod answers;
mod browsers;
#[cfg(target_os = "linux")]
mod budgets;
mod client;
mod embeddings;
mod ends;
mod forms;
mod load;
mod mistakes;
mod model;
mod packaging;
mod parsers;
mod scripts;
mod split;
#[path = "../support/mod.rs"]
mod support;
mod tools;
mod turns;
