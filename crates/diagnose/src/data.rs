//! Tables that only the rules use. They help to read files, not to choose releases; each records its source and date.

pub(crate) mod moved_files;
pub(crate) mod newer_torch;
pub(crate) mod ptx_isa;
pub(crate) mod torch_symbols;
pub(crate) mod undeclared;
pub(crate) mod wrong_records;
