//! Caches results of following imports, with the files and folders that each result depends on: a second run checks
//! these and reads none of them.

use crate::Source;
use crate::native::{Fnv, cache};
use crate::source::Folder;
use rayon::prelude::*;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Files that were read, and files and folders that were looked up.
pub(crate) type Trace = BTreeSet<PathBuf>;

/// Results not used in this run are dropped beyond this number.
const MAX_ANSWERS: usize = 400;

/// The results of earlier runs and of this one.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    path: Option<PathBuf>,
    known: BTreeMap<String, CachedAnswer>,
    asked: BTreeSet<String>,
    changed: bool,
}

/// A cached result.
#[derive(Debug, Serialize, Deserialize)]
struct CachedAnswer {
    /// The paths of the trace, relative to site-packages if below it.
    paths: Vec<String>,
    /// A hash of their state.
    state: u64,
    answer: Value,
}

impl Answers {
    /// The cache next to that of compiled files; empty without one.
    pub(crate) fn open(cache: Option<&Path>) -> Self {
        let path = cache.map(|cache| cache.with_extension("imports"));
        let bytes = path.as_ref().and_then(|path| std::fs::read(path).ok());
        let known = bytes.and_then(|bytes| cache::parse(&bytes)).unwrap_or_default();
        Self { path, known, ..Self::default() }
    }

    /// The result for one site-packages folder: a cached one if its dependencies are unchanged, or else that of `make`,
    /// which reports its dependencies.
    pub(crate) fn answer<T: Serialize + DeserializeOwned>(
        &mut self,
        source: &Source,
        site: &Path,
        question: &str,
        make: impl FnOnce(&mut Trace) -> T,
    ) -> T {
        // A recorded machine's files do not change.
        if self.path.is_none() || !source.is_live() {
            return make(&mut Trace::new());
        }
        self.asked.insert(question.to_owned());
        let kept = self.known.get(question).filter(|it| state(source, site, &it.paths) == it.state);
        let earlier = kept.and_then(|it| T::deserialize(&it.answer).ok());
        if let Some(answer) = earlier {
            return answer;
        }
        let mut trace = Trace::new();
        let answer = make(&mut trace);
        let paths: Vec<String> = trace
            .iter()
            .filter_map(|path| Some(path.strip_prefix(site).unwrap_or(path).to_str()?.to_owned()))
            .collect();
        if let Ok(value) = serde_json::to_value(&answer) {
            let state = state(source, site, &paths);
            self.known.insert(question.to_owned(), CachedAnswer { paths, state, answer: value });
            self.changed = true;
        }
        answer
    }

    /// Writes the cache if there are new results. A failure only costs time in the next run.
    pub(crate) fn keep(mut self) {
        let Some(path) = self.path.filter(|_| self.changed) else { return };
        let (asked, mut room) = (self.asked, MAX_ANSWERS);
        self.known.retain(|question, _| {
            room = room.saturating_sub(1);
            room > 0 || asked.contains(question)
        });
        let _ = cache::write(&path, &self.known);
    }
}

/// A hash that changes when one of these paths does.
fn state(source: &Source, site: &Path, paths: &[String]) -> u64 {
    let site = Folder::open(source, site.to_path_buf());
    // A trace has hundreds to thousands of paths, and each costs a system call.
    let states: Vec<[u64; 4]> =
        paths.par_iter().with_min_len(64).map(|path| site.state_of(source, path)).collect();
    let mut state = Fnv::default();
    states.as_flattened().iter().for_each(|word| state.word(*word));
    state.0
}

#[cfg(test)]
mod tests {
    use super::Answers;
    use crate::Source;
    use std::path::Path;

    /// Checks the result after a change, and whether it was recomputed.
    fn check(change: impl FnOnce(&Path), anew: bool) {
        let folder = tempfile::tempdir().unwrap();
        let (site, cache) = (folder.path().join("site"), folder.path().join("cache/native"));
        std::fs::create_dir_all(site.join("a")).unwrap();
        std::fs::write(site.join("a/x.py"), "1").unwrap();
        let ask = || {
            let mut answers = Answers::open(Some(&cache));
            let mut made = false;
            let answer: Option<String> =
                answers.answer(&Source::live(), &site, "what is in x?", |trace| {
                    made = true;
                    trace.extend(["a/x.py", "a", "b"].map(|name| site.join(name)));
                    std::fs::read_to_string(site.join("a/x.py")).ok()
                });
            answers.keep();
            (answer, made)
        };
        assert_eq!(ask(), (Some("1".into()), true));
        assert_eq!(ask(), (Some("1".into()), false));
        change(&site);
        let now = std::fs::read_to_string(site.join("a/x.py")).ok();
        assert_eq!(ask(), (now.clone(), anew));
        assert_eq!(ask(), (now, false));
    }

    #[test]
    fn an_answer_holds_until_something_it_depends_on_changes() {
        check(|_| (), false);
        check(|site| std::fs::write(site.join("a/x.py"), "12").unwrap(), true);
        check(|site| std::fs::remove_file(site.join("a/x.py")).unwrap(), true);
        // A new file may change what an import finds.
        check(|site| std::fs::write(site.join("a/y.py"), "").unwrap(), true);
        check(|site| std::fs::create_dir(site.join("b")).unwrap(), true);
        check(|site| std::fs::write(site.join("c.py"), "").unwrap(), false);
    }

    #[test]
    fn a_torn_file_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("native");
        std::fs::write(cache.with_extension("imports"), "firstlight native").unwrap();
        let mut answers = Answers::open(Some(&cache));
        assert_eq!(answers.answer(&Source::live(), folder.path(), "?", |_| 1), 1);
    }
}
