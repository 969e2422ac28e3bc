//! The oldest Linux driver each CUDA major version runs on, and the driver branches that are maintained.

use crate::packed::table;
use crate::table::{minor, rows};
use crate::{Minor, Source, Version};
use serde::Deserialize;
use std::sync::LazyLock;

/// The oldest driver of one CUDA major version.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Floor {
    /// CUDA major version.
    pub cuda: u32,
    /// The oldest Linux driver.
    pub driver: String,
    /// A driver branch still maintained that serves this major version, for the words of a remedy.
    pub branch: u32,
    /// Where it was read.
    pub source: Source,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Branch {
    /// The newest CUDA release it knows itself.
    #[serde(deserialize_with = "minor")]
    cuda: Minor,
    branch: u32,
    #[allow(dead_code, reason = "a row without a source does not parse")]
    source: Source,
}

static FLOORS: LazyLock<Vec<Floor>> = LazyLock::new(|| rows(table!("cuda_drivers.toml"), "floor"));
static BRANCHES: LazyLock<Vec<Branch>> =
    LazyLock::new(|| rows(table!("cuda_drivers.toml"), "branch"));

/// Every CUDA major version torch 2 was built with, rising.
pub fn floors() -> &'static [Floor] {
    &FLOORS
}

/// The row of a CUDA major version.
pub fn floor(cuda: u32) -> Option<&'static Floor> {
    floors().iter().find(|row| row.cuda == cuda)
}

/// The newest CUDA major version a driver runs; `None` for a driver older than every row.
pub fn newest_major(driver: &Version) -> Option<u32> {
    let reaches = |row: &&Floor| {
        Version::parse(&row.driver).is_some_and(|floor| driver.compare(&floor).is_ge())
    };
    floors().iter().rev().find(reaches).map(|row| row.cuda)
}

/// What a driver accepts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Reach {
    /// Newest CUDA major version.
    pub major: u32,
    /// Newest CUDA release it names itself, where it was asked.
    pub limit: Option<Minor>,
}

impl Reach {
    /// What a driver accepts by its own word, else by its version; `None` when neither is known.
    pub fn of(limit: Option<Minor>, version: Option<&str>) -> Option<Self> {
        match (limit, version.and_then(Version::parse)) {
            (Some(limit), _) => Some(Self { major: limit.0, limit: Some(limit) }),
            (None, Some(version)) => Some(Self { major: newest_major(&version)?, limit: None }),
            (None, None) => None,
        }
    }
}

/// Which of several CUDA releases suits a driver best: smaller is better. The newest release it names, then newer ones of
/// the same major version, which also run, nearest first. Without a named limit, the oldest release of the newest major
/// version it runs; with no word from the driver, of CUDA 12, which most drivers in use run.
pub fn preference(cuda: Minor, reach: Option<Reach>) -> (u32, u32) {
    let number = |minor: Minor| minor.0.saturating_mul(100).saturating_add(minor.1);
    match reach.map(|reach| (reach.major, reach.limit)) {
        Some((_, Some(limit))) if cuda <= limit => (0, number(limit) - number(cuda)),
        Some((_, Some(limit))) => (1, number(cuda) - number(limit)),
        Some((major, None)) => (major.abs_diff(cuda.0), cuda.1),
        None => (12u32.abs_diff(cuda.0), cuda.1),
    }
}

/// A driver branch whose own CUDA release is this one or newer; the newest known where none is.
pub fn branch(cuda: Minor) -> u32 {
    let row = BRANCHES.iter().find(|row| row.cuda >= cuda).or(BRANCHES.last());
    row.map_or(0, |row| row.branch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_branch_knows_its_cuda_and_older_ones() {
        assert_eq!(
            [(11, 8), (12, 9), (13, 0), (13, 1), (13, 2), (14, 0)].map(branch),
            [580, 580, 580, 595, 595, 595]
        );
    }

    #[test]
    fn drivers_reach_their_cuda_major() {
        for (driver, expect) in [
            ("580.159.04", Some(13)),
            ("580", Some(13)),
            ("575.57.08", Some(12)),
            ("525.60.13", Some(12)),
            ("525.60.11", Some(11)),
            ("450.80.02", Some(11)),
            ("440.33", None),
        ] {
            assert_eq!(newest_major(&Version::parse(driver).expect(driver)), expect, "{driver}");
        }
    }

    #[test]
    fn rows_rise() {
        assert!(floors().windows(2).all(|pair| pair[0].cuda < pair[1].cuda));
        assert!(BRANCHES.windows(2).all(|pair| pair[0].cuda < pair[1].cuda));
    }
}
