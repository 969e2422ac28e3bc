//! A token's experts, which kernels are compiled for: see `experts.cuh`.

use super::form::{OF_EXPERTS_ALONE, SUM_STAGES, Weights};
use device::cuda::CudaCapabilities;

/// A token's experts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Experts {
    /// Those that are chosen among: as many as there are logits.
    pub(crate) of: usize,
    /// Those behind them that every token takes.
    pub(crate) always: usize,
    /// All of a token, the last ones among them.
    pub(crate) chosen: usize,
    /// Columns of one.
    pub(crate) inner: usize,
    /// Columns of a token.
    pub(crate) hidden: usize,
}

/// Experts with logits at most.
pub(crate) const MOST_LOGITS: usize = 512;
/// Experts of a token at most, where two of them are a stage on the way down, and where gates, ups and the way down are a stage each.
const MOST_CHOSEN: [usize; 2] = [16, SUM_STAGES / 2];
/// Blocks that an expert's columns are dealt to on the way up.
const DEALT: usize = 128;
/// Columns that a block makes on the way down at most, likewise: rows of a matrix product.
const MOST_COLUMNS: [usize; 2] = [16, 24];

impl Experts {
    /// Those of the models whose tokens have so many columns: norms and routers are in the same kernels, whichever these are.
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

    /// Weights that come at once where it is more chunks, bytes: a block's gates of an expert.
    pub(super) fn stage(self) -> usize {
        self.inner / DEALT * self.hidden
    }

    /// Why kernels of such weights do not take them.
    pub(crate) fn unfit(self, weights: Weights, here: &CudaCapabilities) -> Option<String> {
        let Self { of, always, chosen, inner, hidden } = self;
        let (blocks, rest) = (here.multiprocessors.max(1) as usize, !self.by_chunks(weights));
        let at = usize::from(rest);
        if of > MOST_LOGITS {
            return Some(format!("chooses among {MOST_LOGITS} experts at most, got {of}"));
        }
        // Experts of a stage on the way down.
        let (most, whole) = (MOST_CHOSEN[at], if rest { 1 } else { 2 });
        if chosen > most || !chosen.is_multiple_of(whole) || always >= chosen {
            let number = if rest { "up to" } else { "an even number up to" };
            return Some(format!(
                "takes {number} {most} experts of a token, not all of them every token's, got {chosen} of which {always} are"
            ));
        }
        // Four warps share an expert's columns on the way down, or all.
        let wanted = if rest { 1024 } else { 512 };
        if inner != wanted {
            return Some(format!("takes experts of {wanted} columns, got {inner}"));
        }
        if DEALT > blocks {
            return Some(format!("needs {DEALT} multiprocessors, this GPU has {blocks}"));
        }
        // Whoever reads behind the way down knows then that all blocks have read what was ahead of it.
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
