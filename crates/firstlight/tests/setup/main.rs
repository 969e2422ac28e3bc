//! Plan and apply against indexes of our own: a server on the loopback interface that plays torch's CUDA index, an index
//! of GPU wheels and a release page, with small wheels that carry real compiled files; real uv, real HTTP, real compilers.
//! And firstlight on another machine, which is a folder here.
//!
//! Linux only: what the wheels carry are ELF files. uv and a few small packages come from the Python registry and are
//! kept below the target folder.
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
