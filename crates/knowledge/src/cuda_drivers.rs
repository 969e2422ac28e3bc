//! The minimum Linux driver of each CUDA major version, and the maintained driver branches.

use crate::packed::table;
use crate::table::{minor, rows};
use crate::{Citation, Minor, Version};
use serde::Deserialize;
use std::sync::LazyLock;

/// The minimum driver of one CUDA major version.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct MinimumDriver {
    /// CUDA major version.
    pub cuda: u32,
    /// The oldest Linux driver.
    pub driver: String,
    /// A maintained driver branch that supports this major version, for remedies.
    pub branch: u32,
    /// Source of the row.
    pub source: Citation,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Branch {
    /// The newest CUDA release it reports as supported.
    #[serde(deserialize_with = "minor")]
    cuda: Minor,
    branch: u32,
    #[allow(dead_code, reason = "a row without a source does not parse")]
    source: Citation,
}

static MINIMUM_DRIVERS: LazyLock<Vec<MinimumDriver>> =
    LazyLock::new(|| rows(table!("cuda_drivers.toml"), "floor"));
static BRANCHES: LazyLock<Vec<Branch>> =
    LazyLock::new(|| rows(table!("cuda_drivers.toml"), "branch"));

/// Every CUDA major version that torch 2 was built with, in ascending order.
pub fn minimum_drivers() -> &'static [MinimumDriver] {
    &MINIMUM_DRIVERS
}

/// The row of a CUDA major version.
pub fn minimum_driver(cuda: u32) -> Option<&'static MinimumDriver> {
    minimum_drivers().iter().find(|row| row.cuda == cuda)
}

/// The newest CUDA major version a driver runs; `None` for a driver older than every row.
pub fn newest_major(driver: &Version) -> Option<u32> {
    let reaches = |row: &&MinimumDriver| {
        Version::parse(&row.driver).is_some_and(|minimum| driver.compare(&minimum).is_ge())
    };
    minimum_drivers().iter().rev().find(reaches).map(|row| row.cuda)
}

/// The CUDA versions that a driver supports.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct CudaSupport {
    /// Newest CUDA major version.
    pub major: u32,
    /// Newest CUDA release that the driver reports; `None` if it was not queried.
    pub limit: Option<Minor>,
}

impl CudaSupport {
    /// Uses the release that the driver reports, otherwise its version; `None` if neither is known. A driver older than
    /// every row runs only CUDA releases before them.
    pub fn of(limit: Option<Minor>, version: Option<&str>) -> Option<Self> {
        match (limit, version.and_then(Version::parse)) {
            (Some(limit), _) => Some(Self { major: limit.0, limit: Some(limit) }),
            (None, Some(version)) => {
                let before = || minimum_drivers().first().map_or(0, |row| row.cuda - 1);
                Some(Self { major: newest_major(&version).unwrap_or_else(before), limit: None })
            }
            (None, None) => None,
        }
    }
}

/// Sort key of a CUDA release for a driver; the smallest key is preferred. If the driver reports a limit, releases up to it
/// come first, the newest first; then newer ones, the oldest first, which may run by minor version compatibility. Without a
/// limit, the oldest release of the newest supported major version comes first; without a driver, the oldest of CUDA 12, which
/// most drivers support.
pub fn preference(cuda: Minor, reach: Option<CudaSupport>) -> (u32, u32) {
    let number = |minor: Minor| minor.0.saturating_mul(100).saturating_add(minor.1);
    match reach.map(|reach| (reach.major, reach.limit)) {
        Some((_, Some(limit))) if cuda <= limit => (0, number(limit) - number(cuda)),
        Some((_, Some(limit))) => (1, number(cuda) - number(limit)),
        Some((major, None)) => (major.abs_diff(cuda.0), cuda.1),
        None => (12u32.abs_diff(cuda.0), cuda.1),
    }
}

/// The oldest maintained branch that reports this CUDA release or a newer one; otherwise the newest branch.
pub fn branch(cuda: Minor) -> u32 {
    let row = BRANCHES.iter().find(|row| row.cuda >= cuda).or(BRANCHES.last());
    row.map_or(0, |row| row.branch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn branch_supports_the_cuda_release() {
        assert_eq!(
            [(11, 8), (12, 9), (13, 0), (13, 1), (13, 2), (14, 0)].map(branch),
            [580, 580, 580, 595, 595, 595]
        );
    }

    #[test]
    fn driver_version_determines_the_newest_cuda_major() {
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
    fn driver_older_than_every_row_is_limited_to_earlier_releases() {
        let support = CudaSupport::of(None, Some("440.33.01"));
        assert_eq!(support, Some(CudaSupport { major: 10, limit: None }));
        assert_eq!(CudaSupport::of(None, None), None);
    }

    #[test]
    fn rows_are_in_ascending_order() {
        assert!(minimum_drivers().windows(2).all(|pair| pair[0].cuda < pair[1].cuda));
        assert!(BRANCHES.windows(2).all(|pair| pair[0].cuda < pair[1].cuda));
    }
}
