//! Which variant is taken for what: data, so that it can be printed and rewritten from measurements.

use super::{decode, hopper, mma};
use crate::attention::AttentionProblem;
use crate::{ChoiceTable, Preference};
use device::cuda::{ComputeCapability, CudaCapabilities};

/// A row of the table: every column must fit.
struct Rule {
    /// The GPU generation; any when `None`.
    compute: Option<ComputeCapability>,
    /// Queries of the longest sequence, at most.
    queries: usize,
    /// The larger of D and Dv, at most.
    channels: usize,
    /// Whether keys are paged; either when `None`.
    paged: Option<bool>,
    variant: &'static str,
}

const ANY: usize = usize::MAX;
const HOPPER: ComputeCapability = ComputeCapability::new(9, 0);

/// The first row that fits and whose variant can run. Few queries leave most multiprocessors idle unless the keys are
/// shared out; only the decode kernel does that, and reads pages.
const RULES: &[Rule] = &[
    Rule { compute: None, queries: ANY, channels: 1024, paged: Some(true), variant: "decode" },
    Rule { compute: None, queries: 16, channels: 1024, paged: None, variant: "decode" },
    Rule { compute: Some(HOPPER), queries: ANY, channels: 256, paged: None, variant: "hopper" },
    Rule {
        compute: Some(HOPPER),
        queries: ANY,
        channels: 640,
        paged: None,
        variant: "hopper_wide",
    },
    Rule {
        compute: Some(HOPPER),
        queries: ANY,
        channels: 1024,
        paged: None,
        variant: "hopper_cluster",
    },
    Rule { compute: None, queries: ANY, channels: 256, paged: None, variant: "mma" },
    Rule { compute: None, queries: ANY, channels: 1024, paged: None, variant: "decode" },
];

impl Rule {
    fn fits(&self, problem: &AttentionProblem, here: &CudaCapabilities) -> bool {
        self.compute.is_none_or(|compute| compute == here.compute)
            && problem.queries.longest() <= self.queries
            && problem.head_dim.max(problem.value_dim) <= self.channels
            && self.paged.is_none_or(|paged| paged == problem.keys.block_size().is_some())
    }

    fn cells(&self) -> Vec<String> {
        let most = |limit: usize| if limit == ANY { "any".to_owned() } else { limit.to_string() };
        vec![
            self.compute.map_or("any".to_owned(), |compute| compute.to_string()),
            most(self.queries),
            most(self.channels),
            self.paged.map_or("either", |paged| if paged { "yes" } else { "no" }).to_owned(),
            self.variant.to_owned(),
        ]
    }

    /// The row in words, for the variants that were not taken.
    fn words(&self) -> String {
        let mut words = Vec::new();
        if let Some(compute) = self.compute {
            words.push(format!("compute capability {compute}"));
        }
        if self.queries != ANY {
            words.push(format!("up to {} queries", self.queries));
        }
        if self.paged == Some(true) {
            words.push("paged keys".to_owned());
        }
        words.push(format!("up to {} channels", self.channels));
        words.join(", ")
    }
}

/// The variants for a problem, most wanted first.
pub(in crate::attention) fn preferred(
    problem: &AttentionProblem,
    here: &CudaCapabilities,
) -> Vec<Preference> {
    let fitting = RULES.iter().filter(|rule| rule.fits(problem, here));
    fitting.map(|rule| Preference { variant: rule.variant, rule: rule.words() }).collect()
}

/// Every table, printable.
pub(in crate::attention) fn choice_tables() -> Vec<ChoiceTable> {
    let variants = ChoiceTable {
        title: "variant on CUDA: the first row that fits and whose variant can run",
        columns: &["compute capability", "queries up to", "channels up to", "paged", "variant"],
        rows: RULES.iter().map(Rule::cells).collect(),
    };
    vec![variants, hopper::table(), mma::table(), decode::table()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::cuda::VARIANTS;

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
