//! What every attention kernel is given: tensors on the GPU and the numbers that shape the work.

use crate::DType;
use crate::attention::AttentionProblem;
use crate::cuda::{Planner, int, map_element};
use device::cuda::{Args, Buffer, CudaError, KernelSource, Swizzle, TensorMap, TiledLayout};
use std::sync::Arc;

/// Limits of windows that kernels take as unlimited; longer sequences do not fit their 32-bit positions.
const LONGEST_WINDOW: usize = 1 << 29;

/// The operands of one call.
pub(super) struct Operands {
    pub(super) q: Arc<Buffer>,
    pub(super) k: Arc<Buffer>,
    /// The keys where the values are in them.
    pub(super) v: Arc<Buffer>,
    pub(super) o: Arc<Buffer>,
    pub(super) lse: Arc<Buffer>,
    /// Offsets of packed queries.
    pub(super) cu_queries: Option<Arc<Buffer>>,
    /// Offsets of packed keys.
    pub(super) cu_keys: Option<Arc<Buffer>>,
    /// Keys in use of each dense or paged sequence.
    pub(super) key_counts: Option<Arc<Buffer>>,
    pub(super) block_table: Option<Arc<Buffer>>,
    pub(super) block_size: i32,
    /// Entries of a row of the block table.
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
    /// Adds what kernels with shares of the keys are told alike of where queries and keys lie.
    pub(super) fn sequences(&self, args: Args) -> Args {
        args.maybe(self.cu_queries.as_deref())
            .maybe(self.cu_keys.as_deref())
            .maybe(self.key_counts.as_deref())
            .maybe(self.block_table.as_deref())
            .i32(self.queries)
            .i32(self.keys)
            .i32(self.total)
            .i32(self.heads)
            .i32(self.kv_heads)
            .i32(self.block_size)
            .i32(self.max_blocks)
    }

    /// Uploads the inputs.
    pub(super) fn new(
        problem: &AttentionProblem,
        planner: &mut Planner<'_>,
    ) -> Result<Self, CudaError> {
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
        Ok(Self {
            q: planner.required("q")?,
            k: planner.required("k")?,
            v: planner.required(problem.values())?,
            o: planner.output("o")?,
            lse: planner.output("lse")?,
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

/// Leading sizes of a tensor `[batch, tokens, heads, channels]`; packed rows are one batch.
#[derive(Debug, Clone, Copy)]
pub(super) struct Rows {
    pub(super) batch: usize,
    pub(super) tokens: usize,
    pub(super) heads: usize,
}

impl Rows {
    pub(super) fn of_queries(problem: &AttentionProblem) -> Self {
        let packed = (1, problem.queries.total());
        let (batch, tokens) = problem.queries.batch_and_tokens().unwrap_or(packed);
        Self { batch, tokens, heads: problem.heads }
    }

    pub(super) fn of_keys(problem: &AttentionProblem, operands: &Operands) -> Self {
        let heads = problem.kv_heads;
        match operands.cu_keys {
            Some(_) => {
                let row = problem.dtype.bytes() * heads * problem.head_dim;
                Self { batch: 1, tokens: operands.k.bytes() / row, heads }
            }
            None => Self { batch: problem.queries.count(), tokens: operands.keys as usize, heads },
        }
    }

    /// The copy engine takes no empty tensor. For one, a row of zeros and its sizes; nothing of it is used.
    pub(super) fn stand_in(
        self,
        planner: &mut Planner<'_>,
        channels: usize,
    ) -> Result<(Option<Arc<Buffer>>, Self), CudaError> {
        if self.batch * self.tokens > 0 {
            return Ok((None, self));
        }
        let zeros = planner.zeroed(self.heads * channels)?;
        Ok((Some(zeros), Self { batch: 1, tokens: 1, heads: self.heads }))
    }
}

/// Describes a tensor to the copy engine: boxes of `width` channels of one head and `box_rows` tokens.
pub(super) fn row_map(
    planner: &mut Planner<'_>,
    buffer: &Arc<Buffer>,
    (rows, channels): (Rows, usize),
    (width, box_rows): (usize, usize),
    dtype: DType,
) -> Result<TensorMap, CudaError> {
    let (stand_in, rows) = rows.stand_in(planner, channels)?;
    let row = (2 * rows.heads * channels) as u64;
    let layout = TiledLayout {
        element: map_element(dtype),
        offset: 0,
        sizes: &[channels as u64, rows.heads as u64, rows.tokens as u64, rows.batch as u64],
        strides: &[2 * channels as u64, row, row * rows.tokens as u64],
        tile: &[width as u32, 1, box_rows as u32, 1],
        swizzle: if width == 64 { Swizzle::Bytes128 } else { Swizzle::Bytes64 },
    };
    planner.tensor_map(stand_in.as_ref().unwrap_or(buffer), &layout)
}
