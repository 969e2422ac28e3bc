/// Bytes in decimal and binary units, both labelled, because tools mix them: 96768 MiB are 94.50 GiB and 101.47 GB, and also
/// written as "97GB".
pub fn byte_count(count: u64) -> String {
    const STEPS: [(u64, &str, u64, &str); 3] = [
        (1_000_000_000, "GB", 1 << 30, "GiB"),
        (1_000_000, "MB", 1 << 20, "MiB"),
        (1_000, "kB", 1 << 10, "KiB"),
    ];
    for (decimal, decimal_name, binary, binary_name) in STEPS {
        if count >= decimal {
            let of = |unit: u64| count as f64 / unit as f64;
            return format!("{:.2} {decimal_name} = {:.2} {binary_name}", of(decimal), of(binary));
        }
    }
    format!("{count} B")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_units_are_labelled() {
        for (count, expect) in [
            (101_468_602_368, "101.47 GB = 94.50 GiB"),
            (24_564 << 20, "25.76 GB = 23.99 GiB"),
            (999, "999 B"),
            (1_500, "1.50 kB = 1.46 KiB"),
        ] {
            assert_eq!(byte_count(count), expect);
        }
    }
}
