//! A call of attention in its own words.

use super::{AttentionOp, Mask};
use crate::op::given;
use crate::{Given, Key, OpError, Options, Settings, Tensor, Typed};

const OP: &str = "attention";

/// What a call says beside its tensors.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct AttentionOptions {
    /// Which keys a query sees.
    pub mask: Mask,
    /// Factor of q k^T; D^-1/2 where it is none.
    pub scale: Option<f64>,
    /// c in c tanh(logit / c), above 0.
    pub softcap: Option<f64>,
    /// Dv of values that are the first channels of the keys.
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

/// Where the keys of each sequence lie.
#[derive(Debug, Clone, Copy)]
pub enum Keys<'a> {
    /// `[B, Tk, Hkv, D]`, of which each sequence has so many `[B]`, all of them where that is none.
    Dense {
        /// Keys in use.
        lengths: Option<&'a Tensor>,
    },
    /// `[total, Hkv, D]`, each sequence's behind the one's before.
    Packed {
        /// Where each begins `[sequences + 1]`, where that is not where its queries do.
        offsets: Option<&'a Tensor>,
    },
    /// `[blocks, block_size, Hkv, D]`.
    Paged {
        /// Blocks of each sequence `[B, max_blocks]`.
        table: &'a Tensor,
        /// Keys of each sequence `[B]`.
        lengths: &'a Tensor,
    },
}

/// Values that belong to keys.
#[derive(Debug, Clone, Copy)]
pub enum Values<'a> {
    /// Rows that lie as those of the keys do.
    Apart(&'a Tensor),
    /// So many first channels of the keys.
    InKeys(usize),
}

/// `softmax(scale q k^T + mask) v`.
#[derive(Debug, Clone, Copy)]
pub struct AttentionCall<'a> {
    /// Queries `[B, Tq, H, D]` or packed `[total, H, D]`.
    pub q: &'a Tensor,
    /// Where the queries of each packed sequence begin `[sequences + 1]`.
    pub offsets: Option<&'a Tensor>,
    /// Keys.
    pub k: &'a Tensor,
    /// Values.
    pub v: Values<'a>,
    /// Where keys and values lie.
    pub keys: Keys<'a>,
    /// Which keys a query sees.
    pub mask: Mask,
    /// Factor of q k^T; D^-1/2 where it is none.
    pub scale: Option<f64>,
    /// c in c tanh(logit / c), above 0.
    pub softcap: Option<f64>,
    /// Where the output goes on a GPU.
    pub o: Option<&'a Tensor>,
    /// Where the log-sum-exp of each query goes on a GPU.
    pub lse: Option<&'a Tensor>,
}

impl Typed for AttentionCall<'_> {
    type Family = AttentionOp;

    fn given(&self) -> Given<'_, AttentionOp> {
        let (v, value_width) = match self.v {
            Values::Apart(v) => (Some(v), None),
            Values::InKeys(width) => (None, Some(width)),
        };
        let Self { mask, scale, softcap, .. } = *self;
        let (offsets, lengths, table) = match self.keys {
            Keys::Dense { lengths } => (None, lengths, None),
            Keys::Packed { offsets } => (offsets, None, None),
            Keys::Paged { table, lengths } => (None, Some(lengths), Some(table)),
        };
        given!(AttentionOp, AttentionOptions { mask, scale, softcap, value_width }, {
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
