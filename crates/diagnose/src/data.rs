//! Tables that only the rules need, which read files and not choose releases: each carries where it was read and when.

pub(crate) mod moved_files;
pub(crate) mod newer_torch;
pub(crate) mod ptx_isa;
pub(crate) mod torch_symbols;
pub(crate) mod undeclared;
