//! Removes the prefixes that loggers add: times, levels, ranks, process ids, names of containers and services.

/// One line without its prefixes, at most six: `web-1 | [rank0]: ERROR 01-28 03:21:01 [core.py:9] ...`.
pub(super) fn message(line: &str) -> &str {
    let mut rest = line;
    // More prefixes than that are a table, whose cells are the message.
    for _ in 0..6 {
        let text = rest.trim_start_matches([' ', '\t']);
        let prefix = [compose, service, process, bracket, time, level, source, quoted]
            .into_iter()
            .find_map(|prefix| prefix(text));
        match prefix {
            Some(after) if !after.trim().is_empty() => rest = after,
            _ => break,
        }
    }
    rest
}

/// `web-1  | ` of docker compose.
fn compose(text: &str) -> Option<&str> {
    let (name, after) = text.split_once('|')?;
    let name = name.trim_end();
    let named = |c: char| c.is_ascii_alphanumeric() || "_.-".contains(c);
    (!name.is_empty() && name.chars().all(named) && after.starts_with(' ')).then_some(after)
}

/// `Oct 04 13:19:39 host unit[394]: ` of journald and syslog.
fn service(text: &str) -> Option<&str> {
    const MONTHS: [&str; 12] =
        ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];
    let (month, rest) = word(text)?;
    let (day, rest) = word(rest)?;
    let (clock, rest) = word(rest)?;
    let (_host, rest) = word(rest)?;
    let (unit, rest) = word(rest)?;
    let dated = MONTHS.contains(&month) && day.parse::<u8>().is_ok() && is_time(clock);
    (dated && unit.ends_with(':')).then_some(rest)
}

/// `(EngineCore_0 pid=271)` of vLLM and Ray.
fn process(text: &str) -> Option<&str> {
    let (inside, after) = text.strip_prefix('(')?.split_once(')')?;
    inside.contains("pid=").then(|| after.trim_start_matches(':'))
}

/// `[rank0]:`, `[2026-11-22 10:11:12,123]`, `[core.py:396]`, `[ 5122.118]`.
fn bracket(text: &str) -> Option<&str> {
    let (inside, after) = text.strip_prefix('[')?.split_once(']')?;
    let number = inside.chars().any(|c| c.is_ascii_digit());
    // A notebook prints the file of a frame as a link.
    let link = after.starts_with("(http");
    let plain = inside.len() <= 80 && !inside.starts_with("Errno") && !link;
    ((number || LEVELS.contains(&inside)) && plain).then(|| after.trim_start_matches(':'))
}

/// `2026-11-22T10:11:12.123Z`, `2026-11-22`, `10:11:12,123`, `01-28`.
fn time(text: &str) -> Option<&str> {
    let (first, rest) = word(text)?;
    let first = first.trim_end_matches([',', ':']);
    (is_date(first) || is_time(first)).then(|| rest.trim_start().trim_start_matches(['|', '-']))
}

const LEVELS: [&str; 10] =
    ["ERROR", "WARNING", "WARN", "INFO", "DEBUG", "CRITICAL", "FATAL", "TRACE", "E", "W"];

/// `ERROR 01-28 03:21:01`: a level is part of the message unless a time or a source follows, or pytest printed it.
fn level(text: &str) -> Option<&str> {
    let (first, rest) = word(text)?;
    let (second, _) = word(rest)?;
    let dated = is_date(second) || is_time(second) || source(rest.trim_start()).is_some();
    let pytest = first == "E" && rest.starts_with("   ");
    (LEVELS.contains(&first) && dated || pytest).then_some(rest)
}

/// `engine.py:387]`, `[core.py:396]`.
fn source(text: &str) -> Option<&str> {
    let (first, rest) = word(text)?;
    (first.contains(".py:") && first.ends_with(']')).then_some(rest)
}

/// `> ` of a quoted mail.
fn quoted(text: &str) -> Option<&str> {
    text.strip_prefix("> ")
}

fn word(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start_matches([' ', '\t']);
    let end = text.find([' ', '\t', '\n']).unwrap_or(text.len());
    (end > 0).then(|| text.split_at(end))
}

/// Digits with `-` or `/` between them, with or without a time after them.
fn is_date(word: &str) -> bool {
    let date = word.split('T').next().unwrap_or_default();
    let parts: Vec<&str> = date.split(['-', '/']).collect();
    let digits = |part: &&str| (1..=4).contains(&part.len()) && part.parse::<u16>().is_ok();
    (2..=3).contains(&parts.len()) && parts.iter().all(digits)
}

/// `03:21:01`, with or without fractions and a zone.
fn is_time(word: &str) -> bool {
    let clock = word.split(['.', ',', 'Z', '+']).next().unwrap_or_default();
    let parts: Vec<&str> = clock.split(':').collect();
    let digits = |part: &&str| part.len() == 2 && part.parse::<u8>().is_ok();
    parts.len() == 3 && parts.iter().all(digits)
}

#[cfg(test)]
mod tests {
    use super::message;

    #[test]
    fn prefixes_are_removed() {
        let words = "RuntimeError: No CUDA GPUs are available";
        for prefix in [
            "",
            "    ",
            "web-1  | ",
            "[rank0]: ",
            "(APIServer pid=1179246) ",
            "(EngineCore_0 pid=271) ERROR 05-23 09:31:47 [core.py:396] ",
            "ERROR 01-28 03:21:01 engine.py:387] ",
            "2022-11-02T18:33:01.2371532Z ",
            "2026-11-22 10:11:12,123 - ",
            "2026-11-22 10:11:12 | ERROR    | ",
            "Oct 04 13:19:39 llm sd-webui-forge-start[394]: ",
            "[ 5122.118] ",
            "[2026-11-22 10:11:12,123] [ERROR] ",
            "trainer-0 | [rank1]: ",
            "E   ",
            "> ",
        ] {
            let line = format!("{prefix}{words}");
            assert!(message(&line).trim_start().ends_with(words), "{line}");
            if !prefix.contains('|') || prefix.contains("web") || prefix.contains("trainer") {
                assert_eq!(message(&line).trim_start(), words, "{line}");
            }
        }
        for whole in [
            "[Errno 2] No such file or directory: '/usr/bin/nvcc'",
            "WARNING: Ignoring invalid distribution ~orch",
            "| NVIDIA-SMI 580.95  |",
            "12:30",
            "",
        ] {
            assert_eq!(message(whole), whole);
        }
    }
}
