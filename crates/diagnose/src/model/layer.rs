//! One layer of a model: what it is and what it holds.

/// What a layer mixes its tokens by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LayerKind {
    Attention,
    LatentAttention,
    Mamba1,
    Mamba2,
    /// Attention and Mamba-2 side by side in one layer.
    AttentionAndMamba2,
    Kda,
    GatedDeltaNet,
    /// A layer of its own without a mixer, as Nemotron-H has them.
    FeedForward,
}

impl LayerKind {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Attention => "attention",
            Self::LatentAttention => "latent-attention",
            Self::Mamba1 => "mamba",
            Self::Mamba2 => "mamba2",
            Self::AttentionAndMamba2 => "attention+mamba2",
            Self::Kda => "kda",
            Self::GatedDeltaNet => "gated-delta-net",
            Self::FeedForward => "feed-forward",
        }
    }
}

/// Sizes add up without ever wrapping round: a config's numbers are anybody's.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Size {
    /// Parameters.
    pub(crate) parameters: u64,
    /// Bytes of one sequence's state, whatever its length.
    pub(crate) state_bytes: u64,
    /// Bytes of one token's keys and values.
    pub(crate) cache_bytes: u64,
}

impl Size {
    pub(crate) fn of(parameters: u64) -> Self {
        Self { parameters, ..Self::default() }
    }
}

impl std::ops::Add for Size {
    type Output = Self;

    fn add(self, other: Self) -> Self {
        Self {
            parameters: self.parameters.saturating_add(other.parameters),
            state_bytes: self.state_bytes.saturating_add(other.state_bytes),
            cache_bytes: self.cache_bytes.saturating_add(other.cache_bytes),
        }
    }
}

/// One layer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Layer {
    pub(crate) kind: LayerKind,
    pub(crate) size: Size,
}

/// The product of sizes, which stops at the largest number instead of wrapping round.
pub(crate) fn product(factors: &[u64]) -> u64 {
    factors.iter().fold(1, |product: u64, factor| product.saturating_mul(*factor))
}

/// The sum of sizes, likewise.
pub(crate) fn sum(terms: &[u64]) -> u64 {
    terms.iter().fold(0, |sum: u64, term| sum.saturating_add(*term))
}
