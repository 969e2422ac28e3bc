//! C's strftime in the C locale, for dates in templates.

use std::fmt::Write as _;
use time::{OffsetDateTime, Weekday};

/// Formats a time.
///
/// # Errors
/// The unknown directive.
pub(super) fn strftime(now: OffsetDateTime, format: &str) -> Result<String, String> {
    let mut out = String::new();
    let mut letters = format.chars();
    while let Some(letter) = letters.next() {
        if letter != '%' {
            out.push(letter);
            continue;
        }
        let mut directive = letters.next();
        // The C library's flag that disables padding.
        let bare = directive == Some('-');
        if bare {
            directive = letters.next();
        }
        let Some(directive) = directive else { return Err("strftime_now ends with %".to_owned()) };
        let written =
            written(now, directive).ok_or_else(|| format!("strftime_now has no %{directive}"))?;
        out += match written.trim_start_matches(['0', ' ']) {
            // A number of zeros only was 0.
            "" if bare && !written.trim().is_empty() => "0",
            stripped if bare && written.trim().bytes().all(|byte| byte.is_ascii_digit()) => {
                stripped
            }
            _ => &written,
        };
    }
    Ok(out)
}

fn written(now: OffsetDateTime, directive: char) -> Option<String> {
    let (month, weekday) = (now.month().to_string(), now.weekday().to_string());
    let (year, day, hour) = (now.year(), now.day(), now.hour());
    let half = if hour % 12 == 0 { 12 } else { hour % 12 };
    let again = |format: &str| strftime(now, format).ok();
    let mut out = String::new();
    // Writing to a String cannot fail.
    let _ = match directive {
        '%' => write!(out, "%"),
        'n' => writeln!(out),
        't' => write!(out, "\t"),
        'Y' => write!(out, "{year}"),
        'C' => write!(out, "{:02}", year.div_euclid(100)),
        'y' => write!(out, "{:02}", year.rem_euclid(100)),
        'm' => write!(out, "{:02}", u8::from(now.month())),
        'B' => write!(out, "{month}"),
        'b' | 'h' => write!(out, "{}", &month[..3]),
        'd' => write!(out, "{day:02}"),
        'e' => write!(out, "{day:2}"),
        'j' => write!(out, "{:03}", now.ordinal()),
        'A' => write!(out, "{weekday}"),
        'a' => write!(out, "{}", &weekday[..3]),
        'w' => write!(out, "{}", now.weekday().number_days_from_sunday()),
        'u' => write!(out, "{}", now.weekday().number_from_monday()),
        'U' => write!(out, "{:02}", week(now, Weekday::Sunday)),
        'W' => write!(out, "{:02}", week(now, Weekday::Monday)),
        'V' => write!(out, "{:02}", now.iso_week()),
        'G' => write!(out, "{}", now.to_iso_week_date().0),
        'g' => write!(out, "{:02}", now.to_iso_week_date().0.rem_euclid(100)),
        'H' => write!(out, "{hour:02}"),
        'k' => write!(out, "{hour:2}"),
        'I' => write!(out, "{half:02}"),
        'l' => write!(out, "{half:2}"),
        'M' => write!(out, "{:02}", now.minute()),
        'S' => write!(out, "{:02}", now.second()),
        'f' => write!(out, "{:06}", now.microsecond()),
        'p' => write!(out, "{}", if hour < 12 { "AM" } else { "PM" }),
        'P' => write!(out, "{}", if hour < 12 { "am" } else { "pm" }),
        's' => write!(out, "{}", now.unix_timestamp()),
        // Python's `datetime.now()` has no time zone: nothing is written.
        'z' | 'Z' => Ok(()),
        'D' | 'x' => return again("%m/%d/%y"),
        'F' => return again("%Y-%m-%d"),
        'T' | 'X' => return again("%H:%M:%S"),
        'R' => return again("%H:%M"),
        'r' => return again("%I:%M:%S %p"),
        'c' => return again("%a %b %e %H:%M:%S %Y"),
        _ => return None,
    };
    Some(out)
}

/// The week of the year, with week 1 starting at the first such weekday.
fn week(now: OffsetDateTime, first: Weekday) -> u16 {
    let since = match first {
        Weekday::Monday => now.weekday().number_days_from_monday(),
        _ => now.weekday().number_days_from_sunday(),
    };
    (now.ordinal() + 6 - u16::from(since)) / 7
}

#[cfg(test)]
mod tests {
    use super::*;
    use time::macros::datetime;

    #[test]
    fn dates_match_python() {
        const ALL: &str = "%a %A %w %u %d %-d %e %b %h %B %m %-m %y %Y %C %H %-H %k %I %-I %l %p %P %M %S %f %j %-j %U %W %V %G %g\
            |%c|%x|%X|%D|%F|%T|%R|%r|%%|%z%Z|";
        for (moment, want) in [
            (
                datetime!(2026-01-04 00:05:09.000042 UTC),
                "Sun Sunday 0 7 04 4  4 Jan Jan January 01 1 26 2026 20 00 0  0 12 12 12 AM am 05 09 000042 004 4 01 00 01 2026 26\
                 |Sun Jan  4 00:05:09 2026|01/04/26|00:05:09|01/04/26|2026-01-04|00:05:09|00:05|12:05:09 AM|%||",
            ),
            (
                datetime!(2024-12-30 13:00:59 UTC),
                "Mon Monday 1 1 30 30 30 Dec Dec December 12 12 24 2024 20 13 13 13 01 1  1 PM pm 00 59 000000 365 365 52 53 01 2025 25\
                 |Mon Dec 30 13:00:59 2024|12/30/24|13:00:59|12/30/24|2024-12-30|13:00:59|13:00|01:00:59 PM|%||",
            ),
            (
                datetime!(2025-09-07 12:30:00 UTC),
                "Sun Sunday 0 7 07 7  7 Sep Sep September 09 9 25 2025 20 12 12 12 12 12 12 PM pm 30 00 000000 250 250 36 35 36 2025 25\
                 |Sun Sep  7 12:30:00 2025|09/07/25|12:30:00|09/07/25|2025-09-07|12:30:00|12:30|12:30:00 PM|%||",
            ),
        ] {
            assert_eq!(strftime(moment, ALL).unwrap(), want);
        }
        let now = datetime!(2026-01-04 00:00 UTC);
        assert_eq!(strftime(now, "%Q").unwrap_err(), "strftime_now has no %Q");
        assert_eq!(strftime(now, "x%").unwrap_err(), "strftime_now ends with %");
    }
}
