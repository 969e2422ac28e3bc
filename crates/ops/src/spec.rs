//! The table of an op: its name, tensors and settings.

use crate::DType;

/// An op's table: its name, inputs, outputs and settings.
#[derive(Debug)]
pub struct OpSpec {
    /// Its name: `attention`, `kda`.
    pub name: &'static str,
    /// One line.
    pub summary: &'static str,
    /// Input tensors. The first one has the storage type; for `linear` it is `w`.
    pub inputs: &'static [TensorSpec],
    /// Output tensors.
    pub outputs: &'static [TensorSpec],
    /// Settings.
    pub settings: &'static [SettingSpec],
}

/// One tensor in an op's table.
#[derive(Debug, Clone, Copy)]
pub struct TensorSpec {
    /// Name in files and errors.
    pub name: &'static str,
    /// Symbolic shape: `[B, T, H, D]`.
    pub shape: &'static str,
    /// Whether a call without it is an error.
    pub required: bool,
    /// Meaning.
    pub about: &'static str,
}

impl TensorSpec {
    /// Whether it has a row for each token, of a dense batch or of packed sequences.
    pub(crate) fn is_of_tokens(&self) -> bool {
        self.shape.starts_with("[B, T")
    }
}

/// A row of an op's table of tensors.
pub(crate) const fn tensor(
    name: &'static str,
    shape: &'static str,
    required: bool,
    about: &'static str,
) -> TensorSpec {
    TensorSpec { name, shape, required, about }
}

/// A row of an op's table of settings.
pub(crate) const fn setting(
    name: &'static str,
    kind: SettingKind,
    default: &'static str,
    about: &'static str,
) -> SettingSpec {
    SettingSpec { name, kind, default, about }
}

/// A call's output tensor, before it exists.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OutputSpec {
    /// Name.
    pub name: &'static str,
    /// Shape.
    pub shape: Vec<usize>,
    /// Storage type.
    pub dtype: DType,
}

impl OutputSpec {
    /// Its size in bytes.
    pub fn bytes(&self) -> usize {
        self.dtype.bytes_of(self.shape.iter().product())
    }
}

/// One setting of an op.
#[derive(Debug, Clone, Copy)]
pub struct SettingSpec {
    /// Name, as in `--set name=value`.
    pub name: &'static str,
    /// Values it accepts.
    pub kind: SettingKind,
    /// Default, as a value or a description.
    pub default: &'static str,
    /// Meaning, with its unit.
    pub about: &'static str,
}

/// Values a setting takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingKind {
    /// `true` or `false`.
    Bool,
    /// A finite number.
    Number,
    /// A whole number, zero or more.
    Count,
    /// Whole numbers above zero, separated by commas.
    Counts,
    /// One of these words.
    Choice(&'static [&'static str]),
}
