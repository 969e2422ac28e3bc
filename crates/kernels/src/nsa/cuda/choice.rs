//! Which variant is taken for what: data, so that it can be printed and rewritten from measurements.

use super::{gather, stages};
use crate::nsa::NsaProblem;
use crate::{ChoiceTable, Preference};

/// A row of the table: every column must fit.
struct Rule {
    /// Queries of the longest sequence, at least.
    queries: usize,
    variant: &'static str,
}

/// The first row that fits and whose variant can run. Reading a block once for many queries pays where many select it.
const RULES: &[Rule] =
    &[Rule { queries: 512, variant: "blocks" }, Rule { queries: 0, variant: "gather" }];

impl Rule {
    /// The row in words, for the variants that were not taken.
    fn words(&self) -> String {
        match self.queries {
            0 => "any number of queries".to_owned(),
            least => format!("{least} queries and more"),
        }
    }
}

/// The variants for a problem, most wanted first.
pub(in crate::nsa) fn preferred(problem: &NsaProblem) -> Vec<Preference> {
    let fitting = RULES.iter().filter(|rule| problem.queries.longest() >= rule.queries);
    fitting.map(|rule| Preference { variant: rule.variant, rule: rule.words() }).collect()
}

/// Every table, printable.
pub(in crate::nsa) fn choice_tables() -> Vec<ChoiceTable> {
    let cells = |rule: &Rule| vec![rule.queries.to_string(), rule.variant.to_owned()];
    let variants = ChoiceTable {
        title: "variant on CUDA: the first row that fits and whose variant can run",
        columns: &["queries from", "variant"],
        rows: RULES.iter().map(cells).collect(),
    };
    vec![variants, stages::table(), gather::table()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nsa::cuda::VARIANTS;

    #[test]
    fn every_variant_is_in_the_table_and_every_row_names_one() {
        let named: Vec<&str> = RULES.iter().map(|rule| rule.variant).collect();
        for variant in VARIANTS {
            assert!(named.contains(&variant.name), "{}", variant.name);
        }
        for name in named {
            assert!(VARIANTS.iter().any(|variant| variant.name == name), "{name}");
        }
    }
}
