//! The one list of ops.

use crate::{Family, Gradient, Op, OpError};

/// A visitor that gets each op's type, which `dyn Op` erases.
pub trait Visitor {
    /// Called for each op, in the order of [`OPS`].
    fn visit<F: Family>(&mut self);
}

/// Defines the list of ops as values and as types: first the ops, then their gradients.
macro_rules! ops {
    (ops: [$($op:path,)*], gradients: [$($of:path,)*],) => {
        /// The ops, in the order they are verified and benched. Gradients of ops are ops too.
        pub static OPS: &[&dyn Op] = &[$(&$op,)* $(&Gradient::<$of>::OP),*];

        /// Visits each op of [`OPS`] by its type.
        pub fn visit_ops(visitor: &mut impl Visitor) {
            $(visitor.visit::<$op>();)*
            $(visitor.visit::<Gradient<$of>>();)*
        }
    };
}

ops! {
    ops: [
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
    ],
    gradients: [
        crate::attention::AttentionOp,
        crate::kda::KdaOp,
        crate::gated_delta::GatedDeltaOp,
        crate::ssd::SsdOp,
        crate::conv1d::Conv1dOp,
        crate::rmsnorm::RmsNormOp,
    ],
}

/// The op of this name.
///
/// # Errors
/// [`OpError::UnknownOp`].
pub fn op(name: &str) -> Result<&'static dyn Op, OpError> {
    OPS.iter().copied().find(|op| op.spec().name == name).ok_or_else(|| {
        let known = OPS.iter().map(|op| op.spec().name).collect();
        OpError::UnknownOp { name: name.to_owned(), known }
    })
}
