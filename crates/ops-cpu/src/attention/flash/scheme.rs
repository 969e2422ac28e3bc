use super::storage::Storage;
use half::bf16;
use std::marker::PhantomData;

/// How stored values enter products. Implements the products of both forms, panels and streams.
pub(super) trait Scheme: 'static {
    /// Storage type of q, k, v and o.
    type Element: Storage;
}

/// Values widened to f32.
pub(super) struct Widened<E>(PhantomData<E>);

impl<E: Storage> Scheme for Widened<E> {
    type Element = E;
}

/// Pairs of bfloat16 values, multiplied by the AVX512-BF16 dot product. Runs only where that was detected:
/// [`super::run`] chooses it for this instruction set alone, and `dispatch` checks that it is here.
#[cfg_attr(not(target_arch = "x86_64"), allow(dead_code))]
pub(super) struct Pairs;

impl Scheme for Pairs {
    type Element = bf16;
}
