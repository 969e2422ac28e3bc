//! The lines of RECORDs that are compared, and which of them are for one file.

use crate::env::record::{self, path_of};
use std::borrow::Cow;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// One distribution's RECORD.
pub(crate) struct Listed<'a> {
    /// The distribution's name.
    pub(crate) dist: &'a str,
    /// INSTALLER's word.
    pub(crate) installer: Option<&'a str>,
    /// The text.
    pub(crate) text: &'a str,
    /// When it was written, which installers do last, in seconds since 1970.
    pub(crate) written: Option<i64>,
}

/// The lines of one RECORD, in its order.
#[derive(Default)]
pub(super) struct Lines<'a> {
    lines: Vec<Line<'a>>,
    /// Lines of one folder that stand together.
    runs: Vec<Run>,
}

pub(super) struct Run {
    lines: Range<usize>,
    /// Whether each name comes after the one before it, so that none is there twice.
    in_order: bool,
}

/// One line that is compared.
pub(super) struct Line<'a> {
    pub(super) path: Cow<'a, str>,
    /// Where its name begins in the path.
    name_at: usize,
    /// `sha256=...`, without padding; empty where RECORD has none.
    pub(super) digest: &'a str,
    pub(super) bytes: Option<u64>,
}

impl Listed<'_> {
    /// What was written by conda was changed by it afterwards (its prefix stands in scripts and settings), and Debian
    /// puts programs elsewhere than RECORD says.
    fn by_pip(&self) -> bool {
        matches!(self.installer, Some("pip" | "uv"))
    }

    pub(super) fn lines(&self) -> Lines<'_> {
        let by_conda = self.installer == Some("conda");
        let line = |text| {
            let (path, rest) = path_of(text)?;
            let outside = path.starts_with("../");
            let noted = path.split('/').next().is_some_and(|first| first.ends_with(".dist-info"));
            if path.ends_with(".pyc") || noted || (outside && !self.by_pip()) {
                return None;
            }
            let rest = rest.trim_start_matches(',');
            let end = memchr::memrchr(b',', rest.as_bytes());
            let (digest, bytes) = end.map_or(("", ""), |end| (&rest[..end], &rest[end + 1..]));
            // A line with neither is for what the installer writes later.
            if digest.is_empty() && bytes.is_empty() {
                return None;
            }
            let bytes = bytes.trim().parse().ok().filter(|_| !by_conda);
            let name_at = memchr::memrchr(b'/', path.as_bytes()).map_or(0, |slash| slash + 1);
            Some(Line { path, name_at, digest: digest.trim().trim_end_matches('='), bytes })
        };
        let mut lines = Lines::default();
        // Most lines are longer: what is not needed is never touched.
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
    /// The folder it lies in, from the folder of packages.
    pub(super) fn folder(&self) -> &str {
        &self.path[..self.name_at.saturating_sub(1)]
    }

    pub(super) fn name(&self) -> &str {
        &self.path[self.name_at..]
    }
}

/// Lines for one file, with different contents: of several RECORDs, or of one that names a file twice.
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

/// The folders in which two lines may be for one file: several RECORDs have files there, or the lines of one are not in order.
/// They are few, and only there each path has to be kept.
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
