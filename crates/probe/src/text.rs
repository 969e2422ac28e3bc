//! Parsers shared by probes.

pub(crate) mod cpuinfo;
pub(crate) mod sysctl;

/// Number of CPUs in a kernel list such as `0-3,8,10-11`; `None` for other texts.
pub(crate) fn count_cpu_list(text: &str) -> Option<u32> {
    let mut count = 0u32;
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (u32, u32) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
        count = count.checked_add(last.checked_sub(first)?.checked_add(1)?)?;
    }
    Some(count)
}

/// The CPU numbers; `None` for other texts, or for more than any machine has.
pub(crate) fn cpu_list(text: &str) -> Option<std::collections::BTreeSet<u32>> {
    const MAX_CPUS: u32 = 1 << 16;
    count_cpu_list(text).filter(|count| *count <= MAX_CPUS)?;
    let mut cores = std::collections::BTreeSet::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        cores.extend(first.trim().parse::<u32>().ok()?..=last.trim().parse().ok()?);
    }
    Some(cores)
}

/// Bytes of a size with a binary suffix in sysfs's format: `48K`, `2048K`, `1M`.
pub(crate) fn parse_size(text: &str) -> Option<u64> {
    let text = text.trim();
    let (digits, unit) = match text.char_indices().last()? {
        (at, 'K' | 'k') => (&text[..at], 1 << 10),
        (at, 'M' | 'm') => (&text[..at], 1 << 20),
        (at, 'G' | 'g') => (&text[..at], 1 << 30),
        _ => (text, 1),
    };
    digits.trim().parse::<u64>().ok()?.checked_mul(unit)
}

/// Major and minor of a dotted version: `12.8.1` gives (12, 8), `13` gives (13, 0).
pub(crate) fn major_minor(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.trim().split('.');
    let major = parts.next()?.parse().ok()?;
    let minor = parts.next().map_or(Some(0), |minor| minor.parse().ok())?;
    Some((major, minor))
}

/// Whether a word is a dotted number: `580`, `580.159.04`.
pub(crate) fn is_dotted_number(word: &str) -> bool {
    !word.is_empty()
        && word.split('.').all(|part| !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()))
}

#[cfg(test)]
mod tests {
    use super::{count_cpu_list, is_dotted_number, major_minor, parse_size};

    #[test]
    fn cpu_lists() {
        let check = |text, expect| assert_eq!(count_cpu_list(text), expect, "{text:?}");
        check("0-15\n", Some(16));
        check("0", Some(1));
        check("0-3,8,10-11", Some(7));
        check("3-0", None);
        check("", None);
        check("0-4294967295,0-4294967295", None);
    }

    #[test]
    fn sizes() {
        let check = |text, expect| assert_eq!(parse_size(text), expect, "{text:?}");
        check("48K\n", Some(49_152));
        check("1M", Some(1_048_576));
        check("12345", Some(12_345));
        check("18446744073709551615K", None);
        check("K", None);
        check("", None);
    }

    #[test]
    fn versions() {
        assert_eq!(major_minor("13.0.2"), Some((13, 0)));
        assert_eq!(major_minor("13"), Some((13, 0)));
        assert_eq!(major_minor("x.1"), None);
        assert!(is_dotted_number("580.159.04") && is_dotted_number("9"));
        assert!(!is_dotted_number("580.") && !is_dotted_number("") && !is_dotted_number("a.1"));
    }
}
