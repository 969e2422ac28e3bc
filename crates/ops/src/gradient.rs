//! The gradient of an op, which is an op too: `rmsnorm_backward`. Its contract follows from that of the forward op.

#[cfg(test)]
pub(crate) mod differences;

use crate::{DType, Family, Inputs, OpError, OpSpec, OutputSpec, Problem, TensorMap};
use std::marker::PhantomData;

/// An op that has a gradient.
pub trait Differentiable: Family {
    /// The gradient's table. Its inputs are the op's own that the gradient supports, the gradient of each output (`do` of `o`), and
    /// the outputs that the gradient reads (`o`, `lse`). Its outputs are gradients of inputs (`dx` of `x`).
    const GRADIENT: &'static OpSpec;
    /// Floating-point operations of the gradient as a multiple of the op's.
    const FLOPS: f64;
    /// Computes every output of the gradient in float64 from the formulas.
    fn gradient(problem: &Self::Problem, inputs: Inputs<'_>) -> TensorMap;
}

/// The gradient of the op `F`.
#[derive(Debug)]
pub struct Gradient<F>(PhantomData<F>);

impl<F> Gradient<F> {
    /// The op.
    pub const OP: Self = Self(PhantomData);
}

/// A checked call of a gradient, without its data.
#[derive(Debug, Clone, PartialEq)]
pub struct GradientProblem<P> {
    /// The call of the forward op.
    pub forward: P,
    /// Storage type, whose tolerance holds.
    pub dtype: DType,
    outputs: Vec<OutputSpec>,
    flops: f64,
    input_bytes: f64,
}

impl<F: Differentiable> Family for Gradient<F> {
    type Problem = GradientProblem<F::Problem>;
    type Options = F::Options;
    const SPEC: &'static OpSpec = F::GRADIENT;

    fn parse(inputs: Inputs<'_>, options: &F::Options) -> Result<Self::Problem, OpError> {
        let forward = F::parse(inputs, options)?;
        let of_forward = forward.outputs();
        for (_, spec, tensor) in inputs.slots().iter() {
            let name = spec.name.strip_prefix('d').unwrap_or(spec.name);
            let like = of_forward.iter().find(|output| [name, spec.name].contains(&output.name));
            let Some(OutputSpec { name, shape, dtype }) = like else { continue };
            if tensor.shape() != shape {
                return Err(inputs.shape_error(spec.name, &format!("{shape:?} like `{name}`")));
            }
            if tensor.dtype() != *dtype {
                return Err(inputs.dtype_error(spec.name, &format!("{dtype} like `{name}`")));
            }
        }
        let gradient = |spec: &'static crate::TensorSpec| {
            let of = inputs.get(spec.name.strip_prefix('d')?)?;
            Some(OutputSpec { name: spec.name, shape: of.shape().to_vec(), dtype: of.dtype() })
        };
        Ok(GradientProblem {
            outputs: F::GRADIENT.outputs.iter().filter_map(gradient).collect(),
            dtype: forward.dtype(),
            flops: F::FLOPS * forward.flops(),
            input_bytes: inputs.bytes(),
            forward,
        })
    }

    fn reference(problem: &Self::Problem, inputs: Inputs<'_>) -> TensorMap {
        F::gradient(&problem.forward, inputs)
    }
}

impl<P: Problem> Problem for GradientProblem<P> {
    fn dtype(&self) -> DType {
        self.dtype
    }

    fn dims(&self) -> Vec<(&'static str, u64)> {
        self.forward.dims()
    }

    fn flops(&self) -> f64 {
        self.flops
    }

    fn bytes(&self) -> f64 {
        self.input_bytes + self.outputs.iter().map(OutputSpec::bytes).sum::<usize>() as f64
    }

    fn outputs(&self) -> Vec<OutputSpec> {
        self.outputs.clone()
    }
}
