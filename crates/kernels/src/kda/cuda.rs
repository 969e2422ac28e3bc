//! KDA on NVIDIA GPUs: one file a variant beside its kernels, and the table that chooses between them.

mod chunk;
mod operands;
mod recurrent;

use super::KdaProblem;
use crate::cuda::CudaVariant;
use crate::{ChoiceTable, Preference};
use device::cuda::{BundledArch, KernelSource};

/// The variants. [`preferred`] says which is taken for what.
pub(super) const VARIANTS: &[CudaVariant<KdaProblem>] = &[chunk::VARIANT, recurrent::VARIANT];

/// Tokens of the longest sequence up to which walking them one by one is faster than preparing chunks.
const FEW_TOKENS: usize = 16;

pub(super) fn preferred(problem: &KdaProblem) -> Vec<Preference> {
    let chunk = Preference {
        variant: chunk::VARIANT.name,
        rule: format!("sequences of more than {FEW_TOKENS} tokens"),
    };
    let recurrent =
        Preference { variant: recurrent::VARIANT.name, rule: "any shape and type".to_owned() };
    if problem.sequences.longest() > FEW_TOKENS { vec![chunk, recurrent] } else { vec![recurrent] }
}

pub(super) fn choice_tables() -> Vec<ChoiceTable> {
    let row = |tokens: &str, variant: &str| vec![tokens.to_owned(), variant.to_owned()];
    let variants = ChoiceTable {
        title: "variant on CUDA: the first row that fits and whose variant can run",
        columns: &["tokens of the longest sequence", "variant"],
        rows: vec![
            row(&format!("more than {FEW_TOKENS}"), chunk::VARIANT.name),
            row("any", recurrent::VARIANT.name),
        ],
    };
    vec![variants, recurrent::table()]
}

/// What the bundle holds of kda.
pub(crate) fn bundled() -> Vec<KernelSource> {
    let mut sources = chunk::bundled();
    sources.extend(BundledArch::ALL.iter().flat_map(recurrent::bundled));
    sources
}
