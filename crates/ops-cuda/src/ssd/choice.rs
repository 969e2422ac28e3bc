//! Choice of a variant, as data so that it can be printed and regenerated from measurements.

use super::chunk;
use device::cuda::CudaCapabilities;
use ops::ssd::SsdProblem;
use ops::{ChoiceTable, Preference};

/// A row of the table.
struct Rule {
    /// Tokens of the longest sequence, at most.
    tokens: usize,
    variant: &'static str,
}

const ANY: usize = usize::MAX;

/// The first row that fits and whose variant can run. Few tokens fill no chunk; the recurrence reads and writes the
/// state once in either case.
const RULES: &[Rule] = &[
    Rule { tokens: 16, variant: "recurrent" },
    Rule { tokens: ANY, variant: "chunk" },
    Rule { tokens: ANY, variant: "recurrent" },
];

impl Rule {
    fn words(&self) -> String {
        if self.tokens == ANY { "any".to_owned() } else { self.tokens.to_string() }
    }
}

/// The variants for a problem, preferred first.
pub(super) fn preferred(problem: &SsdProblem, _: &CudaCapabilities) -> Vec<Preference> {
    let fitting = RULES.iter().filter(|rule| problem.sequences.longest() <= rule.tokens);
    let preference = |rule: &Rule| Preference {
        variant: rule.variant,
        rule: format!("sequences up to {} tokens", rule.words()),
    };
    fitting.map(preference).collect()
}

/// Every table, printable.
pub(super) fn choice_tables() -> Vec<ChoiceTable> {
    let variants = ChoiceTable {
        title: "variant of ssd on CUDA: the first row that fits and whose variant can run",
        columns: &["tokens up to", "variant"],
        rows: RULES.iter().map(|rule| vec![rule.words(), rule.variant.to_owned()]).collect(),
    };
    vec![variants, chunk::table()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ssd::{VARIANTS, persistent};

    #[test]
    fn every_variant_is_in_the_table_and_every_row_names_one() {
        // A stage that is launched alone is slower than any other variant.
        let alone = persistent::VARIANT.name;
        for variant in VARIANTS.iter().filter(|variant| variant.name != alone) {
            assert!(RULES.iter().any(|rule| rule.variant == variant.name), "{}", variant.name);
        }
        for rule in RULES {
            assert!(
                VARIANTS.iter().any(|variant| variant.name == rule.variant),
                "{}",
                rule.variant
            );
        }
    }
}
