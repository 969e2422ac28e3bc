//! Calls with changed inputs or settings.

use crate::FaultInput;
use ops::{Settings, Tensor, TensorMap};

impl FaultInput<'_> {
    /// The outputs without an input, if the call has it.
    pub(crate) fn without(&self, name: &str) -> Option<TensorMap> {
        let mut inputs = self.inputs.clone();
        inputs.remove(name)?;
        self.run(&inputs, self.settings)
    }

    /// The outputs with some inputs replaced, if the call has all of them.
    pub(crate) fn with(
        &self,
        names: &[&str],
        change: impl Fn(&Tensor) -> Tensor,
    ) -> Option<TensorMap> {
        let mut inputs = self.inputs.clone();
        for name in names {
            let tensor = inputs.get_mut(*name)?;
            *tensor = change(tensor);
        }
        self.run(&inputs, self.settings)
    }

    /// The correct outputs, with those of a wrong call that has fewer or more of them.
    pub(crate) fn partly(&self, wrong: Option<TensorMap>) -> Option<TensorMap> {
        let wrong = wrong?.into_iter().filter(|(name, _)| self.right.contains_key(name));
        let mut outputs = self.right.clone();
        outputs.extend(wrong);
        Some(outputs)
    }

    /// The correct outputs, but one without the contribution of the last row of `do`, whose last dimension has `row` elements.
    pub(crate) fn without_last_row(&self, output: &str, row: usize) -> Option<TensorMap> {
        let mut wrong = self.with(&["do"], |d_o| {
            let mut values = d_o.to_f64();
            values.iter_mut().rev().take(row).for_each(|value| *value = 0.0);
            Tensor::new(d_o.shape(), values).cast(d_o.dtype())
        })?;
        wrong.retain(|name, _| name == output);
        self.partly(Some(wrong))
    }

    /// The outputs with other settings; `None` if `change` changes nothing.
    pub(crate) fn under(&self, change: impl Fn(&str, &str) -> Option<String>) -> Option<TensorMap> {
        let settings = self.settings.iter().fold(Settings::new(), |settings, (name, value)| {
            match change(name, value) {
                Some(value) => settings.with(name, value),
                None => settings,
            }
        });
        if settings == *self.settings { None } else { self.run(self.inputs, &settings) }
    }

    /// The outputs without these settings.
    pub(crate) fn unset(&self, names: &[&str]) -> Option<TensorMap> {
        self.under(|name, value| (!names.contains(&name)).then(|| value.to_owned()))
    }

    /// The outputs with an additional setting, if it was not given.
    pub(crate) fn set(&self, name: &str, value: &str) -> Option<TensorMap> {
        let absent = self.setting(name).is_none();
        absent.then(|| self.run(self.inputs, &self.settings.clone().with(name, value)))?
    }

    pub(crate) fn setting(&self, name: &str) -> Option<&str> {
        self.settings.iter().find(|(given, _)| *given == name).map(|(_, value)| value)
    }

    pub(crate) fn is_dense(&self) -> bool {
        !self.inputs.keys().any(|name| {
            ["cu_seqlens", "block_table", "cache_seqlens", "state_indices"].contains(&name.as_str())
        })
    }

    /// The correct outputs with one of them replaced.
    pub(crate) fn replacing(&self, name: &str, change: impl Fn(&mut Vec<f64>)) -> TensorMap {
        let mut outputs = self.right.clone();
        let tensor = outputs.get_mut(name).unwrap();
        let mut values = tensor.to_f64();
        change(&mut values);
        *tensor = Tensor::new(tensor.shape(), values).cast(tensor.dtype());
        outputs
    }
}

/// A tensor with entries `from(i)` along a dimension, whose size may differ.
pub(crate) fn gather(
    tensor: &Tensor,
    dim: usize,
    size: usize,
    from: impl Fn(usize) -> usize,
) -> Tensor {
    let shape = tensor.shape();
    let inner: usize = shape[dim + 1..].iter().product();
    let values = tensor.to_f64();
    let mut out = Vec::new();
    for outer in values.chunks(shape[dim] * inner) {
        for index in 0..size {
            out.extend_from_slice(&outer[from(index) * inner..][..inner]);
        }
    }
    let mut shape = shape.to_vec();
    shape[dim] = size;
    Tensor::new(&shape, out).cast(tensor.dtype())
}

/// A tensor with every value replaced.
pub(crate) fn map(tensor: &Tensor, change: impl Fn(f64) -> f64) -> Tensor {
    let values = tensor.to_f64().into_iter().map(change).collect::<Vec<f64>>();
    Tensor::new(tensor.shape(), values).cast(tensor.dtype())
}
