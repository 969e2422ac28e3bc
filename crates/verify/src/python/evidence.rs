//! Compares the kernels that a profiler saw with the names of a peer's kernels.

use serde::Deserialize;

/// A kernel on a GPU, or an operator or function elsewhere, and how often it ran.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
pub(super) struct ObservedCall {
    pub(super) name: String,
    pub(super) count: u64,
}

/// The observed kernels, divided into the peer's own and others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Evidence {
    own: Vec<ObservedCall>,
    other: Vec<ObservedCall>,
}

/// Maximum names shown, and the length they are cut to: C++ names can have kilobytes.
const SHOWN: usize = 8;
const LENGTH: usize = 90;

impl Evidence {
    /// `patterns` are substrings of its kernels' names, empty for all; `not` are substrings of others' names.
    pub(super) fn of(seen: Vec<ObservedCall>, patterns: &[String], not: &[String]) -> Self {
        let has =
            |name: &str, parts: &[String]| parts.iter().any(|part| name.contains(part.as_str()));
        let (own, other) = seen.into_iter().filter(|seen| seen.count > 0).partition(|seen| {
            (patterns.is_empty() || has(&seen.name, patterns)) && !has(&seen.name, not)
        });
        Self { own, other }
    }

    /// Launches of its kernels.
    pub(super) fn launches(&self) -> u64 {
        self.own.iter().map(|seen| seen.count).sum()
    }

    /// `flash_fwd_kernel x1, fill_kernel x2`, its own first.
    pub(super) fn text(&self) -> String {
        list(self.own.iter().chain(&self.other))
    }

    /// Why it is no evidence; `None` if its own kernels ran.
    pub(super) fn gap(&self, patterns: &[String]) -> Option<Gap> {
        if self.launches() > 0 {
            None
        } else if self.other.is_empty() {
            Some(Gap::Nothing)
        } else {
            let wanted = patterns.join(" or ");
            let ran = list(self.other.iter());
            Some(Gap::Others(format!("none of its kernels ran (expected {wanted}), but {ran}")))
        }
    }
}

/// The missing evidence.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Gap {
    /// The profiler saw nothing at all.
    Nothing,
    /// Only others' kernels ran; the message.
    Others(String),
}

fn list<'a>(seen: impl Iterator<Item = &'a ObservedCall>) -> String {
    let names: Vec<String> =
        seen.map(|seen| format!("{} x{}", short(&seen.name), seen.count)).collect();
    match names.len().checked_sub(SHOWN) {
        None | Some(0) => names.join(", "),
        Some(more) => format!("{} and {more} more", names[..SHOWN].join(", ")),
    }
}

/// A kernel's name without return type, arguments and trailing template arguments.
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
            let seen = seen
                .iter()
                .map(|(name, count)| ObservedCall { name: (*name).to_owned(), count: *count });
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
        let others = "none of its kernels ran (expected flash_fwd), but Memset (Device) x1, pytorch_flash::flash_fwd_kernel<Traits> x2";
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
