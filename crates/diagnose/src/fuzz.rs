//! Property tests on altered texts, requirements and versions: no panic, and no answer without a remedy.

use crate::requirement;
use crate::rules::RULES;
use crate::test_support::machines;
use knowledge::Version;
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// Fragments that are inserted between and inside the words of a log.
const PIECES: [&str; 12] =
    ["\n", "\r\n", "\u{1b}[31m", "\u{1b}[", "\t", "\0", "`", "\u{e9}", "\u{fffd}", "(", "*", "{x}"];

/// A sample text of a rule after random edits.
fn pasted() -> impl Strategy<Value = String> {
    let samples: Vec<&str> =
        RULES.iter().flat_map(|rule| rule.texts).map(|text| text.sample).collect();
    let changes = vec((any::<Index>(), any::<Index>(), 0u8..4, any::<Index>()), 0..6);
    (any::<Index>(), changes).prop_map(move |(which, changes)| {
        let mut text: Vec<char> = samples[which.index(samples.len())].chars().collect();
        for (from, to, kind, piece) in changes {
            let (from, to) = (from.index(text.len() + 1), to.index(text.len() + 1));
            let (from, to) = (from.min(to), from.max(to));
            match kind {
                0 => drop(text.drain(from..to.min(from + 30))),
                1 => text.truncate(to),
                2 => drop(text.splice(from..from, PIECES[piece.index(PIECES.len())].chars())),
                _ => text.extend_from_within(from..to.min(from + 200)),
            }
        }
        text.into_iter().collect()
    })
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4_000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn altered_samples_do_not_panic(text in pasted()) {
        let machine = machines::a10();
        let matches = crate::explain(&text, &machine, &[]);
        prop_assert!(matches.len() <= RULES.len());
        for found in &matches {
            prop_assert!(!found.pattern.is_empty(), "{}", found.rule.id);
        }
        let known = crate::knows(&text);
        prop_assert!(known || matches.is_empty());
        prop_assert!(!known || crate::explain_text(&text, &machine, &[], &[]).answers());
        let _ = crate::out_of_memory_in(&text);
    }

    #[test]
    fn arbitrary_requirements_and_versions_do_not_panic(
        line in "[A-Za-z0-9_.-]{0,8}[ \\[\\]a-z,]{0,6}[<>=!~]{0,3}[0-9.a-z*+-]{0,12}[ ;a-z_'\"=]{0,20}",
        text in "[v0-9.!a-z+*_-]{0,20}",
    ) {
        if let Some(wanted) = requirement::parse(&line) {
            prop_assert!(!wanted.name.is_empty());
            if let Some(version) = Version::parse(&text) {
                let _ = wanted.allows(&version);
            }
        }
        if let Some(version) = Version::parse(&text) {
            prop_assert!(!version.public().contains('+'));
        }
    }
}
