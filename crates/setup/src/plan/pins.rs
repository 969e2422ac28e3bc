//! Whether what the chosen releases ask of other packages can hold at once.

use super::Reason;
use super::catalogue::Requires;
use super::extension::{Pick, Place};
use super::problem::Limit;
use facts::CompactCollect;
use knowledge::pypi;
use pep440_rs::Version;
use std::collections::BTreeSet;

/// One requirement and who has it.
#[derive(Debug, Clone, Copy)]
pub(super) struct Asked<'a> {
    /// The item whose chosen release asks; torch for what goes with its series.
    item: usize,
    /// Its release; `None` where the user asks.
    release: Option<&'a str>,
    pub(super) requires: &'a Requires,
}

impl Asked<'_> {
    /// `vllm 0.33.0 asks for torch==2.14.0`.
    pub(super) fn words(&self, place: &Place) -> String {
        let item = &place.problem.items[self.item];
        match self.release {
            Some(release) => format!("{} {release} asks for {}", item.name(), self.requires.line),
            None => format!("{} is asked for", self.requires.line),
        }
    }
}

/// Why two choices do not go together, and which items were chosen for that to be so.
#[derive(Debug)]
pub(super) struct Clash {
    pub(super) reason: Reason,
    pub(super) items: BTreeSet<usize>,
}

/// Everything that the picks, and the user, ask of packages.
pub(super) fn asked<'a>(place: &'a Place, picks: &'a [Pick]) -> impl Iterator<Item = Asked<'a>> {
    picks.iter().flat_map(|pick| of_pick(place, pick))
}

fn of_pick<'a>(place: &'a Place, pick: &'a Pick) -> impl Iterator<Item = Asked<'a>> {
    let item = &place.problem.items[pick.item];
    let platform = place.problem.platform(place.python);
    let held = !place.dropped.contains(&Limit::Pins(pick.item));
    let release = pick.release.filter(|_| held);
    let requires = release.map_or(&[][..], |release| release.requires.as_slice());
    // What no table knows has no requirements that are known, but the user's own.
    let own = item.own.as_ref().filter(|_| pick.release.is_none());
    // torch compiles through triton on GPUs: where its METADATA does not say which, the series does.
    let companion = place.companion.filter(|_| place.problem.torch == Some(pick.item));
    let here = requires
        .iter()
        .chain(companion)
        .filter(move |row| row.marker.as_ref().is_none_or(|marker| marker.holds(platform)));
    let name = pick.release.map(|release| release.text.as_str());
    let item = pick.item;
    let theirs = here.map(move |requires| Asked { item, release: name, requires });
    theirs.chain(own.map(move |requires| Asked { item, release: None, requires }))
}

/// Whether the last pick goes with those before it, which go together.
pub(super) fn consistent(place: &Place, picks: &[Pick]) -> Result<(), Clash> {
    let Some(last) = picks.last() else { return Ok(()) };
    let all: Vec<Asked> = asked(place, picks).collect();
    let own = place.problem.items[last.item].name();
    let names: BTreeSet<&str> =
        of_pick(place, last).map(|asked| asked.requires.name.as_str()).chain([own]).compact_set();
    for name in names {
        let same: Vec<Asked> =
            all.iter().filter(|asked| asked.requires.name == name).copied().collect();
        let position = place.problem.items.iter().position(|item| item.name() == name);
        let pick = picks.iter().find(|pick| Some(pick.item) == position);
        match (pick.and_then(|pick| Some((pick, &pick.release?.version))), position) {
            (Some((pick, version)), _) => {
                if let Some(asked) = same.iter().find(|a| !a.requires.specifiers.contains(version))
                {
                    let text = format!("{}, not {version}", asked.words(place));
                    let reason = Reason::new(text, &asked.requires.source);
                    return Err(Clash { reason, items: [asked.item, pick.item].into() });
                }
            }
            // A package whose release is not chosen yet is held against these when it is.
            (None, Some(_)) if pick.is_none() => {}
            _ if same.len() < 2 || satisfiable(name, &same) => {}
            _ => return Err(contradiction(place, name, &same)),
        }
    }
    Ok(())
}

/// Whether some version satisfies everything that is asked of a package: one that is known, or one that is named.
fn satisfiable(name: &str, asked: &[Asked]) -> bool {
    let fits = |version: &Version| asked.iter().all(|a| a.requires.specifiers.contains(version));
    // Beyond every version that is named there may be newer and older ones.
    let ends = [Version::new([0]), Version::new([u64::from(u32::MAX)])];
    let mut named = asked.iter().flat_map(|asked| asked.requires.specifiers.iter());
    named.any(|specifier| fits(specifier.version()))
        || ends.iter().any(fits)
        || pypi::releases(name).any(|row| row.version.parse().is_ok_and(|version| fits(&version)))
}

/// The first two that cannot both hold, or all of them where only all together cannot.
fn contradiction(place: &Place, name: &str, asked: &[Asked]) -> Clash {
    let pairs =
        asked.iter().enumerate().flat_map(|(i, a)| asked[i + 1..].iter().map(move |b| [*a, *b]));
    let two = pairs.into_iter().find(|pair| !satisfiable(name, pair));
    let those = two.map_or_else(|| asked.to_vec(), |pair| pair.to_vec());
    let words: Vec<String> = those.iter().map(|asked| asked.words(place)).collect();
    let source = those.first().map_or("", |asked| asked.requires.source.as_str());
    Clash {
        reason: Reason::new(words.join(", and "), source),
        items: those.iter().map(|asked| asked.item).collect(),
    }
}
