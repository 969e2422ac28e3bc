//! The oldest Linux driver each CUDA major version runs on.
//!
//! Since CUDA 11 a program built with any release of a major version runs on every driver of that major version
//! ("minor version compatibility"), so the floor belongs to the major version and not to the release.

use super::Source;
use crate::version::{Minor, Version};

/// The oldest driver of one CUDA major version.
pub(crate) struct Floor {
    /// CUDA major version.
    pub(crate) cuda: u32,
    /// The oldest Linux driver.
    pub(crate) driver: &'static str,
    /// A driver branch still maintained that serves this major version, for the words of a remedy.
    pub(crate) branch: u32,
    /// Where it was read.
    pub(crate) source: Source,
}

const NVIDIA: Source = Source {
    what: "NVIDIA CUDA Compatibility, minor version compatibility, and Supported Drivers and CUDA Toolkit Versions (615)",
    date: "2026-11-21",
};

/// Every CUDA major version torch 2 was built with.
pub(crate) const FLOORS: &[Floor] = &[
    Floor { cuda: 11, driver: "450.80.02", branch: 580, source: NVIDIA },
    Floor { cuda: 12, driver: "525.60.13", branch: 580, source: NVIDIA },
    Floor { cuda: 13, driver: "580", branch: 580, source: NVIDIA },
];

/// The row of a CUDA major version.
pub(crate) fn floor(cuda: u32) -> Option<&'static Floor> {
    FLOORS.iter().find(|row| row.cuda == cuda)
}

/// The newest CUDA major version a driver runs; `None` for a driver older than every row.
pub(crate) fn newest_major(driver: &Version) -> Option<u32> {
    let reaches = |row: &&Floor| {
        Version::parse(row.driver).is_some_and(|floor| driver.compare(&floor).is_ge())
    };
    FLOORS.iter().rev().find(reaches).map(|row| row.cuda)
}

/// Driver branches still maintained and the newest CUDA release each knows itself, rising. 535 ended in June 2026 and 570
/// in February; 580 is kept until June 2028 and is the last one for Maxwell, Pascal and Volta; 595 is kept until March
/// 2027. The branches between them were for new features and ended with their successor.
/// Source: NVIDIA data center driver documentation 615, Supported Drivers and CUDA Toolkit Versions, 2026-11-21.
const BRANCHES: &[(Minor, u32)] = &[((13, 0), 580), ((13, 2), 595)];

/// A driver branch whose own CUDA release is this one or newer; the newest known where none is.
pub(crate) fn branch(cuda: Minor) -> u32 {
    let row = BRANCHES.iter().find(|(release, _)| *release >= cuda).or(BRANCHES.last());
    row.map_or(0, |(_, branch)| *branch)
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
    fn rows_rise_and_cite() {
        for row in FLOORS {
            crate::data::assert_cited(&row.source);
        }
        assert!(FLOORS.windows(2).all(|pair| pair[0].cuda < pair[1].cuda));
    }
}
