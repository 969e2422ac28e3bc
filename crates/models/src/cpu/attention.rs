use super::Mix;
use super::rows::columns;
use super::step::{Step, take};
use super::weights::{CpuProjection, Weights};
use crate::layers::Attention;
use crate::pages::{BLOCK, Pages};
use crate::{ModelError, Storage};
use device::HostBuffer;
use half::bf16;
use kernels::attention::{self, AttentionCall, Mask};
use kernels::{DType, Element, OpError, Tensor, TensorMap};

/// Where the values of a cache lie.
pub(super) enum Values {
    /// In a pool of their own, `[kv_heads, dim]` a token.
    Apart([usize; 2]),
    /// In the keys, as so many of their first channels.
    InKeys(usize),
}

/// The values of a cache.
enum CachedValues {
    /// `[blocks, BLOCK, kv_heads, dim]`.
    Apart(Tensor),
    /// So many first channels of the keys.
    InKeys(usize),
}

/// Keys and values of all sequences in blocks, and attention over them.
pub(super) struct PagedAttention {
    /// `[blocks, BLOCK, kv_heads, dim]`.
    keys: Tensor,
    values: CachedValues,
    scale: f64,
    dtype: DType,
    /// What the last step gave, whose memory the next one writes.
    outputs: TensorMap,
}

impl PagedAttention {
    /// Pools for keys `[kv_heads, dim]` a token and values, causal attention with this scale.
    pub(super) fn new(
        pages: &Pages,
        storage: Storage,
        (keys, values): ([usize; 2], Values),
        scale: f64,
    ) -> Self {
        let dtype = match storage {
            Storage::F32 => DType::F32,
            Storage::Bf16 => DType::Bf16,
        };
        let pool = |[heads, dim]: [usize; 2]| {
            let zeros = vec![0f32; pages.pooled() * BLOCK * heads * dim];
            stored(&[pages.pooled(), BLOCK, heads, dim], zeros, dtype)
        };
        let values = match values {
            Values::Apart(values) => CachedValues::Apart(pool(values)),
            Values::InKeys(width) => CachedValues::InKeys(width),
        };
        Self { keys: pool(keys), values, scale, dtype, outputs: TensorMap::new() }
    }

    /// Lays the step's keys, and values where they lie apart, into the cache.
    ///
    /// # Errors
    /// [`OpError::Value`] when one is NaN: the op is not asked to search the whole cache for it.
    pub(super) fn append(
        &mut self,
        step: &Step<'_>,
        keys: &[f32],
        values: Option<&[f32]>,
    ) -> Result<(), OpError> {
        let pools = [("k", &mut self.keys, Some(keys))].into_iter().chain(match &mut self.values {
            CachedValues::Apart(pool) => Some(("v", pool, values)),
            CachedValues::InKeys(_) => None,
        });
        for (name, pool, rows) in pools {
            let Some(rows) = rows else { continue };
            if let Some(at) = rows.iter().position(|x| x.is_nan()) {
                let what = format!("is NaN at element {at}");
                return Err(OpError::Value { op: "attention", tensor: name.to_owned(), what });
            }
            match self.dtype {
                DType::F32 => write::<f32>(pool, rows, &step.cache_rows),
                _ => write::<bf16>(pool, rows, &step.cache_rows),
            }
        }
        Ok(())
    }

    /// Attends queries `[tokens, heads, dim]`; gives `[tokens, heads, value dim]`.
    pub(super) fn attend(
        &mut self,
        step: &Step<'_>,
        queries: Vec<f32>,
        [heads, dim]: [usize; 2],
    ) -> Result<HostBuffer<f32>, OpError> {
        let q = stored(&[step.tokens(), heads, dim], queries, self.dtype);
        let call = AttentionCall {
            q: &q,
            offsets: Some(&step.offsets),
            k: &self.keys,
            v: match &self.values {
                CachedValues::Apart(values) => attention::Values::Apart(values),
                CachedValues::InKeys(width) => attention::Values::InKeys(*width),
            },
            keys: step.cache(),
            mask: Mask::CAUSAL,
            scale: Some(self.scale),
            softcap: None,
            o: None,
            lse: None,
        };
        step.run(&call, &mut self.outputs)?;
        Ok(take(&mut self.outputs, "o"))
    }
}

fn stored(shape: &[usize], values: Vec<f32>, dtype: DType) -> Tensor {
    if dtype == DType::F32 {
        return Tensor::new(shape, values);
    }
    let mut narrow = vec![bf16::ZERO; values.len()];
    bf16::narrow(&values, &mut narrow);
    Tensor::new(shape, narrow)
}

/// Writes rows of a step into rows of a pool.
fn write<E: Element>(pool: &mut Tensor, rows: &[f32], places: &[usize]) {
    let width: usize = pool.shape()[2..].iter().product();
    let Some(pool) = pool.view_mut::<E>() else { return };
    for (row, place) in rows.chunks_exact(width).zip(places) {
        E::narrow(row, &mut pool[place * width..(place + 1) * width]);
    }
}

/// Grouped-query attention.
pub(super) struct CpuAttention {
    of: Attention,
    qkv: CpuProjection,
    out: CpuProjection,
    cached: PagedAttention,
}

impl CpuAttention {
    pub(super) fn new(
        of: &Attention,
        weights: &Weights<'_>,
        pages: &Pages,
    ) -> Result<Self, ModelError> {
        let kv = [of.kv_heads, of.head_dim];
        Ok(Self {
            qkv: weights.projection(&of.qkv)?,
            out: weights.projection(&of.out)?,
            cached: PagedAttention::new(
                pages,
                weights.storage(),
                (kv, Values::Apart(kv)),
                of.scale,
            ),
            of: of.clone(),
        })
    }
}

impl Mix for CpuAttention {
    fn mix(&mut self, x: &[f32], step: &Step<'_>) -> Result<Vec<f32>, OpError> {
        let Attention { heads, kv_heads, head_dim, .. } = self.of;
        let projected = self.qkv.apply(step.device, x); // [tokens, q | k | v]
        let (q_end, k_end) = (heads * head_dim, (heads + kv_heads) * head_dim);
        let width = k_end + kv_heads * head_dim;
        let part = |range| columns(&projected, width, range);
        let (mut q, mut k) = (part(0..q_end), part(q_end..k_end));
        if let Some(theta) = self.of.rope_theta {
            rotate(&mut q, heads, head_dim, theta, &step.positions);
            rotate(&mut k, kv_heads, head_dim, theta, &step.positions);
        }
        self.cached.append(step, &k, Some(&part(k_end..width)))?;
        let o = self.cached.attend(step, q, [heads, head_dim])?;
        Ok(self.out.apply(step.device, &o))
    }

    /// The pages decide what is read of the cache.
    fn reset(&mut self, _sequence: usize) {}
}

/// Rotates pairs (i, i + dim/2) of each head by `position * theta^(-2i/dim)`.
fn rotate(x: &mut [f32], heads: usize, dim: usize, theta: f64, positions: &[usize]) {
    let half = dim / 2;
    let frequency = |i: usize| theta.powf(-2.0 * i as f64 / dim as f64);
    let frequencies: Vec<f64> = (0..half).map(frequency).collect();
    for (row, position) in x.chunks_exact_mut(heads * dim).zip(positions) {
        // In float64: at a position of many thousands a float32 angle has lost its last digits.
        let turns: Vec<(f32, f32)> = frequencies
            .iter()
            .map(|frequency| (*position as f64 * frequency).sin_cos())
            .map(|(sin, cos)| (sin as f32, cos as f32))
            .collect();
        for head in row.chunks_exact_mut(dim) {
            let (low, high) = head.split_at_mut(half);
            for ((low, high), (sin, cos)) in low.iter_mut().zip(high).zip(&turns) {
                (*low, *high) = (*low * cos - *high * sin, *high * cos + *low * sin);
            }
        }
    }
}
