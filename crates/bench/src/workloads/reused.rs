//! Caches the inputs of the previous workload, which often has the same ones as the next: the weights of a mixture of experts
//! are gigabytes, and do not depend on the number of tokens.

use super::{UniformValues, uniform};
use ops::Tensor;
use std::cell::RefCell;

/// A tensor and the arguments of [`uniform`] that it was generated from.
struct TensorRequest {
    name: String,
    shape: Vec<usize>,
    values: UniformValues,
    tensor: Tensor,
    /// Whether the workload that is being built uses it.
    used: bool,
}

thread_local! {
    /// Tensors of the last workload; `None` if nothing is cached.
    static LAST: RefCell<Option<Vec<TensorRequest>>> = const { RefCell::new(None) };
}

/// Generates a tensor, or clones the previous workload's. Clones are copy-on-write, so the cached values do not change.
pub(super) fn cached_uniform(name: &str, shape: &[usize], values: UniformValues) -> Tensor {
    LAST.with_borrow_mut(|last| {
        let Some(cached) = last else { return uniform(name, shape, values) };
        let is_it =
            |it: &&mut TensorRequest| it.name == name && it.shape == shape && it.values == values;
        if let Some(it) = cached.iter_mut().find(is_it) {
            it.used = true;
            return it.tensor.clone();
        }
        let tensor = uniform(name, shape, values);
        let (name, shape) = (name.to_owned(), shape.to_vec());
        cached.push(TensorRequest { name, shape, values, tensor: tensor.clone(), used: true });
        tensor
    })
}

/// Builds a workload with the previous one's tensors where they are equal, and caches its own for the next one.
pub(crate) fn with_reuse<R>(build: impl FnOnce() -> R) -> R {
    LAST.with_borrow_mut(|last| {
        last.get_or_insert_default().iter_mut().for_each(|it| it.used = false);
    });
    let built = build();
    LAST.with_borrow_mut(|last| last.iter_mut().for_each(|cached| cached.retain(|it| it.used)));
    built
}

/// Frees the cached tensors.
pub(crate) fn clear_reused() {
    LAST.set(None);
}

#[cfg(test)]
mod tests {
    use super::*;
    use ops::DType;

    const VALUES: UniformValues = UniformValues(DType::F32, -1.0, 1.0);

    fn address(tensor: &Tensor) -> usize {
        tensor.view::<f32>().unwrap().as_ptr().addr()
    }

    #[test]
    fn equal_tensors_of_the_workload_before_are_reused_and_no_others() {
        let alone = cached_uniform("x", &[8], VALUES);
        assert_ne!(
            address(&alone),
            address(&cached_uniform("x", &[8], VALUES)),
            "nothing is cached unasked"
        );
        let first = with_reuse(|| cached_uniform("x", &[8], VALUES));
        let mut again = with_reuse(|| cached_uniform("x", &[8], VALUES));
        assert_eq!((&again, address(&again)), (&alone, address(&first)));
        // One that is written does not change what is cached.
        again.view_mut::<f32>().unwrap().fill(7.0);
        assert_eq!(with_reuse(|| cached_uniform("x", &[8], VALUES)), alone);
        let others = with_reuse(|| {
            let narrow = UniformValues(DType::F32, -0.5, 0.5);
            [
                cached_uniform("y", &[8], VALUES),
                cached_uniform("x", &[4], VALUES),
                cached_uniform("x", &[8], narrow),
            ]
        });
        assert!(others.iter().all(|other| address(other) != address(&first)));
        // It was of no use to the workload in between.
        assert_ne!(address(&with_reuse(|| cached_uniform("x", &[8], VALUES))), address(&first));
        clear_reused();
        assert!(LAST.with_borrow(Option::is_none));
    }
}
