use crate::rules::{RULES, Rule};

/// A rule id as users type it, normalised: lower case, `-` for `_`.
pub(crate) fn normalise(id: &str) -> String {
    id.trim().to_ascii_lowercase().replace('_', "-")
}

/// The rule whose id is nearest to a misspelt one; `None` if none is near enough.
pub fn nearest(id: &str) -> Option<&'static Rule> {
    let wanted = normalise(id);
    let ids: Vec<&str> = RULES.iter().map(|rule| rule.id).collect();
    if let Some(near) = nearest_name(&wanted, &ids) {
        return RULES.iter().find(|rule| rule.id == near);
    }
    // A word that only one id has selects its rule.
    let mut sharing = RULES.iter().filter(|rule| rule.id.split('-').any(|word| word == wanted));
    match (sharing.next(), sharing.next()) {
        (Some(rule), None) => Some(rule),
        _ => None,
    }
}

/// The name nearest to a misspelt one; `None` if none is near enough.
pub fn nearest_name<'a>(typed: &str, names: &[&'a str]) -> Option<&'a str> {
    let wanted = normalise(typed);
    let (distance, name) =
        names.iter().map(|name| (distance(&wanted, name), *name)).min_by_key(|(d, _)| *d)?;
    // Up to a third of the characters may be wrong; beyond that a suggestion would be a guess.
    (distance <= wanted.chars().count() / 3).then_some(name)
}

/// Levenshtein distance in characters, where two exchanged neighbours are one change (optimal string alignment).
fn distance(a: &str, b: &str) -> usize {
    let a: Vec<char> = a.chars().collect();
    let b: Vec<char> = b.chars().collect();
    let mut before = vec![0; b.len() + 1];
    let mut above: Vec<usize> = (0..=b.len()).collect();
    for i in 0..a.len() {
        let mut row = vec![i + 1; b.len() + 1];
        for j in 0..b.len() {
            let substituted = above[j] + usize::from(a[i] != b[j]);
            row[j + 1] = substituted.min(row[j] + 1).min(above[j + 1] + 1);
            if i > 0 && j > 0 && a[i] == b[j - 1] && a[i - 1] == b[j] {
                row[j + 1] = row[j + 1].min(before[j - 1] + 1);
            }
        }
        before = std::mem::replace(&mut above, row);
    }
    above[b.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn misspelt_ids_suggest_their_rule() {
        let check = |typed: &str, expect: Option<&str>| {
            assert_eq!(nearest(typed).map(|rule| rule.id), expect, "{typed}");
        };
        check("cpu-only-torhc", Some("cpu-only-torch"));
        check("CPU_ONLY_TORCH", Some("cpu-only-torch"));
        check("driver-to-old", Some("driver-too-old"));
        check("wsl", Some("wsl-gpu"));
        check("jetson", None);
        check("mismatch", Some("driver-library-mismatch"));
        check("torch", None);
        check("everything-is-slow", None);
        check("", None);
    }

    #[test]
    fn distances() {
        for (a, b, expect) in [
            ("", "abc", 3),
            ("kitten", "sitting", 3),
            ("same", "same", 0),
            ("chekc", "check", 1),
            ("ca", "abc", 3),
        ] {
            assert_eq!(distance(a, b), expect);
            assert_eq!(distance(b, a), expect);
        }
    }
}
