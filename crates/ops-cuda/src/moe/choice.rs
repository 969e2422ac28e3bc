//! Choice of a variant, as data so that it can be printed.

use ops::moe::MoeProblem;
use ops::{ChoiceTable, Preference};

const ANY: usize = usize::MAX;

/// A row of the table.
struct Rule {
    /// Tokens, at most.
    tokens: usize,
    variant: &'static str,
}

/// The first row that fits and whose variant can run, measured on an H200 (README.md). With few tokens, reading the
/// experts' weights takes most of the time.
const RULES: &[Rule] = &[
    Rule { tokens: 32, variant: "decode" },
    Rule { tokens: ANY, variant: "narrow" },
    Rule { tokens: ANY, variant: "hopper" },
    Rule { tokens: ANY, variant: "grouped" },
];

impl Rule {
    /// The row as text, for variants that were not taken.
    fn words(&self) -> String {
        match self.tokens {
            ANY => "any number of tokens".to_owned(),
            tokens => format!("up to {tokens} tokens"),
        }
    }
}

/// The variants for a problem, preferred first.
pub(super) fn preferred(problem: &MoeProblem) -> Vec<Preference> {
    let fitting = RULES.iter().filter(|rule| problem.tokens <= rule.tokens);
    fitting.map(|rule| Preference { variant: rule.variant, rule: rule.words() }).collect()
}

/// The table, printable.
pub(super) fn choice_tables() -> Vec<ChoiceTable> {
    let cells = |rule: &Rule| {
        let most = if rule.tokens == ANY { "any".to_owned() } else { rule.tokens.to_string() };
        vec![most, rule.variant.to_owned()]
    };
    vec![ChoiceTable {
        title: "variant on CUDA: the first row that fits and whose variant can run",
        columns: &["tokens up to", "variant"],
        rows: RULES.iter().map(cells).collect(),
    }]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::moe::{VARIANTS, persistent};

    #[test]
    fn every_variant_is_in_the_table_and_every_row_names_one() {
        let named: Vec<&str> = RULES.iter().map(|rule| rule.variant).collect();
        // A stage that is launched alone is slower than any other variant.
        let alone = persistent::VARIANT.name;
        let mut others = VARIANTS.iter().filter(|variant| variant.name != alone);
        assert!(others.all(|variant| named.contains(&variant.name)));
        assert!(named.iter().all(|name| VARIANTS.iter().any(|variant| variant.name == *name)));
    }
}
