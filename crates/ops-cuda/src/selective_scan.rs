//! The selective scan on NVIDIA GPUs: one file a variant beside its kernel, and which is taken for what.

mod operands;
mod step;
mod tiles;

use crate::{CudaTable, CudaVariant};
use device::cuda::{BundledArch, KernelSource};
use ops::selective_scan::SelectiveScanProblem;
use ops::{ChoiceTable, Preference};

/// The variants. [`preferred`] says which is taken for what.
static VARIANTS: &[CudaVariant<SelectiveScanProblem>] = &[tiles::VARIANT, step::VARIANT];

/// What GPUs have of selective_scan.
pub(crate) static CUDA: CudaTable<SelectiveScanProblem> = CudaTable {
    preferred: |problem, _| preferred(problem),
    choice_tables,
    ..CudaTable::new(VARIANTS, bundled)
};

/// Tokens of the longest sequence up to which a tile, which is made ready whole, is not worth it.
const FEW_TOKENS: usize = 4;

fn preferred(problem: &SelectiveScanProblem) -> Vec<Preference> {
    let fits = [problem.sequences.longest() > FEW_TOKENS, true];
    let named = VARIANTS.iter().zip(rule_words()).zip(fits).filter(|(_, fits)| *fits);
    named.map(|((variant, rule), _)| Preference { variant: variant.name, rule }).collect()
}

fn rule_words() -> [String; 2] {
    [format!("sequences of more than {FEW_TOKENS} tokens"), "any shape and type".to_owned()]
}

/// Every table, printable.
fn choice_tables() -> Vec<ChoiceTable> {
    let rows = rule_words().into_iter().zip(VARIANTS);
    let variants = ChoiceTable {
        title: "variant of selective_scan on CUDA: the first row that fits and whose variant can run",
        columns: &["for", "variant"],
        rows: rows.map(|(rule, variant)| vec![rule, variant.name.to_owned()]).collect(),
    };
    vec![variants]
}

/// What the bundle holds of selective_scan.
fn bundled() -> Vec<KernelSource> {
    let of = |arch: &BundledArch| [step::bundled(arch), tiles::bundled(arch)].concat();
    BundledArch::ALL.iter().flat_map(of).collect()
}
