//! What earlier runs found out by following imports, kept with the files and folders that the answer depends on: a second look
//! at an environment looks at these and reads none of them.

use crate::Source;
use crate::native::{Fnv, cache};
use crate::source::Folder;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

/// Files that were read, and files and folders that were looked for.
pub(crate) type Trace = BTreeSet<PathBuf>;

/// Answers that nobody asked for in this run drop out once there are this many.
const MOST: usize = 400;

/// The answers of earlier runs and of this one.
#[derive(Debug, Default)]
pub(crate) struct Answers {
    path: Option<PathBuf>,
    known: BTreeMap<String, Kept>,
    asked: BTreeSet<String>,
    changed: bool,
}

/// One answer.
#[derive(Debug, Serialize, Deserialize)]
struct Kept {
    /// The paths of the trace below the site, and others whole.
    paths: Vec<String>,
    /// What all of them were like.
    state: u64,
    answer: Value,
}

impl Answers {
    /// Those kept beside the cache of compiled files; none without one.
    pub(crate) fn beside(cache: Option<&Path>) -> Self {
        let path = cache.map(|cache| cache.with_extension("imports"));
        let bytes = path.as_ref().and_then(|path| std::fs::read(path).ok());
        let known = bytes.and_then(|bytes| cache::parse(&bytes)).unwrap_or_default();
        Self { path, known, ..Self::default() }
    }

    /// The answer to a question about one folder of packages: an earlier one where all that it depends on is as it was, else
    /// what `make` finds, which names what it looked at.
    pub(crate) fn answer<T: Serialize + DeserializeOwned>(
        &mut self,
        source: &Source,
        site: &Path,
        question: &str,
        make: impl FnOnce(&mut Trace) -> T,
    ) -> T {
        // A recorded machine has no files of its own that could change.
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
            self.known.insert(question.to_owned(), Kept { paths, state, answer: value });
            self.changed = true;
        }
        answer
    }

    /// Writes them where anything is new. A file that cannot be written costs time at the next run and nothing else.
    pub(crate) fn keep(mut self) {
        let Some(path) = self.path.filter(|_| self.changed) else { return };
        let (asked, mut room) = (self.asked, MOST);
        self.known.retain(|question, _| {
            room = room.saturating_sub(1);
            room > 0 || asked.contains(question)
        });
        let _ = cache::write(&path, &self.known);
    }
}

/// A number that changes when one of these paths does.
fn state(source: &Source, site: &Path, paths: &[String]) -> u64 {
    let mut state = Fnv::default();
    let site = Folder::open(source, site.to_path_buf());
    for path in paths {
        site.state_of(source, path).iter().for_each(|word| state.word(*word));
    }
    state.0
}

#[cfg(test)]
mod tests {
    use super::Answers;
    use crate::Source;
    use std::path::Path;

    /// The answer after a change, and whether it was found out anew.
    fn check(change: impl FnOnce(&Path), anew: bool) {
        let folder = tempfile::tempdir().unwrap();
        let (site, cache) = (folder.path().join("site"), folder.path().join("cache/native"));
        std::fs::create_dir_all(site.join("a")).unwrap();
        std::fs::write(site.join("a/x.py"), "1").unwrap();
        let ask = || {
            let mut answers = Answers::beside(Some(&cache));
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
        // A file beside it, or where none was, may be what an import finds now.
        check(|site| std::fs::write(site.join("a/y.py"), "").unwrap(), true);
        check(|site| std::fs::create_dir(site.join("b")).unwrap(), true);
        check(|site| std::fs::write(site.join("c.py"), "").unwrap(), false);
    }

    #[test]
    fn a_torn_file_is_no_error() {
        let folder = tempfile::tempdir().unwrap();
        let cache = folder.path().join("native");
        std::fs::write(cache.with_extension("imports"), "firstlight native").unwrap();
        let mut answers = Answers::beside(Some(&cache));
        assert_eq!(answers.answer(&Source::live(), folder.path(), "?", |_| 1), 1);
    }
}
