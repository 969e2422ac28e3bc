//! Prologue: rows of x, normalised, rounded to the weights' type, and widened if the products need float32.
#![allow(unsafe_code)] // Blocks write disjoint rows.

use super::products::Products;
use crate::aligned::Aligned;
use crate::floats::{narrow, widen};
use crate::simd::{Simd, SimdKernel, dispatch};
use crate::vectors::{multiply, pad, padded, scale, sum_of_squares};
use device::{Device, SharedMut};
use ops::linear::LinearProblem;
use ops::{Element, Inputs, Tensor, elements, floats};
use std::borrow::Cow;

/// `[T, K]`: borrowed if x needs no prologue.
pub(super) fn rows<'a, E: Element, P: Products>(
    products: P,
    kernel: &str,
    problem: &LinearProblem,
    inputs: Inputs<'a>,
    device: &Device,
) -> Cow<'a, [P::Value]> {
    let x = inputs.tensor("x");
    match x.view::<P::Value>() {
        Some(values) if x.dtype() == E::DTYPE && problem.norm.is_none() && !problem.ordered => {
            Cow::Borrowed(values)
        }
        _ => {
            let mut made = vec![P::Value::default(); x.len()];
            let groups = problem.norm.map_or(1, |norm| norm.groups);
            let norm = inputs.get("norm").filter(|_| problem.norm.is_some());
            let of = Rows {
                problem,
                x,
                norm: norm.map(|weight| pad(&floats(weight), problem.inputs / groups)),
                order: inputs.get("x_order").map(elements),
                made: SharedMut::new(&mut made),
            };
            device.launch(kernel, problem.tokens, Scratch::<E>::default, |scratch, token| {
                dispatch(products.isa(), Row { of: &of, token, scratch });
            });
            Cow::Owned(made)
        }
    }
}

struct Rows<'a, V> {
    problem: &'a LinearProblem,
    /// `[T, K]`.
    x: &'a Tensor,
    /// `[groups, padded K / groups]`.
    norm: Option<Vec<f32>>,
    /// Which column each becomes, `[K]`.
    order: Option<&'a [i32]>,
    /// `[T, K]`.
    made: SharedMut<'a, V>,
}

/// Buffers of one thread, a row or a group of it each.
struct Scratch<E> {
    group: Aligned,
    wide: Vec<f32>,
    sorted: Vec<f32>,
    rounded: Vec<E>,
}

impl<E> Default for Scratch<E> {
    fn default() -> Self {
        let (wide, sorted) = (Vec::new(), Vec::new());
        Self { group: Aligned::default(), wide, sorted, rounded: Vec::new() }
    }
}

struct Row<'a, 'b, E, V> {
    of: &'a Rows<'b, V>,
    token: usize,
    scratch: &'a mut Scratch<E>,
}

impl<E: Element, V: Element> SimdKernel for Row<'_, '_, E, V> {
    type Output = ();

    #[inline(always)]
    fn run<S: Simd>(self, simd: S) {
        let Self { of, token, scratch: Scratch { group, wide, sorted, rounded } } = self;
        let depth = of.problem.inputs;
        wide.resize(depth, 0.0);
        rounded.resize(depth, E::default());
        let at = token * depth..(token + 1) * depth;
        match of.x.view::<f32>() {
            Some(x) => wide.copy_from_slice(&x[at.clone()]),
            None => widen(simd, &elements::<E>(of.x)[at.clone()], wide),
        }
        if let (Some(norm), Some(weight)) = (of.problem.norm, &of.norm) {
            let size = depth / norm.groups;
            let weights = weight.chunks(padded(size));
            for (values, weight) in wide.chunks_mut(size).zip(weights) {
                // Between a group's end and the buffer's, values are 0 and stay so.
                let group = group.of_len(padded(size));
                group[..size].copy_from_slice(values);
                let mean = sum_of_squares(simd, group) / size as f32;
                scale(simd, group, 1.0 / (mean + norm.eps as f32).sqrt());
                multiply(simd, group, weight);
                values.copy_from_slice(&group[..size]);
            }
        }
        if let Some(order) = of.order {
            sorted.clear();
            sorted.extend(order.iter().map(|column| wide[*column as usize]));
            std::mem::swap(wide, sorted);
        }
        narrow(simd, wide, rounded);
        widen(simd, rounded, wide);
        // SAFETY: this block alone has this row.
        narrow(simd, wide, unsafe { of.made.slice(at) });
    }
}
