//! Logits compared with an independent float64 implementation: 1e-5 absolute in float32.

#![allow(clippy::unwrap_used)] // Test helpers may unwrap.

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
