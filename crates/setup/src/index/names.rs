//! In which releases of a package a module or a name exists, read from the source files in its wheels.

use super::page::PageRelease;
use super::read::{Job, NameJob};
use super::{IndexClient, IndexError};
use knowledge::{NameHistory, NameQuery};
use pep440_rs::{Version, VersionSpecifiers};
use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

/// Releases read at first, spread over all; later ones are between two that differ.
const SAMPLES: usize = 8;
/// Releases read between two that differ, each time.
const BETWEEN: usize = 4;
/// With these numbers three rounds suffice for 500 releases.
const ROUNDS: usize = 4;

/// Whether each release that was read has the name, by its place: `None` if its files do not decide.
type Verdicts = BTreeMap<usize, Option<bool>>;

impl IndexClient<'_> {
    /// The releases that have a module or a name; `None` if no release has it, or if they do not follow each other.
    ///
    /// # Errors
    /// If the index does not answer, or lacks the package.
    pub fn name_history(&self, query: &NameQuery) -> Result<Option<NameHistory>, IndexError> {
        let plain = |text: &str| text.chars().all(|c| c.is_alphanumeric() || "_.".contains(c));
        if !plain(&query.module) || !query.name.as_deref().is_none_or(plain) {
            return Ok(None);
        }
        let page = self.pages(&[&query.package])?.remove(0);
        let mut releases = page.releases(&VersionSpecifiers::empty());
        releases.retain(|release| release.wheel().is_some_and(|wheel| wheel.bytes.is_some()));
        releases.reverse();
        let own: Option<Version> = query.version.as_deref().and_then(|text| text.parse().ok());
        let own = own.as_ref().map(public);
        let place = |version: &Version| releases.iter().position(|it| it.version() == version);
        let own_place = own.as_ref().and_then(place);
        let verdicts = verdicts(releases.len(), own_place, |places| {
            self.read_names(query, places.iter().filter_map(|place| releases.get(*place)))
        })?;
        let Some((first, last)) = span(&verdicts) else { return Ok(None) };
        let lacks_before = verdicts.range(..first).any(|(_, has)| *has == Some(false));
        let lacks_after = verdicts.range(last + 1..).any(|(_, has)| *has == Some(false));
        let version = |place: usize| releases.get(place).map(|it| it.version().to_string());
        let after = verdicts.get(&(last + 1)).is_some_and(|has| *has == Some(false));
        Ok(Some(NameHistory {
            first: version(first).filter(|_| lacks_before),
            last: version(last).filter(|_| lacks_after),
            removed: version(last + 1).filter(|_| after),
            version_has: own_place.and_then(|place| *verdicts.get(&place)?),
            version_is_newer: own_place.is_some_and(|place| place > last),
        }))
    }

    fn read_names<'r>(
        &self,
        query: &NameQuery,
        releases: impl Iterator<Item = &'r PageRelease>,
    ) -> Result<Vec<Option<bool>>, IndexError> {
        let file = format!("{}-{}.json", query.module, query.name.as_deref().unwrap_or_default());
        let mut paths: Vec<PathBuf> = Vec::new();
        let mut jobs = Vec::new();
        for wheel in releases.filter_map(PageRelease::wheel) {
            let folder = wheel.sha256.as_deref().unwrap_or(&wheel.name);
            let path = self.cache.join("wheels").join(folder).join("names").join(&file);
            if !path.exists()
                && let (Some(url), Some(bytes)) = (wheel.url.clone(), wheel.bytes)
            {
                let (module, name) = (query.module.clone(), query.name.clone());
                jobs.push(NameJob { url, bytes, path: path.clone(), module, name });
            }
            paths.push(path);
        }
        let mut job = Job::names(jobs, self.timeout);
        let answers = self.run(&mut job)?;
        if let Some(Err(reason)) = answers.iter().find(|answer| answer.is_err()) {
            return Err(self.unreadable(reason));
        }
        let verdict = |path: &PathBuf| {
            let text = fs::read_to_string(path).ok()?;
            serde_json::from_str(&text).ok()
        };
        Ok(paths.iter().map(verdict).collect())
    }
}

/// The version without its label: an index has `2.8.0` where `2.8.0+cu128` is installed.
fn public(version: &Version) -> Version {
    version.clone().without_local()
}

/// Reads some releases, then those between neighbours that differ.
fn verdicts<E>(
    count: usize,
    own: Option<usize>,
    mut read: impl FnMut(&[usize]) -> Result<Vec<Option<bool>>, E>,
) -> Result<Verdicts, E> {
    let mut verdicts = Verdicts::new();
    let last = count.saturating_sub(1);
    let spread = (0..SAMPLES.min(count)).map(|part| part * last / (SAMPLES.min(count) - 1).max(1));
    let mut wanted: Vec<usize> = spread.chain(own).collect();
    for _ in 0..ROUNDS {
        wanted.retain(|place| !verdicts.contains_key(place));
        wanted.sort_unstable();
        wanted.dedup();
        if wanted.is_empty() {
            break;
        }
        let answers = read(&wanted)?;
        verdicts.extend(wanted.drain(..).zip(answers));
        let decided: Vec<(usize, bool)> =
            verdicts.iter().filter_map(|(place, has)| Some((*place, (*has)?))).collect();
        for pair in decided.windows(2).filter(|pair| pair[0].1 != pair[1].1) {
            let (from, to) = (pair[0].0, pair[1].0);
            let parts = 1..=BETWEEN;
            wanted.extend(parts.map(|part| from + (to - from) * part / (BETWEEN + 1)));
        }
    }
    Ok(verdicts)
}

/// The first and the last release that have it, if none between them lacks it.
fn span(verdicts: &Verdicts) -> Option<(usize, usize)> {
    let mut having =
        verdicts.iter().filter(|(_, has)| **has == Some(true)).map(|(place, _)| *place);
    let first = having.next()?;
    let last = having.next_back().unwrap_or(first);
    let whole = verdicts.range(first..=last).all(|(_, has)| *has != Some(false));
    whole.then_some((first, last))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn search(
        count: usize,
        own: Option<usize>,
        has: &dyn Fn(usize) -> Option<bool>,
    ) -> (Option<(usize, usize)>, usize) {
        let mut read = 0;
        let all = verdicts(count, own, |places| {
            read += places.len();
            Ok::<_, ()>(places.iter().map(|place| has(*place)).collect())
        });
        (span(&all.unwrap()), read)
    }

    #[test]
    fn edges_are_found_by_reading_few_releases() {
        for (from, to) in [(0, 239), (100, 239), (0, 120), (70, 200)] {
            let (found, read) = search(240, None, &|place| Some((from..=to).contains(&place)));
            assert_eq!(found, Some((from, to)));
            assert!(read <= 32, "{read} for {from}..={to}");
        }
    }

    #[test]
    fn no_span_without_a_release_that_has_it_or_with_a_gap() {
        assert_eq!(search(240, None, &|_| Some(false)).0, None);
        assert_eq!(search(0, None, &|_| Some(true)).0, None);
        assert_eq!(search(1, Some(0), &|_| Some(true)).0, Some((0, 0)));
        let gap = |place: usize| Some(!(60..160).contains(&place));
        assert_eq!(search(240, None, &gap).0, None);
        let undecided = |place: usize| (place < 200).then_some(place >= 100);
        assert_eq!(search(240, None, &undecided).0.map(|(first, _)| first), Some(100));
    }
}
