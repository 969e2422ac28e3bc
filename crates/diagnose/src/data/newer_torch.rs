//! Packages whose import needs a newer torch than their METADATA requires.

/// A package whose import needs a torch that its METADATA does not require.
pub(crate) struct NewerTorch {
    pub(crate) package: &'static str,
    /// The first release that needs it.
    pub(crate) release: &'static str,
    pub(crate) torch: &'static str,
    /// The import that an older torch lacks.
    pub(crate) line: &'static str,
}

/// Read on 2026-11-23 in the wheels on PyPI: torchao 0.16 and 0.17 guard the same import by a version comparison ("only
/// available in PyTorch 2.10+"); 0.18 imports it at the top of the file.
pub(crate) const NEWER: [NewerTorch; 1] = [NewerTorch {
    package: "torchao",
    release: "0.18.0",
    torch: "2.10.0",
    line: "torchao/prototype/mx_formats/mx_tensor.py: from torch.nn.functional import ScalingType",
}];
