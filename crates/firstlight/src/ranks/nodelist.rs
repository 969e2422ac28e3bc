//! Slurm's short forms: names of nodes, and task counts per node.

/// The variable with this node's index in Slurm's lists.
pub(super) const NODE: &str = "SLURM_NODEID";

/// The first name of a list such as `gpu[01-04,07],login`; `None` for other texts.
pub(super) fn first(list: &str) -> Option<String> {
    let list = list.trim();
    // A comma within brackets separates numbers, not names.
    let mut depth = 0;
    let end = list.find(|letter| {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            _ => {}
        }
        letter == ',' && depth == 0
    });
    let mut rest = &list[..end.unwrap_or(list.len())];
    let mut name = String::new();
    // `rack[1-2]node[01-16]`: the first of each pair of brackets.
    while let Some((before, after)) = rest.split_once('[') {
        let (numbers, behind) = after.split_once(']')?;
        let first = numbers.split([',', '-']).next()?;
        name += before;
        name += first;
        rest = behind;
    }
    name += rest;
    let odd = |letter: char| !(letter.is_ascii_alphanumeric() || "-_.:".contains(letter));
    (!name.is_empty() && !name.contains(odd)).then_some(name)
}

/// Tasks of the node with this index, from counts such as `2(x3),1`; `None` for a plain number, or without an index.
pub(super) fn tasks_here(counts: &str, node: Option<&str>) -> Option<u32> {
    let place: u32 = node?.trim().parse().ok()?;
    let mut before = 0_u32;
    for part in counts.split(',') {
        let (tasks, times) = match part.trim().split_once("(x") {
            Some((tasks, times)) => (tasks, times.strip_suffix(')')?.parse().ok()?),
            None => (part.trim(), 1_u32),
        };
        before = before.checked_add(times)?;
        if place < before {
            return tasks.parse().ok();
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_forms_are_read() {
        for (list, expect) in [
            ("gpu01", Some("gpu01")),
            ("gpu[01-04,07],login", Some("gpu01")),
            ("a,b", Some("a")),
            ("rack[1-2]node[03-16]", Some("rack1node03")),
            ("host.example.org,b", Some("host.example.org")),
            ("gpu[01", None),
            ("", None),
            ("a b", None),
        ] {
            assert_eq!(first(list).as_deref(), expect, "{list}");
        }
        for (counts, node, expect) in [
            ("4", Some("0"), Some(4)),
            ("2(x3),1", Some("2"), Some(2)),
            ("2(x3),1", Some("3"), Some(1)),
            ("2(x3),1", Some("4"), None),
            ("4", None, None),
            ("2(x", Some("0"), None),
        ] {
            assert_eq!(tasks_here(counts, node), expect, "{counts} {node:?}");
        }
    }

    proptest::proptest! {
        #![proptest_config(proptest::test_runner::Config { cases: 20_000, ..Default::default() })]
        #[test]
        fn no_list_makes_it_panic(text in "[a-z0-9,\\[\\]()x-]{0,24}", node in "[0-9]{0,3}") {
            let _ = (first(&text), tasks_here(&text, Some(&node)));
        }
    }
}
