//! Generates the choice table from measurements.

use super::choice::{ANY, Rule, TABLE, read, write};
use super::hopper_latent;
use device::cuda::ComputeCapability;

/// Measured time of a variant for dense causal calls of one size.
#[derive(Debug, Clone, PartialEq)]
pub struct MeasuredVariant {
    /// Queries of each sequence.
    pub queries: usize,
    /// D and Dv.
    pub channels: usize,
    /// The variant.
    pub variant: &'static str,
    /// Its median time, milliseconds.
    pub millis: f64,
}

/// The built-in table (`choice.tsv`) with the rows of one compute capability replaced by the fastest variants. A size between
/// two measured ones uses the larger one's variant, and more queries than measured use that of the most queries. Rows for any
/// GPU are kept, for calls that the fastest variant cannot run.
pub fn tuned(compute: ComputeCapability, measured: &[MeasuredVariant]) -> String {
    let built_in = read(TABLE).unwrap_or_default();
    let mut sizes: Vec<usize> = measured.iter().map(|timed| timed.queries).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let mut steps: Vec<(usize, Vec<Rule>)> = Vec::new();
    for queries in sizes {
        let rules = segments(compute, measured, queries);
        // If more queries have the same fastest variants, one row covers both.
        if steps.last().is_some_and(|(_, before)| same_segments(before, &rules)) {
            steps.pop();
        }
        steps.push((queries, rules));
    }
    let last = steps.len().saturating_sub(1);
    let rows = steps.into_iter().enumerate().flat_map(|(at, (queries, rules))| {
        let queries = if at == last { ANY } else { queries };
        rules.into_iter().map(move |rule| Rule { queries, ..rule })
    });
    // Paged keys and values in the keys are not measured: their rows are kept.
    let (kept, others): (Vec<Rule>, Vec<Rule>) = built_in
        .into_iter()
        .partition(|rule| rule.paged == Some(true) || rule.variant == hopper_latent::VARIANT.name);
    let (elsewhere, general): (Vec<Rule>, Vec<Rule>) = others
        .into_iter()
        .filter(|rule| rule.compute != Some(compute))
        .partition(|rule| rule.compute.is_some());
    let rules: Vec<Rule> = kept.into_iter().chain(rows).chain(elsewhere).chain(general).collect();
    write(&rules)
}

/// One rule for each range of channels with the same fastest variant.
fn segments(compute: ComputeCapability, measured: &[MeasuredVariant], queries: usize) -> Vec<Rule> {
    let mut here: Vec<&MeasuredVariant> =
        measured.iter().filter(|timed| timed.queries == queries).collect();
    here.sort_by(|one, other| {
        one.channels.cmp(&other.channels).then(one.millis.total_cmp(&other.millis))
    });
    here.dedup_by_key(|timed| timed.channels);
    let mut rules: Vec<Rule> = Vec::new();
    for fastest in here {
        if rules.last().is_some_and(|before| before.variant == fastest.variant) {
            rules.pop();
        }
        rules.push(Rule {
            compute: Some(compute),
            queries,
            channels: fastest.channels,
            paged: None,
            variant: fastest.variant,
        });
    }
    rules
}

fn same_segments(one: &[Rule], other: &[Rule]) -> bool {
    let key = |rule: &Rule| (rule.channels, rule.variant);
    one.iter().map(key).eq(other.iter().map(key))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tuned_table_has_the_fastest_variants_and_keeps_rows_of_other_gpus() {
        let mut measured = Vec::new();
        for (queries, decode) in [(1, 0.1), (16, 0.2), (64, 3.0), (1024, 9.0)] {
            for channels in [64, 128, 256, 512] {
                for (variant, millis) in [("decode", decode), ("mma", 1.0)] {
                    let runs = variant == "decode" || channels <= 256;
                    if runs {
                        measured.push(MeasuredVariant { queries, channels, variant, millis });
                    }
                }
            }
        }
        let table = tuned(ComputeCapability::new(8, 6), &measured);
        let rows: Vec<&str> = table.lines().filter(|line| line.starts_with("8.6")).collect();
        assert_eq!(
            rows,
            [
                "8.6\t16\t512\teither\tdecode",
                "8.6\tany\t256\teither\tmma",
                "8.6\tany\t512\teither\tdecode"
            ]
        );
        for line in TABLE.lines() {
            assert!(table.contains(line), "{line} is gone");
        }
        let again = tuned(ComputeCapability::new(9, 0), &measured);
        assert!(!again.contains("hopper\n"), "its own rows are replaced:\n{again}");
        assert!(again.contains("hopper_latent\n"), "rows without measurements are kept:\n{again}");
        assert_eq!(write(&read(&again).unwrap()), again);
    }

    #[test]
    fn table_without_measurements_keeps_only_rows_for_any_gpu_and_hopper_latent() {
        let table = tuned(ComputeCapability::new(9, 0), &[]);
        let rules = read(&table).unwrap();
        let mut own = rules.iter().filter(|rule| rule.compute.is_some());
        assert!(own.all(|rule| rule.variant == "hopper_latent"), "{table}");
    }
}
