//! The packages and environments that a text is about.

use facts::{Dist, PyEnv};
use std::collections::HashSet;

/// The words of a text that can be names of distributions, normalised.
pub(super) fn names_in(text: &str) -> Vec<String> {
    words(text).map(Dist::normalise).collect()
}

fn words(text: &str) -> impl Iterator<Item = &str> {
    let words = text.split(|c: char| !(c.is_ascii_alphanumeric() || matches!(c, '-' | '_' | '.')));
    words.map(|word| word.trim_matches(['.', '-', '_']))
}

/// Those of the distributions, by normalised names, that a text names. A log has a million words, most of them numbers
/// or repeated.
pub(super) fn named_in(text: &str, names: Vec<String>) -> Vec<String> {
    let mut begins = [false; 256];
    names
        .iter()
        .filter_map(|name| name.bytes().next())
        .for_each(|first| begins[usize::from(first)] = true);
    let may_be = |word: &&str| {
        word.bytes().next().is_some_and(|first| begins[usize::from(first.to_ascii_lowercase())])
    };
    let words: HashSet<&str> = words(text).filter(may_be).collect();
    let words: HashSet<String> = words.into_iter().map(Dist::normalise).collect();
    names.into_iter().filter(|name| words.contains(name)).collect()
}

/// Distributions whose names are also ordinary words.
pub(super) const PLAIN_WORDS: [&str; 14] = [
    "accelerate",
    "attrs",
    "build",
    "click",
    "datasets",
    "evaluate",
    "fire",
    "packaging",
    "pip",
    "regex",
    "requests",
    "rich",
    "torch",
    "wheel",
];

/// The environments that a text is about. A text that names files of an environment is about no other, except one that
/// the user named.
pub(super) fn environments_of(text: &str, envs: &[PyEnv]) -> Vec<PyEnv> {
    let mut named = Vec::new();
    for mark in ["/site-packages/", "/dist-packages/"] {
        for (at, _) in text.match_indices(mark) {
            let begin = text[..at].rfind(|c: char| c.is_whitespace() || "'\"(=`".contains(c));
            named.push(&text[begin.map_or(0, |begin| begin + 1)..at + mark.len() - 1]);
        }
    }
    let absolute: Vec<&str> = named.into_iter().filter(|path| path.starts_with('/')).collect();
    let meant = |env: &&PyEnv| {
        env.found_by == "--venv"
            || absolute.iter().any(|path| {
                env.site_packages.iter().any(|folder| folder == path)
                    || path.starts_with(&format!("{}/", env.root.trim_end_matches('/')))
            })
    };
    match absolute.is_empty() {
        true => envs.to_vec(),
        false => envs.iter().filter(meant).cloned().collect(),
    }
}
