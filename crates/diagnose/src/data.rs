//! Tables of what was published: each row carries where it was read and when.

pub(crate) mod cuda_drivers;
pub(crate) mod ptx_isa;
pub(crate) mod torch_builds;
pub(crate) mod torch_series;
pub(crate) mod torch_symbols;

/// Where a row was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Source {
    /// The document, script or package.
    pub(crate) what: &'static str,
    /// The day it was read, or of the revision that was read.
    pub(crate) date: &'static str,
}

impl std::fmt::Display for Source {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "table of firstlight: {} ({})", self.what, self.date)
    }
}

#[cfg(test)]
pub(crate) fn assert_cited(source: &Source) {
    assert!(source.what.len() > 10, "{source} names no document");
    let date: Vec<&str> = source.date.split('-').collect();
    assert!(
        matches!(date[..], [year, month, day] if year.len() == 4 && month.len() == 2 && day.len() == 2),
        "{source} has no date"
    );
}
