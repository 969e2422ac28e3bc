//! The paged KV cache of all sequences and attention over it.

use super::rows::{scale, sigmoid};
use super::step::{Step, in_f32};
use crate::pages::{BLOCK, Pages};
use crate::program::{Append, Attend, Rotation, Values};
use device::HostBuffer;
use half::bf16;
use ops::attention::{self, AttentionCall};
use ops::{DType, Element, OpError, Tensor, TensorMap};

/// The KV cache of one layer.
pub(super) struct Cache {
    /// `[blocks, BLOCK, kv_heads, dim]`.
    pub(super) keys: Tensor,
    /// `[blocks, BLOCK, kv_heads, dim]`; `None` if values are the first `value_dim` channels of the keys.
    pub(super) values: Option<Tensor>,
    value_dim: usize,
}

impl Cache {
    /// Zero-initialized pools for keys `[kv_heads, dim]` per token and for values.
    pub(super) fn new(pages: &Pages, dtype: DType, keys: [usize; 2], values: Values) -> Self {
        let pool = |[heads, dim]: [usize; 2]| {
            let shape = [pages.pooled(), BLOCK, heads, dim];
            let len = shape.iter().product();
            match dtype {
                DType::F32 => f32::tensor(&shape, HostBuffer::filled(0.0, len)),
                _ => bf16::tensor(&shape, HostBuffer::filled(bf16::ZERO, len)),
            }
        };
        let (values, value_dim) = match values {
            Values::Separate(values) => (Some(pool(values)), values[1]),
            Values::InKeys(width) => (None, width),
        };
        Self { keys: pool(keys), values, value_dim }
    }

    /// Writes a step's keys and values into the pools.
    ///
    /// # Errors
    /// [`OpError::Value`] when one is NaN; checking here avoids that the op searches the whole cache.
    pub(super) fn append(&mut self, step: &Step, new: Append<'_>) -> Result<(), OpError> {
        if let Some((queries, rotation)) = new.rotated {
            rotate(queries, 0, rotation, &step.positions);
            rotate(new.keys, 0, rotation, &step.positions);
        }
        let behind = new.keys.len() / step.tokens();
        write(&mut self.keys, ("k", new.keys), 0, step)?;
        if let Some(more) = new.more {
            write(&mut self.keys, ("k", more), behind, step)?;
        }
        match (&mut self.values, new.values) {
            (Some(pool), Some(values)) => write(pool, ("v", values), 0, step),
            _ => Ok(()),
        }
    }

    /// Computes attention; returns `[tokens, heads, value dim]`.
    pub(super) fn attend(&self, step: &Step, call: Attend<'_>) -> Result<Tensor, OpError> {
        let (mask, softcap, sinks) = (call.mask(), call.softcap, call.sinks);
        let narrowed = (self.keys.dtype() == DType::Bf16).then(|| {
            let queries = call.queries.view::<f32>().unwrap_or_default();
            let mut narrow = HostBuffer::filled(bf16::ZERO, queries.len());
            bf16::narrow(queries, &mut narrow);
            bf16::tensor(call.queries.shape(), narrow)
        });
        let call = AttentionCall {
            q: narrowed.as_ref().unwrap_or(call.queries),
            offsets: Some(&step.offsets),
            k: &self.keys,
            v: match &self.values {
                Some(values) => attention::Values::Separate(values),
                None => attention::Values::InKeys(self.value_dim),
            },
            keys: step.cache(),
            mask,
            scale: Some(call.scale),
            softcap,
            o: None,
            lse: None,
        };
        let mut outputs = TensorMap::new();
        step.run(&call, &mut outputs)?;
        let mut o = in_f32(&mut outputs, "o");
        if let Some(sinks) = sinks {
            sink(&mut o, &in_f32(&mut outputs, "lse"), sinks);
        }
        Ok(o)
    }
}

/// Rescales attention outputs `[tokens, heads, dim]` for attention sinks: `o * sigmoid(lse - sink)`, lse `[heads,
/// tokens]`.
fn sink(o: &mut Tensor, lse: &Tensor, sinks: &Tensor) {
    let [lse, sinks] = [lse, sinks].map(|of| of.view::<f32>().unwrap_or_default());
    let (heads, tokens) = (sinks.len(), lse.len() / sinks.len());
    let dim = o.len() / lse.len();
    let rows = o.view_mut::<f32>().unwrap_or_default().chunks_exact_mut(dim).enumerate();
    for (at, row) in rows {
        let (token, head) = (at / heads, at % heads);
        scale(row, sigmoid(lse[head * tokens + token] - sinks[head]));
    }
}

/// Writes a step's rows into the rows of a pool, starting at channel `first` of each.
fn write(
    pool: &mut Tensor,
    (name, rows): (&str, &Tensor),
    first: usize,
    step: &Step,
) -> Result<(), OpError> {
    fn narrow<E: Element>(pool: &mut [E], rows: &[f32], first: usize, step: &Step, width: usize) {
        let own = rows.len() / step.tokens();
        for (row, place) in rows.chunks_exact(own).zip(&step.cache_rows) {
            E::narrow(row, &mut pool[place * width + first..][..own]);
        }
    }
    if let Some(at) = rows.first_nan() {
        let what = format!("is NaN at element {at}");
        return Err(OpError::Value { op: "attention", tensor: name.to_owned(), what });
    }
    let width = pool.shape()[2..].iter().product();
    let rows = rows.view::<f32>().unwrap_or_default();
    if let Some(pool) = pool.view_mut::<bf16>() {
        narrow(pool, rows, first, step, width);
    } else if let Some(pool) = pool.view_mut::<f32>() {
        narrow(pool, rows, first, step, width);
    }
    Ok(())
}

/// Applies rotary embedding to each head of `[tokens, heads, dim]`, starting at channel `first`.
pub(super) fn rotate(x: &mut Tensor, first: usize, rotation: &Rotation, positions: &[usize]) {
    let [_, heads, dim] = *x.shape() else { return };
    let both = rotation.frequencies.view::<f32>().unwrap_or_default();
    let half = both.len() / 2;
    let (high, rest) = both.split_at(half);
    let sum = |(high, rest): (&f32, &f32)| f64::from(*high) + f64::from(*rest);
    let frequencies: Vec<f64> = high.iter().zip(rest).map(sum).collect();
    let rows = x.view_mut::<f32>().unwrap_or_default();
    for (row, position) in rows.chunks_exact_mut(heads * dim).zip(positions) {
        // In float64: at positions of many thousands a float32 angle loses its last digits.
        let turns: Vec<(f32, f32)> = frequencies
            .iter()
            .map(|frequency| (*position as f64 * frequency).sin_cos())
            .map(|(sin, cos)| ((sin * rotation.factor) as f32, (cos * rotation.factor) as f32))
            .collect();
        for head in row.chunks_exact_mut(dim) {
            let (low, high) = head[first..first + 2 * half].split_at_mut(half);
            for ((low, high), (sin, cos)) in low.iter_mut().zip(high).zip(&turns) {
                (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
            }
        }
    }
}
