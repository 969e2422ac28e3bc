//! KDA, the gated delta rule and their gradients on NVIDIA GPUs: one file per variant next to its kernels, and the table that chooses
//! between them.

pub(crate) mod backward;
mod chunk;
mod operands;
mod recurrent;

use crate::{CudaTable, CudaVariant};
use device::cuda::{BundledArch, CudaCapabilities, KernelSource};
use ops::kda::{Decays, KdaProblem};
use ops::{ChoiceTable, GradientProblem, Preference};

/// The variants; [`preferred`] orders them for a problem.
static VARIANTS: &[CudaVariant<KdaProblem>] = &[chunk::VARIANT, recurrent::VARIANT];

/// The table of an op that uses these variants, with its kernels of the bundle.
pub(crate) const fn table(bundled: fn() -> Vec<KernelSource>) -> CudaTable<KdaProblem> {
    let preferred = |problem: &KdaProblem, _: &CudaCapabilities| preferred(problem);
    CudaTable { preferred, choice_tables, ..CudaTable::new(VARIANTS, bundled) }
}

/// The kda variants of NVIDIA GPUs.
pub(crate) static CUDA: CudaTable<KdaProblem> = table(|| bundled(Decays::PerChannel));

/// The variants of the gradient of kda.
pub(crate) static BACKWARD: CudaTable<GradientProblem<KdaProblem>> = backward::table();

/// Maximum length of the longest sequence for which the token-by-token recurrence is faster than the chunked form.
const FEW_TOKENS: usize = 16;

fn preferred(problem: &KdaProblem) -> Vec<Preference> {
    let rules =
        [(problem.sequences.longest() > FEW_TOKENS, chunk::VARIANT), (true, recurrent::VARIANT)];
    let named = rules.iter().zip(rule_words()).filter(|((fits, _), _)| *fits);
    named.map(|((_, variant), rule)| Preference { variant: variant.name, rule }).collect()
}

fn rule_words() -> [String; 2] {
    [format!("sequences of more than {FEW_TOKENS} tokens"), "any shape and type".to_owned()]
}

fn choice_tables() -> Vec<ChoiceTable> {
    let names = [chunk::VARIANT.name, recurrent::VARIANT.name];
    let rows = rule_words().into_iter().zip(names).map(|(rule, name)| vec![rule, name.to_owned()]);
    let variants = ChoiceTable {
        title: "variant on CUDA: the first row that fits and whose variant can run",
        columns: &["for", "variant"],
        rows: rows.collect(),
    };
    vec![variants, recurrent::table()]
}

/// The bundled kernels of the op with these decays.
pub(crate) fn bundled(decays: Decays) -> Vec<KernelSource> {
    let mut sources = chunk::bundled(decays);
    sources.extend(BundledArch::ALL.iter().flat_map(|arch| recurrent::bundled(decays, arch)));
    sources
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_names_every_variant() {
        let rows = choice_tables().swap_remove(0).rows;
        assert_eq!(
            rows.iter().map(|row| row[1].as_str()).collect::<Vec<_>>(),
            VARIANTS.iter().map(|variant| variant.name).collect::<Vec<_>>()
        );
    }
}
