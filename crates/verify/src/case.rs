use ops::{DType, Settings, TensorMap};

/// The part of the matrix that a case belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Every run, `check --quick` included: one or two shapes and the most revealing edge cases of each op.
    Quick,
    /// The standard matrix.
    Standard,
    /// Only `--full`: the large shapes.
    Full,
}

/// A property of several runs of a call, whose outputs must also agree with the reference.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Property {
    /// A second run gives the same bits: the result does not depend on the order of threads.
    SameBits,
    /// The dense call split into runs of these many tokens, each starting from the previous one's final state, gives
    /// the outputs of the whole call.
    Continuation(Vec<usize>),
}

/// One call of an op with random inputs.
pub struct Case {
    /// Op name.
    pub op: &'static str,
    /// Its origin and shape: `ffpa/d320-gqa16x4`, `edge/no-visible-key`.
    pub name: String,
    /// Storage type of the inputs.
    pub dtype: DType,
    /// How much of the matrix it belongs to.
    pub tier: Tier,
    /// A property of several runs; `None` for one run that must agree with the reference.
    pub property: Option<Property>,
    /// Generates the inputs when the case runs, so a listed case needs no memory.
    pub build: Box<dyn Fn() -> (TensorMap, Settings) + Send + Sync>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} {:?}", self.op, self.name, self.dtype, self.tier)
    }
}
