//! Selects a variant per problem by a table in a file, which can be printed and regenerated from measurements.

use super::{decode_tiles, hopper, mma};
use device::cuda::{ComputeCapability, CudaCapabilities};
use ops::attention::AttentionProblem;
use ops::{ChoiceTable, Preference};
use std::sync::LazyLock;

/// The table: one rule per line, columns separated by tabs, after a header line.
pub(super) const TABLE: &str = include_str!("choice.tsv");

/// A row of the table; it applies when every column matches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Rule {
    /// The GPU generation; any when `None`.
    pub(super) compute: Option<ComputeCapability>,
    /// Maximum number of queries of the longest sequence.
    pub(super) queries: usize,
    /// Maximum of max(D, Dv).
    pub(super) channels: usize,
    /// Whether keys are paged; either when `None`.
    pub(super) paged: Option<bool>,
    pub(super) variant: &'static str,
}

pub(super) const ANY: usize = usize::MAX;

/// The parsed table; the first matching row whose variant can run is used. With few queries most SMs are idle unless the keys
/// are split among blocks, which `decode` and `hopper_latent` do; these also read paged keys.
static RULES: LazyLock<Vec<Rule>> = LazyLock::new(|| read(TABLE).unwrap_or_default());

/// Parses a table.
///
/// # Errors
/// The line that is not a rule.
pub(super) fn read(table: &str) -> Result<Vec<Rule>, String> {
    let rule = |line: &str| {
        let [compute, queries, channels, paged, variant] =
            line.split('\t').collect::<Vec<_>>().try_into().ok()?;
        let most = |cell: &str| if cell == "any" { Some(ANY) } else { cell.parse().ok() };
        Some(Rule {
            compute: match compute {
                "any" => None,
                _ => {
                    let (major, minor) = compute.split_once('.')?;
                    Some(ComputeCapability::new(major.parse().ok()?, minor.parse().ok()?))
                }
            },
            queries: most(queries)?,
            channels: most(channels)?,
            paged: match paged {
                "either" => None,
                "yes" => Some(true),
                "no" => Some(false),
                _ => return None,
            },
            variant: super::VARIANTS
                .iter()
                .map(|known| known.name)
                .find(|name| *name == variant)?,
        })
    };
    let lines = table.lines().skip(1);
    lines.map(|line| rule(line).ok_or_else(|| format!("invalid rule: `{line}`"))).collect()
}

/// Formats rules as a table.
pub(super) fn write(rules: &[Rule]) -> String {
    let lines = rules.iter().map(|rule| rule.cells().join("\t") + "\n");
    "compute\tqueries\tchannels\tpaged\tvariant\n".to_owned() + &lines.collect::<String>()
}

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

    /// The row as text, for the list of variants that were not used.
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

/// The variants for a problem in order of preference.
pub(super) fn preferred(problem: &AttentionProblem, here: &CudaCapabilities) -> Vec<Preference> {
    let fitting = RULES.iter().filter(|rule| rule.fits(problem, here));
    fitting.map(|rule| Preference { variant: rule.variant, rule: rule.words() }).collect()
}

/// All choice tables of attention, for printing.
pub(super) fn choice_tables() -> Vec<ChoiceTable> {
    let variants = ChoiceTable {
        title: "variant on CUDA: the first row that fits and whose variant can run",
        columns: &["compute capability", "queries up to", "channels up to", "paged", "variant"],
        rows: RULES.iter().map(Rule::cells).collect(),
    };
    vec![variants, hopper::table(), mma::table(), decode_tiles::table()]
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::attention::VARIANTS;

    #[test]
    fn table_names_every_variant_and_round_trips() {
        let rules = read(TABLE).unwrap();
        for variant in VARIANTS {
            assert!(rules.iter().any(|rule| rule.variant == variant.name), "{}", variant.name);
        }
        assert_eq!(write(&rules), TABLE, "the table is as it would be written");
    }

    #[test]
    fn error_names_the_invalid_line() {
        for line in ["9.0\t16\t1024\teither", "9\t1\t2\tno\tmma", "any\tany\t64\tno\tnothing"] {
            let error = read(&format!("{}\n{line}\n", TABLE.lines().next().unwrap())).unwrap_err();
            assert!(error.contains(line), "{error}");
        }
    }
}
