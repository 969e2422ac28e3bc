use kernels::{DType, Settings, TensorMap};

/// How much of the matrix a case belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Tier {
    /// Every run, `check --quick` included: one or two shapes and the sharpest edges of each op.
    Quick,
    /// The standard matrix.
    Standard,
    /// Only `--full`: the large shapes.
    Full,
}

/// What several runs of a call must have in common. Their outputs must agree with the reference besides.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Property {
    /// A second run gives the same bits: no result depends on which thread came first.
    SameBits,
    /// The dense call cut into runs of these many tokens, each going on from the state that the one before left, gives
    /// the outputs of the whole call.
    Continuation(Vec<usize>),
}

/// One call of an op with drawn inputs.
pub struct Case {
    /// Op name.
    pub op: &'static str,
    /// Where it comes from and its shape: `ffpa/d320-gqa16x4`, `edge/no-visible-key`.
    pub name: String,
    /// Storage type of the inputs.
    pub dtype: DType,
    /// How much of the matrix it belongs to.
    pub tier: Tier,
    /// What several runs must have in common; `None` for one run that must agree with the reference.
    pub property: Option<Property>,
    /// Draws the inputs. Called when the case runs, so a listed case costs no memory.
    pub build: Box<dyn Fn() -> (TensorMap, Settings) + Send + Sync>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} {:?}", self.op, self.name, self.dtype, self.tier)
    }
}
