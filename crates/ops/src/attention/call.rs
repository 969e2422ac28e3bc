//! The typed call of `attention`: a field for each tensor and option.

use super::{AttentionOp, Mask};
use crate::op::call_tensors;
use crate::{CallTensors, Key, OpError, Options, Settings, Tensor, Typed};

const OP: &str = "attention";

/// Options of an `attention` call.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct AttentionOptions {
    /// Keys that a query sees.
    pub mask: Mask,
    /// Factor of q k^T; D^-1/2 if `None`.
    pub scale: Option<f64>,
    /// c in c tanh(logit / c), above 0.
    pub softcap: Option<f64>,
    /// Dv, if the values are the first Dv channels of the keys (as in MLA's latent cache) and there is no `v`.
    pub value_width: Option<usize>,
}

impl Options for AttentionOptions {
    fn read(settings: &Settings) -> Result<Self, OpError> {
        Ok(Self {
            mask: Mask {
                causal: settings.bool(OP, "causal")?.unwrap_or(false),
                window_left: settings.count(OP, "window_left")?,
                window_right: settings.count(OP, "window_right")?,
            },
            scale: settings.number(OP, "scale")?,
            softcap: settings.number(OP, "softcap")?,
            value_width: settings.count(OP, "value_width")?,
        })
    }

    fn key(&self, key: &mut Key) {
        key.word(u64::from(self.mask.causal));
        key.count(self.mask.window_left);
        key.count(self.mask.window_right);
        key.maybe(self.scale);
        key.maybe(self.softcap);
        key.count(self.value_width);
    }
}

/// Layout of the keys and values.
#[derive(Debug, Clone, Copy)]
pub enum Keys<'a> {
    /// `[B, Tk, Hkv, D]`.
    Dense {
        /// Keys in use of each sequence `[B]`, i32; all Tk if `None`.
        lengths: Option<&'a Tensor>,
    },
    /// `[total, Hkv, D]`, packed sequences.
    Packed {
        /// Offsets of the keys `[sequences + 1]`, i32; those of the queries if `None`.
        offsets: Option<&'a Tensor>,
    },
    /// `[blocks, block_size, Hkv, D]`, a paged KV cache.
    Paged {
        /// Block table `[B, max_blocks]`, i32.
        table: &'a Tensor,
        /// Keys of each sequence `[B]`, i32.
        lengths: &'a Tensor,
    },
}

/// Values that belong to keys.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a> {
    /// A separate tensor, `[.., Hkv, Dv]` in the layout of the keys.
    Separate(&'a Tensor),
    /// The first Dv channels of the keys; holds Dv.
    InKeys(usize),
}

/// `softmax(scale q k^T + mask) v`.
#[derive(Debug, Clone, Copy)]
pub struct AttentionCall<'a> {
    /// Queries `[B, Tq, H, D]` or packed `[total, H, D]`.
    pub q: &'a Tensor,
    /// Offsets of packed queries `[sequences + 1]`, i32.
    pub offsets: Option<&'a Tensor>,
    /// Keys, in the layout of `keys`.
    pub k: &'a Tensor,
    /// Values.
    pub v: Values<'a>,
    /// Layout of keys and values.
    pub keys: Keys<'a>,
    /// Keys that a query sees.
    pub mask: Mask,
    /// Factor of q k^T; D^-1/2 if `None`.
    pub scale: Option<f64>,
    /// c in c tanh(logit / c), above 0.
    pub softcap: Option<f64>,
    /// Output on a GPU `[B, Tq, H, Dv]` or `[total, H, Dv]`.
    pub o: Option<&'a Tensor>,
    /// Log-sum-exp of each query on a GPU `[B, H, Tq]` or `[H, total]`, f32.
    pub lse: Option<&'a Tensor>,
}

impl Typed for AttentionCall<'_> {
    type Family = AttentionOp;

    fn call_tensors(&self) -> CallTensors<'_, AttentionOp> {
        let (v, value_width) = match self.v {
            Values::Separate(v) => (Some(v), None),
            Values::InKeys(width) => (None, Some(width)),
        };
        let Self { mask, scale, softcap, .. } = *self;
        let (offsets, lengths, table) = match self.keys {
            Keys::Dense { lengths } => (None, lengths, None),
            Keys::Packed { offsets } => (offsets, None, None),
            Keys::Paged { table, lengths } => (None, Some(lengths), Some(table)),
        };
        call_tensors!(AttentionOp, AttentionOptions { mask, scale, softcap, value_width }, {
            "q": self.q,
            "cu_seqlens": self.offsets,
            "k": self.k,
            "v": v,
            "cu_seqlens_k": offsets,
            "cache_seqlens": lengths,
            "block_table": table,
        } -> { "o": self.o, "lse": self.lse })
    }
}
