//! What a profiler saw run, held against the names that a peer's kernels have.

use serde::Deserialize;

/// Something that ran, and how often: a kernel on a GPU, an operator or a function elsewhere.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct Seen {
    pub(super) name: String,
    pub(super) count: u64,
}

/// What was seen, sorted into a peer's own and the rest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Evidence {
    own: Vec<Seen>,
    other: Vec<Seen>,
}

/// Names shown at most, and the length they are cut to: C++ has names of kilobytes.
const SHOWN: usize = 8;
const LENGTH: usize = 90;

impl Evidence {
    /// `patterns` are parts of its own names, all names where there is none; `not` are parts of others' names.
    pub(super) fn of(seen: Vec<Seen>, patterns: &[String], not: &[String]) -> Self {
        let has =
            |name: &str, parts: &[String]| parts.iter().any(|part| name.contains(part.as_str()));
        let (own, other) = seen.into_iter().filter(|seen| seen.count > 0).partition(|seen| {
            (patterns.is_empty() || has(&seen.name, patterns)) && !has(&seen.name, not)
        });
        Self { own, other }
    }

    /// Launches of its own.
    pub(super) fn launches(&self) -> u64 {
        self.own.iter().map(|seen| seen.count).sum()
    }

    /// `flash_fwd_kernel x1, fill_kernel x2`, its own first.
    pub(super) fn text(&self) -> String {
        list(self.own.iter().chain(&self.other))
    }

    /// Why it proves nothing; `None` when its own kernels ran.
    pub(super) fn gap(&self, patterns: &[String]) -> Option<Gap> {
        if self.launches() > 0 {
            None
        } else if self.other.is_empty() {
            Some(Gap::Nothing)
        } else {
            let wanted = patterns.join(" or ");
            let ran = list(self.other.iter());
            Some(Gap::Others(format!("no kernel of its own ran (wanted {wanted}), but {ran}")))
        }
    }
}

/// What evidence lacks.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Gap {
    /// The profiler saw nothing at all.
    Nothing,
    /// Others' kernels ran; the sentence.
    Others(String),
}

fn list<'a>(seen: impl Iterator<Item = &'a Seen>) -> String {
    let names: Vec<String> =
        seen.map(|seen| format!("{} x{}", short(&seen.name), seen.count)).collect();
    match names.len().checked_sub(SHOWN) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..SHOWN].join(", ")),
    }
}

/// A kernel's name without its type, its arguments and the ends of its templates.
fn short(name: &str) -> String {
    let name = name.strip_prefix("void ").unwrap_or(name).replace("(anonymous namespace)::", "");
    let name = match name.split_once('(') {
        // `Memset (Device)` has no arguments.
        Some((before, _)) if !before.is_empty() && !before.ends_with(' ') => before,
        _ => &name,
    };
    let mut short: String = name.chars().take(LENGTH).collect();
    if short.len() < name.len() {
        short.push('…');
    }
    short
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_own_kernels_count() {
        let check = |seen: &[(&str, u64)],
                     own: &[&str],
                     not: &[&str],
                     expect: (u64, Option<Gap>),
                     text: &str| {
            let seen =
                seen.iter().map(|(name, count)| Seen { name: (*name).to_owned(), count: *count });
            let own: Vec<String> = own.iter().map(|part| (*part).to_owned()).collect();
            let not: Vec<String> = not.iter().map(|part| (*part).to_owned()).collect();
            let evidence = Evidence::of(seen.collect(), &own, &not);
            assert_eq!((evidence.launches(), evidence.gap(&own)), expect);
            assert_eq!(evidence.text(), text);
        };
        let flash =
            [("Memset (Device)", 1), ("void pytorch_flash::flash_fwd_kernel<Traits>(Params)", 2)];
        let shown = "pytorch_flash::flash_fwd_kernel<Traits> x2, Memset (Device) x1";
        check(&flash, &["flash_fwd"], &[], (2, None), shown);
        let others = "no kernel of its own ran (wanted flash_fwd), but Memset (Device) x1, pytorch_flash::flash_fwd_kernel<Traits> x2";
        let all = "Memset (Device) x1, pytorch_flash::flash_fwd_kernel<Traits> x2";
        check(
            &flash,
            &["flash_fwd"],
            &["pytorch_flash"],
            (0, Some(Gap::Others(others.to_owned()))),
            all,
        );
        check(&[], &["flash_fwd"], &[], (0, Some(Gap::Nothing)), "");
        check(&[("flash_fwd", 0)], &["flash_fwd"], &[], (0, Some(Gap::Nothing)), "");
        check(&[("mine.f", 3)], &[], &[], (3, None), "mine.f x3");
        let softmax = "void (anonymous namespace)::softmax_warp_forward<float>(float*, int)";
        check(&[(softmax, 1)], &["softmax"], &[], (1, None), "softmax_warp_forward<float> x1");
    }
}
