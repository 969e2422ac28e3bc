//! The selective scan on NVIDIA GPUs: one file a variant beside its kernel, and which is taken for what.

mod operands;
mod step;
mod tiles;

use super::SelectiveScanProblem;
use crate::cuda::CudaVariant;
use crate::{ChoiceTable, Preference};
use device::cuda::{BundledArch, KernelSource};

/// The variants. [`preferred`] says which is taken for what.
pub(super) static VARIANTS: &[CudaVariant<SelectiveScanProblem>] = &[tiles::VARIANT, step::VARIANT];

/// Tokens of the longest sequence up to which a tile, which is made ready whole, is not worth it.
const FEW_TOKENS: usize = 4;

pub(super) fn preferred(problem: &SelectiveScanProblem) -> Vec<Preference> {
    let fits = [problem.sequences.longest() > FEW_TOKENS, true];
    let named = VARIANTS.iter().zip(rule_words()).zip(fits).filter(|(_, fits)| *fits);
    named.map(|((variant, rule), _)| Preference { variant: variant.name, rule }).collect()
}

fn rule_words() -> [String; 2] {
    [format!("sequences of more than {FEW_TOKENS} tokens"), "any shape and type".to_owned()]
}

/// Every table, printable.
pub(super) fn choice_tables() -> Vec<ChoiceTable> {
    let rows = rule_words().into_iter().zip(VARIANTS);
    let variants = ChoiceTable {
        title: "variant of selective_scan on CUDA: the first row that fits and whose variant can run",
        columns: &["for", "variant"],
        rows: rows.map(|(rule, variant)| vec![rule, variant.name.to_owned()]).collect(),
    };
    vec![variants]
}

/// What the bundle holds of selective_scan.
pub(super) fn bundled() -> Vec<KernelSource> {
    let of = |arch: &BundledArch| [step::bundled(arch), tiles::bundled(arch)].concat();
    BundledArch::ALL.iter().flat_map(of).collect()
}
