//! The experts of a token, for which kernels are compiled: see `experts.cuh`.

use super::form::{OF_EXPERTS_ALONE, SUM_STAGES, Weights};
use device::cuda::CudaCapabilities;

/// Sizes of a mixture of experts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Experts {
    /// Routed experts, which is the number of logits.
    pub(crate) of: usize,
    /// Shared experts, which follow the routed ones in the weights.
    pub(crate) always: usize,
    /// Experts of a token, including the shared ones, which are last.
    pub(crate) chosen: usize,
    /// Intermediate columns of an expert.
    pub(crate) inner: usize,
    /// Columns of the residual stream.
    pub(crate) hidden: usize,
}

/// Most routed experts.
pub(crate) const MOST_LOGITS: usize = 512;
/// Most experts of a token: with two of them in a ring stage of the down projection, and with separate ring stages
/// for gates, ups and the down projection.
const MOST_CHOSEN: [usize; 2] = [16, SUM_STAGES / 2];
/// Blocks over which an expert's gate and up columns are distributed.
const DEALT: usize = 128;
/// Most output columns of a block in the down projection, in the same two cases: rows of a matrix product.
const MOST_COLUMNS: [usize; 2] = [16, 24];

impl Experts {
    /// The experts of the models whose residual stream has `hidden` columns; norms and routers are in the same
    /// kernels.
    pub(super) fn of_stream(hidden: usize) -> Self {
        if hidden == OF_EXPERTS_ALONE {
            Self { of: 256, always: 1, chosen: 9, inner: 1024, hidden }
        } else {
            Self { of: 64, always: 2, chosen: 8, inner: 512, hidden }
        }
    }

    /// Whether a token is two chunks of a row: see BY_CHUNKS in `experts.cuh`.
    pub(super) fn by_chunks(self, weights: Weights) -> bool {
        self.hidden == 2 * weights.chunk()
    }

    /// Bytes of a ring stage if a token is more than two chunks: a block's gate rows of an expert.
    pub(super) fn stage(self) -> usize {
        self.inner / DEALT * self.hidden
    }

    /// Why kernels for such weights cannot run these experts on this GPU.
    pub(crate) fn unfit(self, weights: Weights, here: &CudaCapabilities) -> Option<String> {
        let Self { of, always, chosen, inner, hidden } = self;
        let (blocks, rest) = (here.multiprocessors.max(1) as usize, !self.by_chunks(weights));
        let at = usize::from(rest);
        if of > MOST_LOGITS {
            return Some(format!("chooses among {MOST_LOGITS} experts at most, got {of}"));
        }
        // Experts of a ring stage in the down projection.
        let (most, whole) = (MOST_CHOSEN[at], if rest { 1 } else { 2 });
        if chosen > most || !chosen.is_multiple_of(whole) || always >= chosen {
            let number = if rest { "up to" } else { "an even number up to" };
            return Some(format!(
                "takes {number} {most} experts of a token, not all of them every token's, got {chosen} of which {always} are"
            ));
        }
        // In the down projection four warps, or all eight, share an expert's columns.
        let wanted = if rest { 1024 } else { 512 };
        if inner != wanted {
            return Some(format!("takes experts of {wanted} columns, got {inner}"));
        }
        if DEALT > blocks {
            return Some(format!("needs {DEALT} SMs, this GPU has {blocks}"));
        }
        // Every block has output columns, so a consumer of the down projection knows that all blocks have read the
        // earlier stages.
        if hidden / 2 < blocks {
            return Some(format!("needs two columns of a token a block, got {hidden}"));
        }
        let columns = 2 * (hidden / 2).div_ceil(blocks);
        if columns > MOST_COLUMNS[at] {
            let most = MOST_COLUMNS[at];
            return Some(format!("makes up to {most} columns of a block, not {columns}"));
        }
        let (wanted, there) = (whole * columns * inner, weights.stage());
        (wanted > there)
            .then(|| format!("has room for {there} bytes of weights at once, not for {wanted}"))
    }
}
