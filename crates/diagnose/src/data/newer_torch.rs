//! Packages whose import needs a newer torch than their METADATA asks for.

/// A package whose import needs a torch that its METADATA does not name.
pub(crate) struct Newer {
    pub(crate) package: &'static str,
    /// The first release that does.
    pub(crate) release: &'static str,
    pub(crate) torch: &'static str,
    /// The line of its import.
    pub(crate) line: &'static str,
}

/// Read on 2026-11-23 in the wheels of PyPI: torchao 0.16 and 0.17 have the same line behind a comparison ("only available in
/// PyTorch 2.10+"), 0.18 has it at the top.
pub(crate) const NEWER: [Newer; 1] = [Newer {
    package: "torchao",
    release: "0.18.0",
    torch: "2.10.0",
    line: "torchao/prototype/mx_formats/mx_tensor.py: from torch.nn.functional import ScalingType",
}];
