//! A documented output compared with what the command printed.

use fancy_regex::Regex;

/// Text that differs from run to run or machine to machine, by the name that the pages use.
const NAMED: [(&str, &str); 12] = [
    ("time", r"\d+(\.\d+)? ?(s|ms|µs|ns|minutes|seconds)\b"),
    ("clock", r"\b\d\d:\d\d:\d\dZ"),
    ("rate", r"\d+(\.\d+)? (tokens/s|[kMGT]?i?B/s|[GT]FLOP/s)"),
    ("percent", r"\d+(\.\d+)? ?%"),
    ("size", r"\d+(\.\d+)? ([kMGT]i?)?B\b"),
    ("bytes", r"\b\d{5,} bytes\b"),
    ("error", r"\b\d\.\de-\d+\b"),
    // The processor's cores and its best instruction set.
    ("processor", r"\d+ threads, \w+"),
    ("isa", r"\b(avx512bf16|avx512|avx2|neon|plain)\b"),
    ("python", r"(?<=python)3\.\d+|\b3\.\d+\.\d+\b"),
    ("id", r"\b(chatcmpl-|cmpl-|resp_|msg_)[0-9a-f]+"),
    ("created", "(?<=\"created\":)\\d+"),
];

/// The patterns that `varies` lists.
pub fn patterns(varies: &[String]) -> Result<Vec<(String, Regex)>, String> {
    let pattern = |name: &String| {
        let named = NAMED.iter().find(|(it, _)| it == name).map(|(_, pattern)| *pattern);
        let written = name.strip_prefix('/').and_then(|it| it.strip_suffix('/'));
        let pattern = named.or(written).ok_or_else(|| {
            let names: Vec<&str> = NAMED.iter().map(|(name, _)| *name).collect();
            format!("`varies: {name}` is neither /PATTERN/ nor one of {}", names.join(", "))
        })?;
        let regex = Regex::new(pattern).map_err(|error| format!("{pattern}: {error}"))?;
        Ok((name.clone(), regex))
    };
    varies.iter().map(pattern).collect()
}

/// Whether `documented` equals `printed`. A line `...` matches any lines. With patterns, white space is compared as one
/// space, because a value of another length moves line breaks and columns.
pub fn matches(documented: &[String], printed: &[String], patterns: &[(String, Regex)]) -> bool {
    let unit = |lines: &[String]| -> Vec<String> {
        let lines = trimmed(lines);
        if patterns.is_empty() {
            return lines.iter().map(|line| line.trim_end().to_owned()).collect();
        }
        let rules = Regex::new("─+").expect("a pattern");
        let words: Vec<String> = lines.join(" ").split_whitespace().map(str::to_owned).collect();
        let mut text = words.join(" ");
        for (name, pattern) in patterns {
            text = pattern.replace_all(&text, format!("<{name}>").replace('$', "$$")).into_owned();
        }
        // A word is a unit, so that `...` covers whole words.
        rules
            .replace_all(&text, "─")
            .split(' ')
            .filter(|it| !it.is_empty())
            .map(str::to_owned)
            .collect()
    };
    let parts: Vec<Vec<String>> =
        trimmed(documented).split(|line| line == "...").map(unit).collect();
    in_order(&parts, &unit(printed))
}

/// Whether the first part starts `whole`, the last one ends it, and the others occur between them in order.
fn in_order(parts: &[Vec<String>], whole: &[String]) -> bool {
    let Some((first, rest)) = parts.split_first() else { return whole.is_empty() };
    let Some((last, middle)) = rest.split_last() else { return first == whole };
    let Some(mut open) = whole.strip_prefix(&first[..]) else { return false };
    for part in middle.iter().filter(|part| !part.is_empty()) {
        let Some(at) = open.windows(part.len()).position(|it| it == &part[..]) else {
            return false;
        };
        open = &open[at + part.len()..];
    }
    open.ends_with(last)
}

/// Without empty lines at the end.
fn trimmed(lines: &[String]) -> &[String] {
    let end = lines.iter().rposition(|line| !line.trim().is_empty()).map_or(0, |at| at + 1);
    &lines[..end]
}

/// The new output of the page: the printed lines, with as many lines around `...` as the page has now.
pub fn updated(documented: &[String], printed: &[String]) -> Vec<String> {
    let printed = trimmed(printed);
    let trailing = &documented[trimmed(documented).len()..];
    let documented = trimmed(documented);
    let first = documented.iter().position(|line| line == "...");
    let last = documented.iter().rposition(|line| line == "...");
    let (Some(head), Some(last)) = (first, last) else {
        return [printed, trailing].concat();
    };
    let tail = documented.len() - last - 1;
    if head + tail >= printed.len() {
        return [printed, trailing].concat();
    }
    let elision = ["...".to_owned()];
    [&printed[..head], &elision, &printed[printed.len() - tail..], trailing].concat()
}

/// Whether the lines of `documented` occur in `file` in order.
pub fn occurs(documented: &[String], file: &str) -> Result<(), String> {
    let mut lines = file.lines().map(str::trim);
    for wanted in documented.iter().map(|line| line.trim()).filter(|line| !line.is_empty()) {
        if wanted != "..." && !lines.any(|line| line == wanted) {
            return Err(format!("the recorded file does not have, in this order: {wanted}"));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(documented: &str, printed: &str, varies: &[&str], wanted: bool) {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let varies: Vec<String> = varies.iter().map(|&it| it.to_owned()).collect();
        let patterns = patterns(&varies).unwrap();
        let same = matches(&lines(documented), &lines(printed), &patterns);
        assert_eq!(same, wanted, "{documented:?} and {printed:?}");
    }

    #[test]
    fn compares_exactly_without_patterns() {
        check("a\nb", "a\nb\n\n", &[], true);
        check("a\nb", "a\n b", &[], false);
        check("a", "a\nb", &[], false);
        check("a\n...\nd", "a\nb\nc\nd", &[], true);
        check("a\n...\nc\n...", "a\nb\nc\nd", &[], true);
        check("a\n...\nd", "a\nb\nc", &[], false);
        check("...\nb", "a\nb", &[], true);
        check("a\n...\na", "a", &[], false);
    }

    #[test]
    fn pattern_hides_only_its_values() {
        check("took 1.2 s here", "took 33 ms here", &["time"], true);
        check("took 1.2 s here", "took 33 ms there", &["time"], false);
        check("took 1.2 s, 3 MB", "took 33 ms, 4 MB", &["time"], false);
        check("took 1.2 s, 3 MB", "took 33 ms, 4 MB", &["time", "size"], true);
        check("a  12.5 s\n   b", "a 1 s b", &["time"], true);
        check("x 1\n...\nend", "x 2 y 3 end", &[r"/\d/"], true);
        check("x 1", "x 1 y", &[r"/\d/"], false);
    }

    #[test]
    fn update_keeps_lines_around_an_elision() {
        let lines = |text: &str| text.lines().map(str::to_owned).collect::<Vec<_>>();
        let check = |documented: &str, printed: &str, wanted: &str| {
            assert_eq!(updated(&lines(documented), &lines(printed)), lines(wanted));
        };
        check("a\n...\ny\nz\n", "1\n2\n3\n4\n5", "1\n...\n4\n5");
        check("...\nz", "1\n2\n3", "...\n3");
        check("a\nb", "1\n2\n3\n", "1\n2\n3");
        check("a\n\n", "1\n", "1\n\n");
    }

    #[test]
    fn recorded_lines_have_an_order() {
        let lines = ["b".to_owned(), "...".to_owned(), "c".to_owned()];
        assert!(occurs(&lines, "a\n b\nx\nc\n").is_ok());
        assert!(occurs(&lines, "a\nc\nb\n").is_err());
    }
}
