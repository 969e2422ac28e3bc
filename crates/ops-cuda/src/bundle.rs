//! The bundle of compiled kernels.

use device::cuda::Bundle;

/// Kernels compiled ahead by `cargo xtask bundle`. A kernel that was edited since has another key and misses it; it is
/// then compiled on the machine, and `cargo xtask bundle --check` fails. A static and not a constant, of which every use in
/// another unit of code is a copy: the program held its bytes twice.
pub static BUNDLE: Bundle = Bundle::new(include_bytes!("bundle.bin"));
