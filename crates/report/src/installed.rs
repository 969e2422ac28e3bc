//! Kernels of installed packages, each with what its rows prove.

use crate::counts::{Counts, by_reason, status};
use crate::document::Tone;
use crate::format;
use facts::CompactSort;
use facts::ParityRow;

/// A kernel of an installed package that a run checked.
#[derive(Debug, Clone)]
pub(crate) struct Installed<'a> {
    /// `torch.sdpa.flash`.
    pub(crate) name: &'a str,
    /// The package with its version if a call reached it; otherwise the kernel's name.
    pub(crate) package: &'a str,
    pub(crate) op: &'a str,
    pub(crate) counts: Counts,
    /// Its rows in the order of the run; never empty.
    pub(crate) rows: Vec<&'a ParityRow>,
}

/// The installed kernels of a run, in the order in which they first appear.
pub(crate) fn installed<'a>(rows: impl IntoIterator<Item = &'a ParityRow>) -> Vec<Installed<'a>> {
    let mut found: Vec<Installed<'a>> = Vec::new();
    for row in rows {
        let Some(package) = row.peer.as_deref() else { continue };
        let same = |known: &&mut Installed<'_>| known.name == row.variant && known.op == row.op;
        match found.iter_mut().find(same) {
            Some(known) => {
                if known.package == known.name {
                    known.package = package;
                }
                known.rows.push(row);
            }
            None => found.push(Installed {
                name: &row.variant,
                package,
                op: &row.op,
                counts: Counts::default(),
                rows: vec![row],
            }),
        }
    }
    for kernel in &mut found {
        kernel.counts = Counts::of(kernel.rows.iter().copied());
    }
    found
}

/// The rows of firstlight's own kernels.
pub(crate) fn own(rows: &[ParityRow]) -> Vec<ParityRow> {
    rows.iter().filter(|row| row.peer.is_none()).cloned().collect()
}

/// `2 of 18 installed kernels are ready here: torch.sdpa.math, torch.sdpa.flash`.
pub(crate) fn sentence(kernels: &[Installed<'_>]) -> String {
    let ready: Vec<&str> =
        kernels.iter().filter(|kernel| kernel.is_ready()).map(|kernel| kernel.name).collect();
    let of = format::count(kernels.len(), "installed kernel");
    match ready.len() {
        0 => format!("None of {of} is ready here"),
        1 => format!("1 of {of} is ready here: {}", ready[0]),
        number => format!("{number} of {of} are ready here: {}", ready.join(", ")),
    }
}

impl Installed<'_> {
    /// Whether it ran at least one call, and computed every call it ran correctly with its own kernels.
    pub(crate) fn is_ready(&self) -> bool {
        self.counts.pass > 0 && self.counts.bad() == 0 && self.counts.skip == 0
    }

    /// The result of its rows: the worst status; a pass counts before not applicable.
    pub(crate) fn result(&self) -> (Tone, &'static str) {
        let worst = |word: &&str| self.rows.iter().find(|row| status(row).1 == *word);
        let words = ["FAIL", "UNPROVEN", "FALLBACK", "SKIP", "PASS", "NOT RUN", "N/A"];
        words.iter().find_map(worst).map_or((Tone::Plain, "N/A"), |row| status(row))
    }

    /// The kernels that a profiler saw in a call that passed, which prove that it ran.
    pub(crate) fn seen(&self) -> Option<&str> {
        let passed = self.rows.iter().find(|row| status(row).1 == "PASS");
        passed.map(|row| row.evidence.as_str()).filter(|seen| !seen.is_empty())
    }

    /// The most frequent reason among the rows of its result, and how many of these rows have another one.
    pub(crate) fn why(&self) -> Option<(String, usize)> {
        let (_, word) = self.result();
        let rows = self.rows.iter().copied().filter(|row| status(row).1 == word);
        if word == "PASS" {
            return None;
        }
        let mut reasons = by_reason(rows);
        // Stable: the first of equals.
        reasons.compact_sort_by_key(|some| std::cmp::Reverse(some.rows.len()));
        let others = reasons.iter().skip(1).map(|some| some.rows.len()).sum();
        Some((reasons.into_iter().next()?.reason, others))
    }
}
