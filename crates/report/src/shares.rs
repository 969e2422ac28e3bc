//! Share of the ceiling that limits a kernel, as text. Older runs did not raise a ceiling that a kernel exceeded; a share above
//! 100 % in such a run means that the ceiling was measured too low, and no figure is shown.

use crate::conditions::ceiling_moved;
use crate::format;
use facts::{BenchReport, BenchRow, CeilingKind, RooflineBound};

/// Percent of the ceiling; `None` if unknown, out of range or cache-resident.
pub(crate) fn percent(row: &BenchRow) -> Option<f64> {
    row.pct_of_ceiling.filter(|share| (0.0..=100.0).contains(share) && !row.cache_resident)
}

/// [`percent`] of a row of a run; `None` also if its ceiling moved while kernels were timed.
pub(crate) fn sound(bench: &BenchReport, row: &BenchRow) -> Option<f64> {
    percent(row).filter(|_| !ceiling_moved(bench, row))
}

/// The share of a row of a run as text, `in doubt` if its ceiling moved.
pub(crate) fn words_in(bench: &BenchReport, row: &BenchRow) -> String {
    match percent(row).is_some() && ceiling_moved(bench, row) {
        true => "in doubt: its ceiling moved".to_owned(),
        false => words(row),
    }
}

/// `61.4 % of GEMM`, `cache-resident`, or a dash.
pub(crate) fn words(row: &BenchRow) -> String {
    match (percent(row), row.pct_of_ceiling) {
        _ if row.cache_resident => "cache-resident".to_owned(),
        (Some(share), _) => format!("{} of {}", format::percent(share), name(row)),
        (None, Some(share)) if share > 100.0 => format!("above the {} measured", name(row)),
        _ => format::ABSENT.to_owned(),
    }
}

/// Which ceiling a share refers to.
pub(crate) fn name(row: &BenchRow) -> &'static str {
    match (row.against, row.bound) {
        (Some(CeilingKind::Read), _) => "read",
        (Some(CeilingKind::Copy), _) | (None, RooflineBound::Memory) => "copy",
        (Some(CeilingKind::GemmF32 | CeilingKind::GemmBf16), _)
        | (None, RooflineBound::Compute) => "GEMM",
    }
}
