//! Plan and apply with a local server instead of torch's CUDA index, an index of GPU wheels and a release page. The small
//! wheels have real compiled files, and uv, HTTP and the compilers are real. `remote` uses a folder as the other machine.
//!
//! Linux only, because the wheels contain ELF files. uv and a few small packages come from the Python registry and are
//! cached below the target folder.
#![cfg(target_os = "linux")]

#[path = "../support/mod.rs"]
mod support;

mod apply;
mod conda;
mod fix;
mod indexes;
mod judged;
mod remote;
mod rows;
mod server;
mod source_build;
mod stack;
mod tools;
mod wheel;
