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
    /// Draws the inputs. Called when the case runs, so a listed case costs no memory.
    pub build: Box<dyn Fn() -> (TensorMap, Settings) + Send + Sync>,
}

impl std::fmt::Debug for Case {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{} {} {} {:?}", self.op, self.name, self.dtype, self.tier)
    }
}
