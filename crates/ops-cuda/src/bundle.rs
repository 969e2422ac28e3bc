//! The bundle of compiled kernels.

use device::cuda::Bundle;

/// Kernels compiled ahead of time by `cargo xtask bundle`. A kernel edited since then has another key and is not found; it is
/// compiled at run time, and `cargo xtask bundle --check` fails. A static, because each codegen unit would copy a constant's bytes.
pub static BUNDLE: Bundle = Bundle::new(include_bytes!("bundle.bin"));
