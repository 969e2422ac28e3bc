//! Logits against an implementation in float64 that shares nothing with the room: 1e-5 absolute in float32.

#![allow(clippy::unwrap_used)] // Test helpers beside the tests.

mod bias;
mod bitsandbytes;
mod eager;
mod generation;
mod gguf;
mod lengths;
mod link;
mod narrow_ranks;
mod oracle;
mod prefixes;
mod ranks;
mod repack;
mod scheduler;
mod scores;
mod sequences;
mod size;
mod storage;
mod subject;
mod swap;
mod turns;
