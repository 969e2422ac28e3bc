//! Majority vote on the bits of outputs: the same binary computes the same bits on GPUs of one kind.

use super::GpuRows;
use facts::{BitDifference, ParityRow};
use std::collections::{BTreeMap, BTreeSet};

/// The result of a vote.
pub(super) struct BitComparison {
    pub(super) compared: u32,
    pub(super) varying: Vec<String>,
    pub(super) differing: Vec<BitDifference>,
}

pub(super) fn vote(gpus: &[&GpuRows<'_>]) -> BitComparison {
    let mut checks: BTreeMap<String, BTreeMap<u32, &str>> = BTreeMap::new();
    let mut kernels: BTreeMap<String, String> = BTreeMap::new();
    for gpu in gpus {
        for row in gpu.own() {
            let Some(bits) = &row.bits else { continue };
            let ParityRow { op, case, dtype, variant, .. } = row;
            let check = format!("{op} {case} {dtype} {variant}");
            kernels.insert(check.clone(), format!("{op} {variant}"));
            checks.entry(check).or_default().insert(gpu.part.index, bits);
        }
    }
    let mut vote = BitComparison { compared: 0, varying: Vec::new(), differing: Vec::new() };
    let mut varying = BTreeSet::new();
    for (check, bits) in checks.into_iter().filter(|(_, bits)| bits.len() > 1) {
        if bits.values().all(|bits| *bits == ParityRow::VARIES) {
            varying.extend(kernels.get(&check).cloned());
            continue;
        }
        vote.compared += 1;
        // A GPU whose bits vary between runs agrees with no other GPU.
        let votes = |of: &str| match of {
            ParityRow::VARIES => 1,
            of => bits.values().filter(|bits| **bits == of).count(),
        };
        if bits.values().all(|of| votes(of) == bits.len()) {
            continue;
        }
        let usual = bits.values().find(|of| 2 * votes(of) > bits.len());
        let odd = |usual: &&str| {
            bits.iter().filter(|(_, bits)| *bits != usual).map(|(index, _)| *index).collect()
        };
        vote.differing.push(BitDifference {
            check,
            odd: usual.map(odd).unwrap_or_default(),
            bits: bits.iter().map(|(index, bits)| (*index, (*bits).to_owned())).collect(),
        });
    }
    vote.varying = varying.into_iter().collect();
    vote
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpus::records::{checked, part};

    #[test]
    fn gpus_that_differ_from_the_majority_are_odd() {
        // The number of compared checks, the odd GPUs if they differ, and the number of varying kernels.
        type Expect<'a> = (u32, Option<&'a [u32]>, usize);
        let check = |bits: &[Option<&str>], (compared, odd, varying): Expect<'_>| {
            let parity: Vec<_> = bits.iter().map(|bits| [checked("a", *bits)]).collect();
            let gpus: Vec<GpuRows<'_>> = (0..)
                .zip(&parity)
                .map(|(index, rows)| GpuRows {
                    backend: facts::BackendKind::Cuda,
                    part: part(index),
                    parity: rows,
                    bench: None,
                })
                .collect();
            let vote = vote(&gpus.iter().collect::<Vec<_>>());
            let found = vote.differing.first().map(|differ| differ.odd.as_slice());
            assert_eq!(
                (vote.compared, found, vote.varying.len()),
                (compared, odd, varying),
                "{bits:?}"
            );
        };
        let (a, b, c, varies) = (Some("aa"), Some("bb"), Some("cc"), Some(ParityRow::VARIES));
        check(&[a, a], (1, None, 0));
        check(&[a, b, a, a], (1, Some(&[1]), 0));
        check(&[b, a, a, c, a], (1, Some(&[0, 3]), 0));
        // Without a majority no GPU is odd.
        check(&[a, b], (1, Some(&[]), 0));
        check(&[a, a, b, b], (1, Some(&[]), 0));
        // A kernel whose bits depend on the order of its blocks is not compared; one that varies on a single GPU is.
        check(&[varies, varies], (0, None, 1));
        check(&[a, varies, a], (1, Some(&[1]), 0));
        check(&[a, varies], (1, Some(&[]), 0));
        check(&[a, varies, varies], (1, Some(&[]), 0));
        // A check with bits on one GPU only is not compared.
        check(&[a, None], (0, None, 0));
        check(&[a, None, a], (1, None, 0));
    }

    #[test]
    fn peer_and_cpu_rows_are_not_compared() {
        let peer = ParityRow { peer: Some("torch".into()), ..checked("a", Some("bb")) };
        let cpu = ParityRow { backend: facts::BackendKind::Cpu, ..checked("a", Some("bb")) };
        let (one, other) = ([checked("a", Some("aa"))], [peer, cpu, checked("b", Some("bb"))]);
        let one =
            GpuRows { backend: facts::BackendKind::Cuda, part: part(0), parity: &one, bench: None };
        let other = GpuRows {
            backend: facts::BackendKind::Cuda,
            part: part(1),
            parity: &other,
            bench: None,
        };
        assert_eq!(vote(&[&one, &other]).compared, 0);
    }
}
