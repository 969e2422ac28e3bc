//! Assigns GPUs to ranks.

use super::Hello;
use facts::CompactSort;
use std::collections::BTreeMap;

/// Local rank and index in the list of ranks.
type LocalRank = (u32, usize);

/// The GPUs of each rank, in their order; `None` for all visible ones. Ranks of one system that see the same GPUs
/// divide them by their local ranks; ranks with different GPUs keep them. Surplus ranks get none.
pub(super) fn of(ranks: &[&Hello]) -> Vec<Option<Vec<String>>> {
    let mut alike: BTreeMap<(&str, &[String]), Vec<LocalRank>> = BTreeMap::new();
    for (at, hello) in ranks.iter().enumerate() {
        let key = (hello.boot.as_str(), hello.gpus.as_slice());
        alike.entry(key).or_default().push((hello.local_rank, at));
    }
    let mut shares = vec![None; ranks.len()];
    for ((_, gpus), mut sharing) in alike {
        if sharing.len() < 2 || gpus.is_empty() {
            continue;
        }
        sharing.compact_sort();
        let each = (gpus.len() / sharing.len()).max(1);
        for (place, (_, at)) in sharing.into_iter().enumerate() {
            let own = gpus.iter().skip(place * each).take(each);
            shares[at] = Some(own.cloned().collect());
        }
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranks_of_one_host_divide_common_gpus() {
        // Boot ID, local rank and GPUs of each rank, and the expected assignment.
        let check = |ranks: &[(&str, u32, &str)], expect: &[Option<&str>]| {
            let hello = |(boot, local_rank, gpus): &(&str, u32, &str)| Hello {
                version: String::new(),
                rank: 0,
                size: 1,
                local_rank: *local_rank,
                host: String::new(),
                boot: (*boot).to_owned(),
                gpus: gpus.split_whitespace().map(str::to_owned).collect(),
                drawn: String::new(),
                proof: String::new(),
            };
            let hellos: Vec<Hello> = ranks.iter().map(hello).collect();
            let got = of(&hellos.iter().collect::<Vec<_>>());
            let got: Vec<Option<String>> =
                got.into_iter().map(|own| own.map(|own| own.join(" "))).collect();
            let expect: Vec<Option<String>> =
                expect.iter().map(|own| own.map(str::to_owned)).collect();
            assert_eq!(got, expect, "{ranks:?}");
        };
        // With one rank per host, each has all of its GPUs.
        check(&[("a", 0, "g0 g1"), ("b", 0, "g2 g3")], &[None, None]);
        check(&[("a", 1, "g0 g1"), ("a", 0, "g0 g1")], &[Some("g1"), Some("g0")]);
        check(&[("a", 0, "g0 g1 g2 g3"), ("a", 1, "g0 g1 g2 g3")], &[Some("g0 g1"), Some("g2 g3")]);
        // The scheduler assigned different GPUs.
        check(&[("a", 0, "g0"), ("a", 1, "g1")], &[None, None]);
        // More ranks than GPUs: timings of a shared GPU are meaningless.
        check(&[("a", 0, "g0"), ("a", 1, "g0"), ("b", 0, "")], &[Some("g0"), Some(""), None]);
        check(&[("a", 0, ""), ("a", 1, "")], &[None, None]);
    }
}
