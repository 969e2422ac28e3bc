//! Attention of a group of sequences over the paged KV cache, and attention sinks.

use super::group::Group;
use super::run::{Cache, Run};
use crate::Architecture;
use crate::pages::BLOCK;
use crate::program::Attend;
use architectures::Mixer;
use ops::attention::{AttentionCall, Keys, Values};
use ops::{DType, OpError, Tensor};
use ops_cuda::decoder;

/// Minimum number of query tokens of a sequence whose keys and values are first copied into contiguous memory.
const MANY_QUERIES: usize = 128;

/// Maximum bytes of contiguous keys, and of contiguous values; longer sequences are read from the paged cache.
const MAX_BYTES: usize = 64 << 20;

/// Device memory for contiguous keys and values, for sequences of `tokens` tokens.
pub(super) fn bytes(of: &Architecture, tokens: usize) -> u64 {
    let attention = of.layers.iter().filter(|layer| matches!(layer.mixer, Mixer::Attention(_)));
    let widest = attention.map(|layer| layer.mixer.cached()).max().unwrap_or(0);
    let all = tokens.next_multiple_of(BLOCK).saturating_mul(widest);
    DType::Bf16.bytes_of(all).min(2 * MAX_BYTES) as u64
}

impl Run<'_> {
    /// Contiguous copies of one sequence's keys and values, if it has many query tokens: the kernels for prefill need
    /// contiguous memory, and are several times as fast as those that read pages.
    fn contiguous_cache(
        &self,
        group: &Group,
        pools: [&Tensor; 2],
    ) -> Result<Option<[Tensor; 2]>, OpError> {
        let bytes = |pool: &Tensor| {
            let of_row = pool.shape()[2..].iter().product::<usize>();
            pool.dtype().bytes_of(group.table_width() * BLOCK * of_row)
        };
        let fits = pools.into_iter().all(|pool| bytes(pool) <= MAX_BYTES);
        let copies = fits && group.rows.len() >= MANY_QUERIES;
        let Some(keys) = group.keys_known.filter(|_| copies) else { return Ok(None) };
        let copy = |pool: &Tensor| {
            let (blocks, of_row) = (group.table_width(), &pool.shape()[2..]);
            let contiguous = self.tensor(&[&[blocks * BLOCK], of_row].concat(), pool.dtype())?;
            // Copied as 32-bit words.
            let words = contiguous.dtype().bytes_of(contiguous.len()) / 4 / blocks.max(1);
            let buffers = [pool.on()?, group.table.on()?, contiguous.on()?];
            self.push(decoder::take(self.device, buffers, blocks, words)?)?;
            contiguous.rows(0, keys)?.shaped(&[&[1, keys], of_row].concat())
        };
        Ok(Some([copy(pools[0])?, copy(pools[1])?]))
    }

    /// Computes attention for a group's tokens; `q` and `o` cover all tokens of the pass.
    pub(super) fn attend_group(
        &self,
        group: &Group,
        Cache { keys: pool, values, value_dim }: &Cache,
        call: &Attend<'_>,
        o: &Tensor,
    ) -> Result<(), OpError> {
        let of_token = |x: &Tensor| x.shape()[x.shape().len() - 2..].to_vec();
        let of_group = |x: &Tensor| match &self.pass.groups[..] {
            [_] => Ok(x.clone()),
            _ => group.of(x, &of_token(x)),
        };
        // Without cached tokens the new keys are all keys, and they are contiguous.
        let new = call.new.filter(|_| group.fresh);
        let new = match (new, values) {
            (Some([k, v]), _) => Some([of_group(k)?, of_group(v)?]),
            (None, Some(values)) if call.window.is_none() => {
                self.contiguous_cache(group, [pool, values])?
            }
            (None, _) => None,
        };
        let pooled = values.as_ref().map_or(Values::InKeys(*value_dim), Values::Separate);
        let (k, v, keys) = match (&new, group.offsets()) {
            (None, _) => (pool, pooled, group.cache()),
            (Some([k, v]), None) => (k, Values::Separate(v), Keys::Dense { lengths: None }),
            (Some([k, v]), Some(_)) => (k, Values::Separate(v), Keys::Packed { offsets: None }),
        };
        let (count, heads) = (group.rows.len(), of_token(call.queries)[0]);
        // Decoding sequences are a dense batch of one token each.
        let of_lse = match group.offsets() {
            _ if group.one_token => vec![count, heads, 1],
            None => vec![1, heads, count],
            Some(_) => vec![heads, count],
        };
        let lse = call.sinks.map(|_| self.tensor(&of_lse, DType::F32)).transpose()?;
        let o = o.rows(group.rows.start, count)?;
        self.call(&AttentionCall {
            q: &of_group(call.queries)?,
            offsets: group.offsets(),
            k,
            v,
            keys,
            mask: call.mask(),
            scale: Some(call.scale),
            softcap: call.softcap,
            o: Some(&o),
            lse: lse.as_ref(),
        })?;
        let (Some(sinks), Some(lse)) = (call.sinks, &lse) else { return Ok(()) };
        let sinks = decoder::Sinks {
            dtype: DType::Bf16,
            o: o.on()?,
            lse: lse.on()?,
            sinks: sinks.on()?,
            count,
            heads,
            dim: *value_dim,
            tokens_first: group.one_token,
        };
        self.push(decoder::sinks(self.device, &sinks)?)
    }
}
