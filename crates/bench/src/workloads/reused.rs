//! Inputs of the workload before, which the next one often has too: the weights of a mixture of experts are gigabytes, and the same for every
//! number of tokens.

use super::{UniformValues, uniform};
use ops::Tensor;
use std::cell::RefCell;

/// A tensor by what it was drawn from.
struct TensorRequest {
    name: String,
    shape: Vec<usize>,
    values: UniformValues,
    tensor: Tensor,
    /// Whether the workload that is being built has it.
    wanted: bool,
}

thread_local! {
    /// Tensors of the last workload; `None` where nothing is to be kept.
    static LAST: RefCell<Option<Vec<TensorRequest>>> = const { RefCell::new(None) };
}

/// Draws a tensor, or takes it from the workload before. A tensor that is written is copied first, so the kept one stays as
/// it was drawn.
pub(super) fn drawn(name: &str, shape: &[usize], values: UniformValues) -> Tensor {
    LAST.with_borrow_mut(|last| {
        let Some(kept) = last else { return uniform(name, shape, values) };
        let is_it =
            |it: &&mut TensorRequest| it.name == name && it.shape == shape && it.values == values;
        if let Some(it) = kept.iter_mut().find(is_it) {
            it.wanted = true;
            return it.tensor.clone();
        }
        let tensor = uniform(name, shape, values);
        let (name, shape) = (name.to_owned(), shape.to_vec());
        kept.push(TensorRequest { name, shape, values, tensor: tensor.clone(), wanted: true });
        tensor
    })
}

/// Builds a workload, with tensors of the one before where they are the same, and keeps its own for the next.
pub(crate) fn reusing<R>(build: impl FnOnce() -> R) -> R {
    LAST.with_borrow_mut(|last| {
        last.get_or_insert_default().iter_mut().for_each(|it| it.wanted = false);
    });
    let built = build();
    LAST.with_borrow_mut(|last| last.iter_mut().for_each(|kept| kept.retain(|it| it.wanted)));
    built
}

/// Frees what is kept.
pub(crate) fn forget() {
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
        let alone = drawn("x", &[8], VALUES);
        assert_ne!(address(&alone), address(&drawn("x", &[8], VALUES)), "nothing is kept unasked");
        let first = reusing(|| drawn("x", &[8], VALUES));
        let mut again = reusing(|| drawn("x", &[8], VALUES));
        assert_eq!((&again, address(&again)), (&alone, address(&first)));
        // One that is written does not change what is kept.
        again.view_mut::<f32>().unwrap().fill(7.0);
        assert_eq!(reusing(|| drawn("x", &[8], VALUES)), alone);
        let others = reusing(|| {
            let narrow = UniformValues(DType::F32, -0.5, 0.5);
            [drawn("y", &[8], VALUES), drawn("x", &[4], VALUES), drawn("x", &[8], narrow)]
        });
        assert!(others.iter().all(|other| address(other) != address(&first)));
        // It was of no use to the workload in between.
        assert_ne!(address(&reusing(|| drawn("x", &[8], VALUES))), address(&first));
        forget();
        assert!(LAST.with_borrow(Option::is_none));
    }
}
