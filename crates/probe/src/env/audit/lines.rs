//! Lines of RECORDs to compare, and lines that refer to the same file.

use crate::env::record::{self, path_of};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// One distribution's RECORD.
pub(crate) struct RecordText<'a> {
    /// The distribution's name.
    pub(crate) dist: &'a str,
    /// The content of INSTALLER.
    pub(crate) installer: Option<&'a str>,
    /// The text.
    pub(crate) text: &'a str,
    /// Modification time, in seconds since 1970; installers write it last.
    pub(crate) written: Option<i64>,
}

/// The lines of one RECORD, in its order.
#[derive(Default)]
pub(super) struct Lines<'a> {
    lines: Vec<Line<'a>>,
    /// Adjacent lines of one folder.
    runs: Vec<Run>,
}

pub(super) struct Run {
    lines: Range<usize>,
    /// Whether the names are sorted, so that none occurs twice.
    in_order: bool,
}

/// One line to compare.
pub(super) struct Line<'a> {
    pub(super) path: Cow<'a, str>,
    /// Offset of the file name in the path.
    name_at: usize,
    /// `sha256=...`, without padding; empty if RECORD has none.
    pub(super) digest: &'a str,
    pub(super) bytes: Option<u64>,
}

impl RecordText<'_> {
    /// Files of conda were changed after RECORD (its prefix in scripts and settings), and Debian installs scripts
    /// elsewhere than in RECORD.
    fn by_pip(&self) -> bool {
        matches!(self.installer, Some("pip" | "uv"))
    }

    pub(super) fn lines(&self) -> Lines<'_> {
        let by_conda = self.installer == Some("conda");
        let line = |text| {
            let (path, rest) = path_of(text)?;
            // Debian's packages have the lines of the original wheel: `scripts-3.10/distro` is in /usr/bin.
            let outside = path.starts_with("../") || path.starts_with("scripts-");
            let noted = path.split('/').next().is_some_and(|first| first.ends_with(".dist-info"));
            if path.ends_with(".pyc") || noted || (outside && !self.by_pip()) {
                return None;
            }
            let rest = rest.trim_start_matches(',');
            let end = memchr::memrchr(b',', rest.as_bytes());
            let (digest, bytes) = end.map_or(("", ""), |end| (&rest[..end], &rest[end + 1..]));
            // A line with neither is for a file that the installer writes later.
            if digest.is_empty() && bytes.is_empty() {
                return None;
            }
            let bytes = bytes.trim().parse().ok().filter(|_| !by_conda);
            let name_at = memchr::memrchr(b'/', path.as_bytes()).map_or(0, |slash| slash + 1);
            Some(Line { path, name_at, digest: digest.trim().trim_end_matches('='), bytes })
        };
        let mut lines = Lines::default();
        // Most lines are longer; unused capacity is never touched.
        lines.lines.reserve_exact(self.text.len() / 64);
        record::lines(self.text).filter_map(line).for_each(|line| lines.push(line));
        lines
    }
}

impl<'a> Lines<'a> {
    fn push(&mut self, line: Line<'a>) {
        let at = self.lines.len();
        match (self.runs.last_mut(), self.lines.last()) {
            (Some(run), Some(before)) if before.folder() == line.folder() => {
                run.in_order &= before.name() < line.name();
                run.lines.end = at + 1;
            }
            _ => self.runs.push(Run { lines: at..at + 1, in_order: true }),
        }
        self.lines.push(line);
    }

    /// Each run with its lines.
    pub(super) fn runs(&self) -> impl Iterator<Item = (&Run, &[Line<'a>])> {
        self.runs.iter().map(|run| (run, &self.lines[run.lines.clone()]))
    }
}

impl Line<'_> {
    /// Its folder, relative to site-packages.
    pub(super) fn folder(&self) -> &str {
        &self.path[..self.name_at.saturating_sub(1)]
    }

    pub(super) fn name(&self) -> &str {
        &self.path[self.name_at..]
    }
}

/// Lines for the same file with different contents: of several RECORDs, or of one that lists a file twice.
pub(super) fn contested<'l, 'a>(
    lines: &'l [Lines<'a>],
    shared: &HashSet<&str>,
) -> HashMap<&'l str, Vec<(usize, &'l Line<'a>)>> {
    let mut by_path: HashMap<&str, Vec<(usize, &Line<'_>)>> = HashMap::new();
    for (list, lines) in lines.iter().enumerate().filter(|_| !shared.is_empty()) {
        for (_, run) in lines.runs().filter(|(_, run)| shared.contains(run[0].folder())) {
            for line in run {
                by_path.entry(&line.path).or_default().push((list, line));
            }
        }
    }
    by_path.retain(|_, lines| lines.iter().any(|(_, line)| line.digest != lines[0].1.digest));
    by_path
}

/// The folders in which two lines may refer to one file: several RECORDs have files there, or the lines of one are not
/// sorted. They are few, and only their paths have to be stored.
pub(super) fn shared<'l>(lines: &'l [Lines<'_>]) -> HashSet<&'l str> {
    let mut latest: HashMap<&str, (usize, &str)> = HashMap::new();
    let mut shared = HashSet::new();
    for (list, lines) in lines.iter().enumerate() {
        for (run, its) in lines.runs() {
            let (first, last) = (&its[0], &its[its.len() - 1]);
            let earlier = latest.insert(first.folder(), (list, last.name()));
            let continues = earlier.is_none_or(|(at, name)| at == list && name < first.name());
            if !continues || !run.in_order {
                shared.insert(first.folder());
            }
        }
    }
    shared
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_in_bin_are_listed_only_if_pip_or_uv_installed_them() {
        let text = "distro/distro.py,sha256=a,9\nscripts-3.10/distro,sha256=b,9\n../../../bin/distro,sha256=c,9\n";
        let paths = |installer| {
            let listed = RecordText { dist: "distro", installer, text, written: None };
            let lines = listed.lines();
            lines.lines.iter().map(|line| line.path.to_string()).collect::<Vec<_>>()
        };
        for installer in [None, Some("debian"), Some("conda")] {
            assert_eq!(paths(installer), ["distro/distro.py"], "{installer:?}");
        }
        let all = ["distro/distro.py", "scripts-3.10/distro", "../../../bin/distro"];
        assert_eq!(
            (paths(Some("pip")), paths(Some("uv"))),
            (all.map(String::from).to_vec(), all.map(String::from).to_vec())
        );
    }
}
