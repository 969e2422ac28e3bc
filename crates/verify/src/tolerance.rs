//! The only tolerance table, the same on every machine, CI included.

use ops::DType;

/// Maximum distance of an output from the float64 reference.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Tolerance {
    /// Maximum ||out - ref|| / ||ref||.
    pub relative: f64,
    /// Maximum |out - ref| relative to max |ref|. It detects one wrong element among a million, which hardly changes a norm.
    pub worst: f64,
}

/// Storage type of the inputs, and the tolerated relative error.
///
/// The reference reads the same rounded inputs, so the remaining error is the kernel's arithmetic and the rounding of
/// the output: half a unit in the last place is 2^-9 = 2.0e-3 of an element for bf16 (1.1e-3 in the norm) and 2^-12 =
/// 2.4e-4 for f16. bf16 tensor cores round intermediate results once more. The suites these cases come from allow 5e-3
/// (fla), 1e-2 and 2e-2 (FFPA, mamba, causal-conv1d): none is looser here.
const TABLE: &[(DType, f64)] = &[(DType::F32, 2e-5), (DType::F16, 2e-3), (DType::Bf16, 5e-3)];

/// Ratio of the worst element's tolerance to the norm's.
const WORST: f64 = 10.0;

impl Tolerance {
    /// The tolerance for a given relative error, for example of a model's logits.
    pub(crate) fn of(relative: f64) -> Self {
        Self { relative, worst: WORST * relative }
    }
}

/// The tolerance for inputs stored as `dtype`.
///
/// # Panics
/// For a type that no kernel stores.
pub fn tolerance(dtype: DType) -> Tolerance {
    match TABLE.iter().find(|(stored, _)| *stored == dtype) {
        Some((_, relative)) => Tolerance::of(*relative),
        None => panic!("no kernel stores {dtype}"),
    }
}
