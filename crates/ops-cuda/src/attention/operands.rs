//! Arguments that the attention kernels share: device tensors and sizes.

use crate::{Planner, arguments, int, map_element};
use device::cuda::{Buffer, DeviceError, KernelSource, Swizzle, TiledLayout, TmaDescriptor};
use ops::DType;
use ops::attention::AttentionProblem;
use std::sync::Arc;

/// Largest window passed to kernels; it exceeds every sequence length that fits their 32-bit positions.
const LONGEST_WINDOW: usize = 1 << 29;

arguments! {
    /// Strides of keys and values, in elements.
    pub(super) KvStrides { k_batch: i64, v_batch: i64, k_head: i64, v_head: i64, k_token: i32, v_token: i32 }
}
arguments! {
    /// Sizes of a call, for kernels with one grid over all tiles.
    pub(super) Sizes {
        batch: i32, heads: i32, kv_heads: i32, queries: i32, keys: i32, total: i32, window_left: i32, window_right: i32,
    }
}

/// The operands of one call.
pub(super) struct Operands {
    pub(super) q: Arc<Buffer>,
    pub(super) k: Arc<Buffer>,
    /// The keys if the values are stored in them.
    pub(super) v: Arc<Buffer>,
    pub(super) k_strides: Strides,
    pub(super) v_strides: Strides,
    pub(super) o: Arc<Buffer>,
    pub(super) lse: Arc<Buffer>,
    /// Cumulative offsets of packed queries.
    pub(super) cu_queries: Option<Arc<Buffer>>,
    /// Cumulative offsets of packed keys.
    pub(super) cu_keys: Option<Arc<Buffer>>,
    /// Number of valid keys of each dense or paged sequence.
    pub(super) key_counts: Option<Arc<Buffer>>,
    pub(super) block_table: Option<Arc<Buffer>>,
    pub(super) block_size: i32,
    /// Entries per row of the block table.
    pub(super) max_blocks: i32,
    pub(super) batch: i32,
    pub(super) heads: i32,
    pub(super) kv_heads: i32,
    /// Queries of a dense sequence, or of the longest packed one.
    pub(super) queries: i32,
    /// Key rows of a dense sequence.
    pub(super) keys: i32,
    /// Query rows of all sequences.
    pub(super) total: i32,
    /// Keys seen before and after the query's own position; -1 for all.
    pub(super) window_left: i32,
    pub(super) window_right: i32,
    pub(super) scale: f32,
    /// 0 for none.
    pub(super) softcap: f32,
}

impl Operands {
    /// Whether keys and values are contiguous.
    pub(super) fn is_dense(&self, problem: &AttentionProblem) -> bool {
        let dense = |channels| Strides::dense([self.keys as usize, problem.kv_heads, channels]);
        // Packed sequences form one batch: their batch stride is unused.
        let same = |one: Strides, other: Strides| {
            let batch = self.cu_keys.is_some() || self.batch <= 1 || one.batch == other.batch;
            batch && (one.token, one.head) == (other.token, other.head)
        };
        same(self.k_strides, dense(problem.head_dim))
            && same(self.v_strides, dense(problem.value_dim))
    }

    pub(super) fn kv_strides(&self) -> KvStrides<'_> {
        let (k, v) = (self.k_strides, self.v_strides);
        KvStrides {
            k_batch: k.batch as i64,
            v_batch: v.batch as i64,
            k_head: k.head as i64,
            v_head: v.head as i64,
            k_token: k.token as i32,
            v_token: v.token as i32,
        }
    }

    pub(super) fn sizes(&self) -> Sizes<'_> {
        let Self { batch, heads, kv_heads, queries, keys, total, .. } = *self;
        let Self { window_left, window_right, .. } = *self;
        Sizes { batch, heads, kv_heads, queries, keys, total, window_left, window_right }
    }

    /// Uploads the inputs of a forward call.
    pub(super) fn new(
        problem: &AttentionProblem,
        planner: &mut Planner<'_>,
    ) -> Result<Self, DeviceError> {
        let results = [planner.output("o")?, planner.output("lse")?];
        Self::of(problem, planner, results)
    }

    /// Uploads the inputs; `o` and `lse` are outputs of a forward call and inputs of its gradient.
    pub(super) fn of(
        problem: &AttentionProblem,
        planner: &mut Planner<'_>,
        [o, lse]: [Arc<Buffer>; 2],
    ) -> Result<Self, DeviceError> {
        let paged = problem.keys.block_size();
        let packed_queries = problem.queries.batch_and_tokens().is_none();
        let own_offsets = !planner.shape("cu_seqlens_k").is_empty();
        let packed_keys = paged.is_none() && (own_offsets || packed_queries);
        let offsets = if own_offsets { "cu_seqlens_k" } else { "cu_seqlens" };
        let window = |limit: Option<usize>| match limit {
            Some(limit) => limit.min(LONGEST_WINDOW) as i32,
            None => -1,
        };
        let right = if problem.mask.causal { Some(0) } else { problem.mask.window_right };
        let keys = if packed_keys || paged.is_some() {
            problem.keys.longest()
        } else {
            planner.shape("k").get(1).copied().unwrap_or(0)
        };
        let max_blocks = planner.shape("block_table").get(1).copied().unwrap_or(0);
        planner.widest("q", row_piece(problem.head_dim));
        let (k_strides, v_strides) =
            (Strides::of(planner, "k")?, Strides::of(planner, problem.values())?);
        Ok(Self {
            k_strides,
            v_strides,
            q: planner.required("q")?,
            k: planner.required("k")?,
            v: planner.required(problem.values())?,
            o,
            lse,
            cu_queries: if packed_queries { planner.input("cu_seqlens")? } else { None },
            cu_keys: if packed_keys { planner.input(offsets)? } else { None },
            key_counts: planner.input("cache_seqlens")?,
            block_table: planner.input("block_table")?,
            block_size: int(paged.unwrap_or(1))?,
            max_blocks: int(max_blocks)?,
            batch: int(problem.queries.count())?,
            heads: int(problem.heads)?,
            kv_heads: int(problem.kv_heads)?,
            queries: int(problem.queries.longest())?,
            keys: int(keys)?,
            total: int(problem.queries.total())?,
            window_left: window(problem.mask.window_left),
            window_right: window(right),
            scale: problem.scale as f32,
            softcap: problem.softcap.unwrap_or(0.0) as f32,
        })
    }
}

/// Why a kernel that reads keys and values from two tensors cannot take this call.
pub(super) fn values_in_keys(problem: &AttentionProblem) -> Option<String> {
    // words: allow(of their own)
    let why = "reads values from a tensor of their own, and these are channels of the keys";
    problem.values_in_keys.then(|| why.to_owned())
}

/// Why a kernel that computes in 16-bit storage cannot take this call.
pub(super) fn not_half(problem: &AttentionProblem) -> Option<String> {
    match problem.dtype {
        DType::Bf16 | DType::F16 => None,
        other => Some(format!("needs bf16 or f16 tensors, got {other}")),
    }
}

/// Macros that every attention kernel takes.
pub(super) fn shape_macros(
    source: KernelSource,
    dtype: DType,
    (head_dim, value_dim): (usize, usize),
) -> KernelSource {
    source.define("D", head_dim).define("DV", value_dim).define("DTYPE", dtype)
}

/// Strides in elements between sequences (or pages), tokens and heads of keys or values; the channels of a head are contiguous.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Strides {
    pub(super) batch: usize,
    pub(super) token: usize,
    pub(super) head: usize,
}

/// Bytes per copy: the largest power of two up to 16 that divides a row of two-byte elements.
fn row_piece(channels: usize) -> usize {
    2 << channels.trailing_zeros().min(3)
}

impl Strides {
    /// Strides of a contiguous tensor.
    fn dense([tokens, heads, channels]: [usize; 3]) -> Self {
        Self { batch: tokens * heads * channels, token: heads * channels, head: channels }
    }

    fn of(planner: &mut Planner<'_>, name: &'static str) -> Result<Self, DeviceError> {
        let of_pages = !planner.shape("block_table").is_empty();
        let layout = |wanted| DeviceError::Layout { tensor: name, wanted };
        let (sizes, steps) = planner.sizes_and_strides(name);
        let ([.., tokens, heads, channels], [.., token, head, channel]) = (sizes, steps) else {
            return Err(layout("with a dimension each of tokens, heads and channels"));
        };
        let dense = Self::dense([*tokens, *heads, *channels]);
        if sizes.contains(&0) {
            return Ok(dense);
        }
        if *channels > 1 && *channel != 1 {
            return Err(layout("with the channels of a head side by side"));
        }
        // The stride of a dimension of size 1 is arbitrary: use that of a contiguous tensor.
        let step = |size: usize, step: usize, dense| if size > 1 { step } else { dense };
        let token = step(*tokens, *token, dense.token);
        let batch = match (sizes, steps) {
            ([batch, _, _, _], [stride, ..]) => step(*batch, *stride, tokens * token),
            _ => tokens * token,
        };
        let strides = Self { batch, token, head: step(*heads, *head, dense.head) };
        let piece = row_piece(*channels);
        let fits = |step: &usize| (2 * step).is_multiple_of(piece);
        if ![strides.batch, strides.token, strides.head].iter().all(fits) {
            return Err(layout("with rows at multiples of 16 bytes"));
        }
        int(strides.token)?;
        if of_pages && strides.batch != tokens * token {
            return Err(layout("with contiguous pages"));
        }
        planner.widest(name, piece);
        Ok(strides)
    }
}

/// Leading sizes and strides of a tensor `[batch, tokens, heads, channels]`; packed rows are one batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    pub(super) batch: usize,
    pub(super) tokens: usize,
    pub(super) heads: usize,
    pub(super) strides: Strides,
}

impl Rows {
    pub(super) fn of_queries(problem: &AttentionProblem) -> Self {
        let packed = (1, problem.queries.total());
        let (batch, tokens) = problem.queries.batch_and_tokens().unwrap_or(packed);
        let strides = Strides::dense([tokens, problem.heads, problem.head_dim]);
        Self { batch, tokens, heads: problem.heads, strides }
    }

    /// Rows of the keys, and of the values.
    pub(super) fn of_keys(
        problem: &AttentionProblem,
        operands: &Operands,
        planner: &Planner<'_>,
    ) -> (Self, Self) {
        let (batch, tokens) = match (operands.cu_keys.is_some(), planner.shape("k")) {
            (true, [.., tokens, _, _]) => (1, *tokens),
            _ => (problem.queries.count(), operands.keys as usize),
        };
        let of = |strides| Self { batch, tokens, heads: problem.kv_heads, strides };
        (of(operands.k_strides), of(operands.v_strides))
    }

    /// The keys of all sequences or pages as one batch.
    ///
    /// # Errors
    /// [`DeviceError::Layout`] when the token stride is not constant across sequences or pages.
    pub(super) fn flat(
        problem: &AttentionProblem,
        operands: &Operands,
        planner: &Planner<'_>,
    ) -> Result<Self, DeviceError> {
        let (rows, stride) = match planner.shape("k") {
            [batch, tokens, _, _] => (batch * tokens, tokens * operands.k_strides.token),
            [rows, ..] => (*rows, operands.k_strides.batch),
            [] => (0, 0),
        };
        if stride != operands.k_strides.batch {
            return Err(DeviceError::Layout { tensor: "k", wanted: "evenly apart" });
        }
        Ok(Self { batch: 1, tokens: rows, heads: problem.kv_heads, strides: operands.k_strides })
    }

    /// TMA does not accept an empty tensor: replaces one by a row of zeros, which no kernel uses.
    pub(super) fn stand_in(
        self,
        planner: &mut Planner<'_>,
        channels: usize,
    ) -> Result<(Option<Arc<Buffer>>, Self), DeviceError> {
        if self.batch * self.tokens > 0 {
            return Ok((None, self));
        }
        let zeros = planner.zeroed(self.heads * channels)?;
        let strides = Strides::dense([1, self.heads, channels]);
        Ok((Some(zeros), Self { batch: 1, tokens: 1, heads: self.heads, strides }))
    }
}

/// The TMA descriptor of a tensor, with boxes of `width` channels of one head and `box_rows` tokens.
pub(super) fn row_map(
    planner: &mut Planner<'_>,
    buffer: &Arc<Buffer>,
    (rows, channels): (Rows, usize),
    (width, box_rows): (usize, usize),
    dtype: DType,
) -> Result<TmaDescriptor, DeviceError> {
    let (stand_in, rows) = rows.stand_in(planner, channels)?;
    let Strides { batch, token, head } = rows.strides;
    let layout = TiledLayout {
        element: map_element(dtype),
        offset: 0,
        sizes: &[channels as u64, rows.heads as u64, rows.tokens as u64, rows.batch as u64],
        strides: &[2 * head as u64, 2 * token as u64, 2 * batch as u64],
        tile: &[width as u32, 1, box_rows as u32, 1],
        swizzle: if width == 64 { Swizzle::Bytes128 } else { Swizzle::Bytes64 },
    };
    planner.tensor_map(stand_in.as_ref().unwrap_or(buffer), &layout)
}
