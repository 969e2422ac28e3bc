//! Formats numbers for people. NaN and infinities are formatted as such.

pub(crate) use facts::byte_count as bytes;

/// A file's size in decimal units.
pub(crate) fn file_size(count: u64) -> String {
    match count {
        0..1_000 => format!("{count} B"),
        1_000..1_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", count as f64 / 1e6),
        _ => format!("{:.2} GB", count as f64 / 1e9),
    }
}

/// A cache size, which is a whole number of KiB or MiB.
pub(crate) fn cache_size(count: u64) -> String {
    const MIB: u64 = 1 << 20;
    const KIB: u64 = 1 << 10;
    if count >= MIB && count.is_multiple_of(MIB) {
        format!("{} MiB", count / MIB)
    } else if count.is_multiple_of(KIB) && count > 0 {
        format!("{} KiB", count / KIB)
    } else {
        format!("{count} B")
    }
}

/// A duration given in milliseconds.
pub(crate) fn duration(millis: f64) -> String {
    if !millis.is_finite() || millis < 0.0 {
        return format!("{millis} ms");
    }
    // Each limit is the first value that rounding would print as one of the next unit.
    if millis < 0.9995 {
        format!("{} µs", significant(millis * 1e3, 3))
    } else if millis < 999.5 {
        format!("{} ms", significant(millis, 3))
    } else if millis < 59_950.0 {
        format!("{:.1} s", millis / 1e3)
    } else {
        let seconds = (millis / 1e3).round() as u64;
        match seconds / 3600 {
            0 => format!("{} min {:02} s", seconds / 60, seconds % 60),
            hours => format!("{hours} h {:02} min", seconds % 3600 / 60),
        }
    }
}

/// A number with this many significant digits and no exponent; integer digits are never rounded away.
pub(crate) fn significant(value: f64, digits: u32) -> String {
    if !value.is_finite() {
        return format!("{value}");
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let decimals =
        |value: f64| (digits as i32 - 1 - value.abs().log10().floor() as i32).clamp(0, 12) as usize;
    let first = format!("{value:.*}", decimals(value));
    // Rounding can add a digit: 9.996 with three digits is 10.0, not 10.00.
    match first.parse::<f64>() {
        Ok(rounded) if rounded != 0.0 => format!("{value:.*}", decimals(rounded)),
        _ => first,
    }
}

/// A relative or absolute error.
pub(crate) fn error(value: f64) -> String {
    if value == 0.0 {
        "0".to_owned()
    } else if value.is_finite() {
        format!("{value:.1e}")
    } else {
        format!("{value}")
    }
}

/// An optional error; a dash if there is none.
pub(crate) fn error_or_dash(value: Option<f64>) -> String {
    value.map_or_else(|| ABSENT.to_owned(), error)
}

/// Percent with one decimal.
pub(crate) fn percent(value: f64) -> String {
    format!("{value:.1} %")
}

/// A change in percent with its sign and one decimal.
pub(crate) fn signed_percent(value: f64) -> String {
    format!("{value:+.1} %")
}

/// Shown for a missing value.
pub(crate) const ABSENT: &str = "–";

/// A count with its noun: `1 row`, `2 rows`.
pub fn count(number: usize, noun: &str) -> String {
    format!("{number} {}", plural(number, noun))
}

/// The noun in singular or plural.
pub(crate) fn plural(number: usize, noun: &str) -> String {
    match (number, noun.strip_suffix('y')) {
        (1, _) => noun.to_owned(),
        (_, None) if noun.ends_with('s') => format!("{noun}es"),
        (_, Some(stem)) if !stem.ends_with(['a', 'e', 'o', 'u']) => format!("{stem}ies"),
        _ => format!("{noun}s"),
    }
}

/// An RFC 3339 time in UTC without `T` and `Z`: `2025-11-03 09:12:44 UTC`. Other text is returned unchanged.
pub(crate) fn time(rfc3339: &str) -> String {
    let parts = rfc3339.strip_suffix('Z').and_then(|rest| rest.split_once('T'));
    match parts {
        Some((date, clock)) => {
            let clock = clock.split_once('.').map_or(clock, |(whole, _)| whole);
            format!("{date} {clock} UTC")
        }
        None => rfc3339.to_owned(),
    }
}

/// `0-4, 6-14` for ascending numbers.
pub(crate) fn ranges(numbers: &[u32]) -> String {
    let mut runs: Vec<(u32, u32)> = Vec::new();
    for number in numbers {
        match runs.last_mut() {
            Some((_, last)) if last.checked_add(1) == Some(*number) => *last = *number,
            _ => runs.push((*number, *number)),
        }
    }
    let words = runs.iter().map(|(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first}-{last}"),
    });
    words.collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_formatted_for_people() {
        let check = |got: String, expect: &str| assert_eq!(got, expect);
        check(file_size(12_345), "12.3 kB");
        check(cache_size(48 << 10), "48 KiB");
        check(cache_size(2 << 20), "2 MiB");
        check(cache_size(0), "0 B");
        check(duration(0.0123), "12.3 µs");
        check(duration(0.99951), "1.00 ms");
        check(duration(999.7), "1.0 s");
        check(duration(59_960.0), "1 min 00 s");
        check(duration(3_599_900.0), "1 h 00 min");
        check(duration(192_000.0), "3 min 12 s");
        check(significant(1234.5, 3), "1234");
        check(significant(0.012345, 3), "0.0123");
        check(significant(9.996, 3), "10.0");
        check(significant(99.96, 3), "100");
        check(significant(-2.5, 3), "-2.50");
        check(significant(f64::NAN, 3), "NaN");
        check(error(3.21e-7), "3.2e-7");
        check(error(0.0), "0");
        check(error(f64::INFINITY), "inf");
        check(error_or_dash(None), "–");
        check(percent(61.44), "61.4 %");
        check(count(1, "row"), "1 row");
        check(count(0, "row"), "0 rows");
        check(count(3, "library"), "3 libraries");
        check(count(3, "day"), "3 days");
        check(count(2, "pass"), "2 passes");
        check(time("2025-11-03T09:12:44.123Z"), "2025-11-03 09:12:44 UTC");
        check(time("yesterday"), "yesterday");
    }
}
