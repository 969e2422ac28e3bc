//! The typed call of `nsa`: a field for each tensor and option.

use super::spec::{GATES, POOLINGS};
use super::{Gate, NsaOp, Pooling};
use crate::op::call_tensors;
use crate::settings::refused;
use crate::{CallTensors, Key, OpError, Options, Settings, Tensor, Typed};

const OP: &str = "nsa";

/// Options of an `nsa` call.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct NsaOptions {
    /// Factor of the scores; D^-1/2 if `None`.
    pub scale: Option<f64>,
    /// l, tokens of a compressed block.
    pub compress_block: usize,
    /// d, tokens from one compressed block to the next.
    pub compress_stride: usize,
    /// l', tokens of a selectable block.
    pub select_block: usize,
    /// n, blocks selected, forced ones included; if `None`, n of `block_indices`, or 16.
    pub select_count: Option<usize>,
    /// First blocks that are always selected.
    pub initial_blocks: usize,
    /// Blocks ending with the query's own that are always selected.
    pub local_blocks: usize,
    /// w, last tokens of the window branch.
    pub window: usize,
    /// How a block is compressed.
    pub pooling: Pooling,
    /// Interpretation of the gate tensors.
    pub gate: Gate,
    /// Whether importance is weighted by token overlap; false is the aligned form of fla.
    pub overlap: bool,
}

impl Default for NsaOptions {
    fn default() -> Self {
        Self {
            scale: None,
            compress_block: 32,
            compress_stride: 16,
            select_block: 64,
            select_count: None,
            initial_blocks: 1,
            local_blocks: 2,
            window: 512,
            pooling: Pooling::Mean,
            gate: Gate::Given,
            overlap: true,
        }
    }
}

impl Options for NsaOptions {
    fn read(settings: &Settings) -> Result<Self, OpError> {
        if settings.bool(OP, "causal")? == Some(false) {
            return Err(refused(OP, "causal", false, "true: NSA is causal by definition"));
        }
        let default = Self::default();
        let count = |name: &str, default: usize| {
            settings.count(OP, name).map(|count| count.unwrap_or(default))
        };
        Ok(Self {
            scale: settings.number(OP, "scale")?,
            compress_block: count("compress_block", default.compress_block)?,
            compress_stride: count("compress_stride", default.compress_stride)?,
            select_block: count("select_block", default.select_block)?,
            select_count: settings.count(OP, "select_count")?,
            initial_blocks: count("initial_blocks", default.initial_blocks)?,
            local_blocks: count("local_blocks", default.local_blocks)?,
            window: count("window", default.window)?,
            pooling: match settings.choice(OP, "pooling", POOLINGS)? {
                Some("learned") => Pooling::Learned,
                _ => Pooling::Mean,
            },
            gate: match settings.choice(OP, "gate", GATES)? {
                Some("sigmoid") => Gate::Sigmoid,
                Some("softmax") => Gate::Softmax,
                _ => Gate::Given,
            },
            overlap: settings.bool(OP, "overlap")?.unwrap_or(default.overlap),
        })
    }

    fn key(&self, key: &mut Key) {
        key.maybe(self.scale);
        key.count(self.select_count);
        for count in [
            self.compress_block,
            self.compress_stride,
            self.select_block,
            self.initial_blocks,
            self.local_blocks,
            self.window,
        ] {
            key.word(count as u64);
        }
        key.word(self.pooling as u64);
        key.word(self.gate as u64);
        key.word(u64::from(self.overlap));
    }
}

/// Learned pooling: a matrix over the tokens of a block, and position embeddings added before it.
#[derive(Debug, Clone, Copy)]
pub struct LearnedPoolingWeights<'a> {
    /// `[Hkv, l * D, D]`.
    pub weight: Option<&'a Tensor>,
    /// `[Hkv, l, D]`.
    pub positions: Option<&'a Tensor>,
}

/// Native sparse attention: the sum of its gated branches.
#[derive(Debug, Clone, Copy)]
pub struct NsaCall<'a> {
    /// Queries of the last Tq of the Tk positions `[B, Tq, HQ, D]`.
    pub q: &'a Tensor,
    /// Keys `[B, Tk, Hkv, D]`.
    pub k: &'a Tensor,
    /// Values `[B, Tk, Hkv, Dv]`.
    pub v: &'a Tensor,
    /// Gates of the compressed, the selected and the window branch `[B, Tq, HQ]`; none: no branch.
    pub gates: [Option<&'a Tensor>; 3],
    /// Offsets of packed queries `[sequences + 1]`, i32.
    pub offsets: Option<&'a Tensor>,
    /// Offsets of packed keys `[sequences + 1]`, i32; those of the queries if `None`.
    pub key_offsets: Option<&'a Tensor>,
    /// Blocks to select `[B, Tq, Hkv, n]`; none: the op selects.
    pub block_indices: Option<&'a Tensor>,
    /// Cached compressed keys `[B, Nc, Hkv, D]` and values `[B, Nc, Hkv, Dv]`; pooled from k and v if `None`.
    pub compressed: Option<[&'a Tensor; 2]>,
    /// Learned pooling of keys and of values.
    pub learned: Option<[LearnedPoolingWeights<'a>; 2]>,
    /// Options.
    pub options: NsaOptions,
    /// Output on a GPU `[B, Tq, HQ, Dv]`.
    pub o: Option<&'a Tensor>,
}

impl Typed for NsaCall<'_> {
    type Family = NsaOp;

    fn call_tensors(&self) -> CallTensors<'_, NsaOp> {
        let [g_cmp, g_slc, g_swa] = self.gates;
        let none = LearnedPoolingWeights { weight: None, positions: None };
        let [keys, values] = self.learned.unwrap_or([none; 2]);
        call_tensors!(NsaOp, self.options, {
            "q": self.q,
            "k": self.k,
            "v": self.v,
            "g_cmp": g_cmp,
            "g_slc": g_slc,
            "g_swa": g_swa,
            "cu_seqlens": self.offsets,
            "cu_seqlens_k": self.key_offsets,
            "block_indices": self.block_indices,
            "k_cmp": self.compressed.map(|[k, _]| k),
            "v_cmp": self.compressed.map(|[_, v]| v),
            "cmp_k_weight": keys.weight,
            "cmp_k_pos": keys.positions,
            "cmp_v_weight": values.weight,
            "cmp_v_pos": values.positions,
        } -> { "o": self.o })
    }
}
