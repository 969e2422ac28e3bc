//! Whole numbers on the command line.

use std::num::IntErrorKind;
use std::str::FromStr;

/// Any whole number.
pub(crate) fn whole(text: &str) -> Result<u64, String> {
    text.trim().parse().map_err(|_| "expected a whole number, 0 or more".to_owned())
}

/// A token's id.
pub(crate) fn token(text: &str) -> Result<u32, String> {
    text.trim().parse().map_err(|_| "expected token ids, such as 1,2,3".to_owned())
}

/// A number with or without a fraction; the caller checks its range.
pub(crate) fn number(text: &str) -> Result<f64, String> {
    text.trim().parse().map_err(|_| "expected a number, such as 0.7".to_owned())
}

/// An amount of memory.
pub(crate) fn gibibytes(text: &str) -> Result<f64, String> {
    let amount =
        text.trim().parse().ok().filter(|amount: &f64| amount.is_finite() && *amount >= 0.0);
    amount.ok_or_else(|| "expected a number of GiB, 0 or more, such as 4".to_owned())
}

/// A fraction of 1.
pub(crate) fn share(text: &str) -> Result<f64, String> {
    let share = text.trim().parse().ok().filter(|share| (0.0..=1.0).contains(share));
    share.ok_or_else(|| "expected a number from 0 to 1, such as 0.01".to_owned())
}

/// A whole number of at least 1.
pub(crate) fn one_or_more<T>(text: &str) -> Result<T, String>
where
    T: FromStr<Err = std::num::ParseIntError> + PartialOrd + From<u8>,
{
    match text.trim().parse::<T>() {
        Ok(number) if number >= T::from(1) => Ok(number),
        Err(error) if *error.kind() == IntErrorKind::PosOverflow => {
            Err("expected a smaller number".to_owned())
        }
        _ => Err("expected a whole number, 1 or more".to_owned()),
    }
}

/// An amount of memory with its unit; GiB without one.
pub(crate) fn byte_size(text: &str) -> Result<u64, String> {
    let wrong = || "expected an amount of memory such as 24GiB".to_owned();
    let text = text.trim();
    let end = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let unit = match unit.to_ascii_lowercase().as_str() {
        "" | "g" | "gi" | "gib" => 1_u64 << 30,
        "gb" => 1_000_000_000,
        "m" | "mi" | "mib" => 1 << 20,
        "mb" => 1_000_000,
        "t" | "ti" | "tib" => 1 << 40,
        "tb" => 1_000_000_000_000,
        _ => return Err(wrong()),
    };
    let number: f64 = number.trim().parse().map_err(|_| wrong())?;
    let bytes = number * unit as f64;
    match bytes.is_finite() && bytes >= 1.0 && bytes < u64::MAX as f64 {
        true => Ok(bytes as u64),
        false => Err(wrong()),
    }
}

#[cfg(test)]
mod tests {
    use super::byte_size;

    #[test]
    fn amounts_of_memory_have_a_unit_or_are_gib() {
        for (text, bytes) in [
            ("24GiB", Some(24 << 30)),
            ("24", Some(24 << 30)),
            ("1.5 GB", Some(1_500_000_000)),
            ("512MiB", Some(512 << 20)),
            ("", None),
            ("-1", None),
            ("0", None),
            ("nan", None),
            ("24 parsecs", None),
        ] {
            assert_eq!(byte_size(text).ok(), bytes, "{text}");
        }
    }
}
