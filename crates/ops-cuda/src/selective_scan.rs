//! The selective scan on NVIDIA GPUs: a file for each variant next to its kernel, and the choice of a variant.

mod operands;
mod step;
mod tiles;

use crate::{CudaTable, CudaVariant};
use device::cuda::{BundledArch, KernelSource};
use ops::selective_scan::SelectiveScanProblem;
use ops::{ChoiceTable, Preference};

/// The variants. [`preferred`] selects one.
static VARIANTS: &[CudaVariant<SelectiveScanProblem>] = &[tiles::VARIANT, step::VARIANT];

/// The selective_scan op's variants, choice tables and bundled kernels.
pub(crate) static CUDA: CudaTable<SelectiveScanProblem> = CudaTable {
    preferred: |problem, _| preferred(problem),
    choice_tables,
    ..CudaTable::new(VARIANTS, bundled)
};

/// Longest sequence, in tokens, for which `tiles` is not worth it, since it prepares a whole tile.
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

/// The bundled kernels of selective_scan.
fn bundled() -> Vec<KernelSource> {
    let of = |arch: &BundledArch| [step::bundled(arch), tiles::bundled(arch)].concat();
    BundledArch::ALL.iter().flat_map(of).collect()
}
