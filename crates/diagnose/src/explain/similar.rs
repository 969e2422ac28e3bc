//! The rules most similar to a text that nothing explains.

use crate::rules::{RULES, Rule};
use facts::{CompactCollect, CompactSort};
use std::collections::{BTreeMap, BTreeSet};

/// Maximum number of rules that are shown.
const MAX_RULES: usize = 3;
/// Minimum weight that a rule shares with the text; one common word is not enough.
const LEAST: f64 = 6.0;

/// Words of at least four characters, in lower case.
fn words(text: &str) -> BTreeSet<String> {
    let parts = text.split(|c: char| !c.is_ascii_alphanumeric());
    parts.filter(|word| word.len() >= 4).map(str::to_ascii_lowercase).compact_set()
}

/// The words of a rule: its title, its patterns and samples, and the messages in its description.
fn of_rule(rule: &Rule) -> BTreeSet<String> {
    let texts = rule.texts.iter().flat_map(|text| [text.pattern, text.sample]);
    let shown = rule.about.lines().filter(|line| line.starts_with("  "));
    texts.chain(shown).chain([rule.title]).flat_map(words).compact_set()
}

/// The most similar rules first. A word counts more if fewer rules have it.
pub(super) fn rules(text: &str) -> Vec<&'static Rule> {
    let asked = words(text);
    let all: Vec<(&Rule, BTreeSet<String>)> =
        RULES.iter().map(|rule| (rule, of_rule(rule))).collect();
    let mut rules_with: BTreeMap<&str, usize> = BTreeMap::new();
    for word in all.iter().flat_map(|(_, words)| words) {
        *rules_with.entry(word).or_default() += 1;
    }
    let count = all.len() as f64;
    let weight =
        |word: &String| (count / rules_with.get(word.as_str()).copied().unwrap_or(1) as f64).ln();
    let mut scored: Vec<(f64, &Rule)> = all
        .iter()
        .map(|(rule, words)| (words.intersection(&asked).map(weight).sum::<f64>(), *rule))
        .filter(|(score, _)| *score >= LEAST)
        .collect();
    scored.compact_sort_by(|(one, a), (other, b)| other.total_cmp(one).then(a.id.cmp(b.id)));
    scored.into_iter().take(MAX_RULES).map(|(_, rule)| rule).collect()
}

#[cfg(test)]
mod tests {
    use super::rules;

    #[test]
    fn unmatched_texts_suggest_rules_that_share_rare_words() {
        let found = rules(
            "torchvision::roi_align operator is missing from the registered operators of torchvision",
        );
        assert_eq!(found.first().map(|rule| rule.id), Some("torch-pairs"), "{found:?}");
        assert!(rules("the cat sat on the mat").is_empty());
    }
}
