//! Whether what the chosen releases ask of other packages can hold at once.

use super::Reason;
use super::catalogue::Requires;
use super::extension::{Pick, Place};
use super::problem::Limit;
use knowledge::pypi;
use knowledge::torch_series::Fits;
use pep440_rs::Version;

/// One requirement and who has it.
#[derive(Debug, Clone)]
pub(super) struct Asked {
    pub(super) who: String,
    pub(super) requires: Requires,
}

/// Everything that the picks, and the user, ask of packages.
pub(super) fn asked(place: &Place, picks: &[Pick]) -> Vec<Asked> {
    let platform = place.problem.platform(place.python);
    let mut all = Vec::new();
    for pick in picks {
        let item = &place.problem.items[pick.item];
        let Some(release) = pick.release else {
            // What no table knows and what has no exact version is a requirement like those of packages.
            let line = item.requirement();
            all.extend(
                Requires::parse(&line, &item.want.because)
                    .map(|requires| Asked { who: item.want.because.clone(), requires }),
            );
            continue;
        };
        if place.dropped.contains(&Limit::Pins(pick.item)) {
            continue;
        }
        let here = release.requires.iter().filter(|requires| {
            requires.marker.as_ref().is_none_or(|marker| marker.holds(platform))
        });
        let who = format!("{} {}", item.name(), release.text);
        all.extend(here.map(|requires| Asked { who: who.clone(), requires: requires.clone() }));
    }
    all.extend(companion_triton(place, picks));
    all
}

/// torch compiles through triton on GPUs: where its METADATA does not say which, the series does. A triton that was asked
/// for by name may differ, and is flagged.
fn companion_triton(place: &Place, picks: &[Pick]) -> Option<Asked> {
    let torch = place.torch.filter(|torch| torch.build.is_some())?;
    let by_name = place.problem.items.iter().any(|item| item.name() == "triton");
    if by_name || !picks.iter().any(|pick| place.problem.torch == Some(pick.item)) {
        return None;
    }
    let line = format!("triton{}", Fits::Series(torch.series.triton).constraint());
    let requires = Requires::parse(&line, &torch.series.source.to_string())?;
    Some(Asked { who: format!("torch {}", torch.release.text), requires })
}

/// Whether all requirements can hold.
pub(super) fn consistent(place: &Place, picks: &[Pick]) -> Result<(), Reason> {
    let all = asked(place, picks);
    let mut names: Vec<&str> = all.iter().map(|asked| asked.requires.name.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    for name in names {
        let same: Vec<&Asked> = all.iter().filter(|asked| asked.requires.name == name).collect();
        let position = place.problem.items.iter().position(|item| item.name() == name);
        let pick = picks.iter().find(|pick| Some(pick.item) == position);
        let known = pick.and_then(|pick| Some((pick, &pick.release?.version)));
        match (known, position) {
            (Some((_, version)), _) => {
                if let Some(asked) = same.iter().find(|a| !a.requires.specifiers.contains(version))
                {
                    let text = format!(
                        "{} asks for {}, and {name} {version} was chosen",
                        asked.who, asked.requires.line
                    );
                    return Err(Reason::new(text, &asked.requires.source));
                }
            }
            // A package whose release is not chosen yet is held against these when it is.
            (None, Some(_)) if pick.is_none() => {}
            _ if satisfiable(name, &same) => {}
            _ => return Err(contradiction(&same)),
        }
    }
    Ok(())
}

/// Whether some version satisfies everything that is asked of a package: one that is known, or one that is named.
fn satisfiable(name: &str, asked: &[&Asked]) -> bool {
    let named = asked.iter().flat_map(|asked| asked.requires.specifiers.iter());
    let named = named.map(|specifier| specifier.version().clone());
    let known = pypi::releases(name).filter_map(|row| row.version.parse::<Version>().ok());
    // Beyond every version that is named there may be newer and older ones.
    let ends = [Version::new([0]), Version::new([u64::from(u32::MAX)])];
    named
        .chain(known)
        .chain(ends)
        .any(|version| asked.iter().all(|asked| asked.requires.specifiers.contains(&version)))
}

fn contradiction(asked: &[&Asked]) -> Reason {
    let of = |a: &Asked| format!("{} asks for {}", a.who, a.requires.line);
    let pairs =
        asked.iter().enumerate().flat_map(|(i, a)| asked[i + 1..].iter().map(move |b| (a, b)));
    let two = pairs.into_iter().find(|(a, b)| !satisfiable(&a.requires.name, &[a, b]));
    match two {
        Some((a, b)) => {
            Reason::new(format!("{}, {} for {}", of(a), b.who, b.requires.line), &a.requires.source)
        }
        None => {
            let all: Vec<String> = asked.iter().map(|asked| of(asked)).collect();
            Reason::new(all.join(", "), asked.first().map_or("", |a| a.requires.source.as_str()))
        }
    }
}
