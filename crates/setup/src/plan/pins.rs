//! Checks whether the requirements of the chosen releases are consistent.

use super::Reason;
use super::catalogue::Requires;
use super::extension::{SelectedRelease, SelectionContext};
use super::problem::Limit;
use facts::CompactCollect;
use knowledge::pypi;
use pep440_rs::Version;
use std::collections::BTreeSet;

/// One requirement and its origin.
#[derive(Debug, Clone, Copy)]
pub(super) struct PinnedRequirement<'a> {
    /// The item whose chosen release has the requirement; torch for packages of its series.
    item: usize,
    /// Its release; `None` for a requirement of the user.
    release: Option<&'a str>,
    pub(super) requires: &'a Requires,
}

impl PinnedRequirement<'_> {
    /// `vllm 0.33.0 requires torch==2.14.0`.
    pub(super) fn words(&self, context: &SelectionContext) -> String {
        let item = &context.problem.items[self.item];
        match self.release {
            Some(release) => format!("{} {release} requires {}", item.name(), self.requires.line),
            None => format!("{} is requested", self.requires.line),
        }
    }
}

/// Why choices conflict, and the items that cause it.
#[derive(Debug)]
pub(super) struct PinConflict {
    pub(super) reason: Reason,
    pub(super) items: BTreeSet<usize>,
}

/// All requirements of the picks and of the user.
pub(super) fn asked<'a>(
    context: &'a SelectionContext,
    picks: &'a [SelectedRelease],
) -> impl Iterator<Item = PinnedRequirement<'a>> {
    picks.iter().flat_map(|pick| of_pick(context, pick))
}

fn of_pick<'a>(
    context: &'a SelectionContext,
    pick: &'a SelectedRelease,
) -> impl Iterator<Item = PinnedRequirement<'a>> {
    let item = &context.problem.items[pick.item];
    let platform = context.problem.platform(context.python);
    let applies = !context.dropped.contains(&Limit::Pins(pick.item));
    let release = pick.release.filter(|_| applies);
    let requires = release.map_or(&[][..], |release| release.requires.as_slice());
    // An unknown package has no known requirements except the user's.
    let own = item.own.as_ref().filter(|_| pick.release.is_none());
    // torch compiles through triton on GPUs: if its METADATA does not name a version, the series determines it.
    let companion = context.companion.filter(|_| context.problem.torch == Some(pick.item));
    let here = requires
        .iter()
        .chain(companion)
        .filter(move |row| row.marker.as_ref().is_none_or(|marker| marker.holds(platform)));
    let name = pick.release.map(|release| release.text.as_str());
    let item = pick.item;
    let theirs = here.map(move |requires| PinnedRequirement { item, release: name, requires });
    theirs.chain(own.map(move |requires| PinnedRequirement { item, release: None, requires }))
}

/// Whether the last pick is consistent with the previous ones, which are consistent.
pub(super) fn consistent(
    context: &SelectionContext,
    picks: &[SelectedRelease],
) -> Result<(), PinConflict> {
    let Some(last) = picks.last() else { return Ok(()) };
    let all: Vec<PinnedRequirement> = asked(context, picks).collect();
    let own = context.problem.items[last.item].name();
    let names: BTreeSet<&str> =
        of_pick(context, last).map(|asked| asked.requires.name.as_str()).chain([own]).compact_set();
    for name in names {
        let same: Vec<PinnedRequirement> =
            all.iter().filter(|asked| asked.requires.name == name).copied().collect();
        let position = context.problem.items.iter().position(|item| item.name() == name);
        let pick = picks.iter().find(|pick| Some(pick.item) == position);
        match (pick.and_then(|pick| Some((pick, &pick.release?.version))), position) {
            (Some((pick, version)), _) => {
                if let Some(asked) = same.iter().find(|a| !a.requires.specifiers.contains(version))
                {
                    let text = format!("{}, not {version}", asked.words(context));
                    let reason = Reason::new(text, &asked.requires.source);
                    return Err(PinConflict { reason, items: [asked.item, pick.item].into() });
                }
            }
            // A package without a chosen release is checked when it is chosen.
            (None, Some(_)) if pick.is_none() => {}
            _ if same.len() < 2 || satisfiable(name, &same) => {}
            _ => return Err(contradiction(context, name, &same)),
        }
    }
    Ok(())
}

/// Whether some version satisfies all requirements for a package: a known version, or one in a requirement.
fn satisfiable(name: &str, asked: &[PinnedRequirement]) -> bool {
    let fits = |version: &Version| asked.iter().all(|a| a.requires.specifiers.contains(version));
    // There may be newer and older versions than those in the requirements.
    let ends = [Version::new([0]), Version::new([u64::from(u32::MAX)])];
    let mut named = asked.iter().flat_map(|asked| asked.requires.specifiers.iter());
    named.any(|specifier| fits(specifier.version()))
        || ends.iter().any(fits)
        || pypi::releases(name).any(|row| row.version.parse().is_ok_and(|version| fits(&version)))
}

/// The first two requirements that conflict, or all of them if only all together do.
fn contradiction(
    context: &SelectionContext,
    name: &str,
    asked: &[PinnedRequirement],
) -> PinConflict {
    let pairs =
        asked.iter().enumerate().flat_map(|(i, a)| asked[i + 1..].iter().map(move |b| [*a, *b]));
    let two = pairs.into_iter().find(|pair| !satisfiable(name, pair));
    let those = two.map_or_else(|| asked.to_vec(), |pair| pair.to_vec());
    let words: Vec<String> = those.iter().map(|asked| asked.words(context)).collect();
    let source = those.first().map_or("", |asked| asked.requires.source.as_str());
    PinConflict {
        reason: Reason::new(words.join(", and "), source),
        items: those.iter().map(|asked| asked.item).collect(),
    }
}
