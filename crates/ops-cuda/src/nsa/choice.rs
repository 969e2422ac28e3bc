//! Choice of a variant, as data so that it can be printed and regenerated from measurements.

use super::{gather, stages, step, step_cluster};
use ops::nsa::NsaProblem;
use ops::{ChoiceTable, Preference};

const ANY: usize = usize::MAX;

/// A row of the table: every column must fit.
struct Rule {
    /// Queries of the longest sequence, at least.
    from: usize,
    /// At most.
    to: usize,
    /// Queries of all sequences times key heads, at most.
    items: usize,
    variant: &'static str,
}

/// The first row that fits and whose variant can run. A thread block cluster for each query and key head is faster
/// than two launches for all timed sizes (up to 16 sequences of 4 key heads on an H200). Reading a block once for
/// many queries pays off if many select it.
const RULES: &[Rule] = &[
    Rule { from: 0, to: 16, items: 64, variant: "cluster" },
    Rule { from: 0, to: 16, items: ANY, variant: "step" },
    Rule { from: 0, to: 16, items: ANY, variant: "cluster" },
    Rule { from: 256, to: ANY, items: ANY, variant: "blocks" },
    Rule { from: 0, to: ANY, items: ANY, variant: "gather" },
];

impl Rule {
    /// The row as text, for variants that were not taken.
    fn words(&self) -> String {
        let queries = match (self.from, self.to) {
            (0, ANY) => "any number of queries".to_owned(),
            (from, ANY) => format!("{from} queries and more"),
            (_, to) => format!("up to {to} queries"),
        };
        match self.items {
            ANY => queries,
            items => format!("{queries}, up to {items} times key heads in all"),
        }
    }
}

/// The variants for a problem, preferred first.
pub(super) fn preferred(problem: &NsaProblem) -> Vec<Preference> {
    let queries = problem.queries.longest();
    let items = problem.queries.total() * problem.kv_heads;
    let fitting =
        RULES.iter().filter(|rule| (rule.from..=rule.to).contains(&queries) && items <= rule.items);
    fitting.map(|rule| Preference { variant: rule.variant, rule: rule.words() }).collect()
}

/// Every table, printable.
pub(super) fn choice_tables() -> Vec<ChoiceTable> {
    let most = |to: usize| if to == ANY { "any".to_owned() } else { to.to_string() };
    let cells = |rule: &Rule| -> Vec<String> {
        let limits = [rule.from.to_string(), most(rule.to), most(rule.items)];
        limits.into_iter().chain([rule.variant.to_owned()]).collect()
    };
    let variants = ChoiceTable {
        title: "variant on CUDA: the first row that fits and whose variant can run",
        columns: &["queries from", "to", "times key heads up to", "variant"],
        rows: RULES.iter().map(cells).collect(),
    };
    vec![variants, stages::table(), gather::table(), step::table(), step_cluster::table()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::nsa::VARIANTS;

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
