//! The one list of ops.

use crate::{Family, Gradient, Op, OpError};

/// A visitor that gets each op's type, which `dyn Op` erases.
pub trait Visitor {
    /// Called for each op, in the order of [`OPS`].
    fn visit<F: Family>(&mut self);
}

/// Writes the one list of ops out as values and as types.
macro_rules! ops {
    ($($op:path,)*) => {
        /// The ops, in the order they are verified and benched.
        pub static OPS: &[&dyn Op] = &[$(&$op),*];

        /// Visits each op of [`OPS`] by its type.
        pub fn visit_ops(visitor: &mut impl Visitor) {
            $(visitor.visit::<$op>();)*
        }
    };
}

ops! {
    crate::attention::AttentionOp,
    crate::kda::KdaOp,
    crate::gated_delta::GatedDeltaOp,
    crate::ssd::SsdOp,
    crate::selective_scan::SelectiveScanOp,
    crate::conv1d::Conv1dOp,
    crate::nsa::NsaOp,
    crate::rmsnorm::RmsNormOp,
    crate::linear::LinearOp,
    crate::moe::MoeOp,
    crate::sampling::SamplingOp,
}

/// The gradients of ops, in the order of [`OPS`]. Each is an op with its own table; some ops have none.
pub static GRADIENTS: &[&dyn Op] =
    &[&Gradient::<crate::conv1d::Conv1dOp>::OP, &Gradient::<crate::rmsnorm::RmsNormOp>::OP];

/// [`OPS`], then [`GRADIENTS`].
pub fn all_ops() -> impl Iterator<Item = &'static dyn Op> {
    OPS.iter().chain(GRADIENTS).copied()
}

/// The op of this name, which may be a gradient.
///
/// # Errors
/// [`OpError::UnknownOp`].
pub fn op(name: &str) -> Result<&'static dyn Op, OpError> {
    all_ops().find(|op| op.spec().name == name).ok_or_else(|| {
        let known = all_ops().map(|op| op.spec().name).collect();
        OpError::UnknownOp { name: name.to_owned(), known }
    })
}
