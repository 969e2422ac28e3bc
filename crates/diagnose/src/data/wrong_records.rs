//! Packages whose wheels are published with a RECORD that disagrees with their own compiled files: the publisher changed
//! a library, for example its RPATH, after RECORD was written. PyPI and the installers accept such wheels.

use facts::Dist;
use knowledge::Citation;

/// A package and the wheel whose files were compared with its RECORD.
struct WrongRecord {
    package: &'static str,
    #[cfg_attr(
        not(test),
        allow(dead_code, reason = "a row without a source is rejected by a test")
    )]
    source: Citation,
}

const WRONG_RECORDS: [WrongRecord; 1] = [WrongRecord {
    package: "pynvvideocodec",
    source: Citation::of(
        "PyPI's wheel of PyNvVideoCodec 2.0.4 for CPython 3.11: RECORD has 2402945 bytes for PyNvVideoCodec_121, the wheel 2439136",
        "2026-11-30",
    ),
}];

/// Whether the sizes in the RECORD of a distribution are known to be wrong as published.
pub(crate) fn record_is_wrong(dist: &str) -> bool {
    WRONG_RECORDS.iter().any(|row| Dist::same_name(row.package, dist))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_row_has_a_source() {
        for row in &WRONG_RECORDS {
            assert_eq!(row.source.check(), Ok(()), "{}", row.package);
        }
        assert!(record_is_wrong("PyNvVideoCodec") && !record_is_wrong("numpy"));
    }
}
