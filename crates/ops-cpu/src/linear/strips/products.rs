//! Products of a strip: in float32, or by the processor's bfloat16 dot product.

use crate::gemm::{Mat, MatMut, PackedB, PackedBf16, Store, gemm_bf16, gemm_packed};
use device::Isa;
use half::bf16;
use ops::Element;

/// Products of rows of x with packed weights.
pub(super) trait Products: Copy + Sync {
    /// Element type of both operands.
    type Value: Element;
    /// Weights in the order in which they are multiplied; kept between strips.
    type Packed: Default;
    /// The instruction set of the prologue and the epilogue.
    fn isa(self) -> Isa;
    /// Packs `[depth, columns]`.
    fn pack(self, weights: Mat<'_, Self::Value>, to: &mut Self::Packed);
    /// `into = x weights`, or added to it.
    fn multiply(
        self,
        x: Mat<'_, Self::Value>,
        weights: &Self::Packed,
        store: Store,
        into: MatMut<'_>,
    );
}

/// Everything widened to float32.
#[derive(Clone, Copy)]
pub(super) struct Widened(pub(super) Isa);

impl Products for Widened {
    type Value = f32;
    type Packed = PackedB;

    fn isa(self) -> Isa {
        self.0
    }

    fn pack(self, weights: Mat<'_, f32>, to: &mut PackedB) {
        to.pack(self.0, weights);
    }

    fn multiply(self, x: Mat<'_, f32>, weights: &PackedB, store: Store, into: MatMut<'_>) {
        gemm_packed(self.0, 1.0, x, weights, store, into);
    }
}

/// Pairs of bfloat16 values, summed in float32.
#[derive(Clone, Copy)]
pub(super) struct Pairs;

impl Products for Pairs {
    type Value = bf16;
    type Packed = PackedBf16;

    fn isa(self) -> Isa {
        Isa::Avx512Bf16
    }

    fn pack(self, weights: Mat<'_, bf16>, to: &mut PackedBf16) {
        to.pack(weights);
    }

    fn multiply(self, x: Mat<'_, bf16>, weights: &PackedBf16, store: Store, into: MatMut<'_>) {
        gemm_bf16(1.0, x, weights, store, into);
    }
}
