//! Measurements between GPUs, one line each.

use super::fields::write;
use facts::FabricReport;

const COLUMNS: &[&str] = &[
    "what",
    "from",
    "to",
    "by",
    "bytes",
    "us",
    "gbps",
    "bus_gbps",
    "both_gbps",
    "links_gbps",
    "wrong",
];

/// The measurements as CSV: copies, collectives and recorded sums. A wrong transfer has an empty rate.
pub fn fabric_csv(report: &FabricReport) -> String {
    let number = |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
    let copies = report.copies.iter().map(|copy| {
        let way = if copy.direct { "peer copy" } else { "copy through the host" };
        let links = copy.links.as_ref().map(|links| links.gbps);
        vec![
            "copy".to_owned(),
            copy.from.to_string(),
            copy.to.to_string(),
            way.to_owned(),
            copy.bytes.to_string(),
            number(copy.micros),
            number(copy.gbps),
            String::new(),
            number(copy.both_gbps),
            number(links),
            copy.wrong.to_string(),
        ]
    });
    let links = report.links.as_ref().map(|links| links.gbps);
    let sum = |what: &str, by: &str, bytes: u64, rates: [Option<f64>; 3], wrong: u64| {
        let [micros, algorithm, bus] = rates;
        vec![
            what.to_owned(),
            String::new(),
            String::new(),
            by.to_owned(),
            bytes.to_string(),
            number(micros),
            number(algorithm),
            number(bus),
            String::new(),
            number(links),
            wrong.to_string(),
        ]
    };
    let collectives = report.collectives.iter().map(|it| {
        let rates = [it.micros, it.algorithm_gbps, it.bus_gbps];
        sum(it.kind.as_str(), "NCCL", it.bytes, rates, it.wrong)
    });
    let recorded = report.recorded.iter().map(|it| {
        sum("sum in a recorded graph", &it.by, it.bytes, [it.micros, None, None], it.wrong)
    });
    write(COLUMNS, copies.chain(collectives).chain(recorded))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::together::records;

    #[test]
    fn each_measurement_has_a_line_and_wrong_transfers_no_rate() {
        let text = fabric_csv(&records::fabric(3));
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 1 + 6 + 8 + 1, "{text}");
        assert_eq!(lines[1], "copy,0,1,peer copy,268435456,2.5,390,,760,478.1,0");
        assert!(lines[2].starts_with("copy,0,2,peer copy,268435456,2.5,,,"), "{text}");
        assert!(lines[2].ends_with(",1"), "{text}");
        assert_eq!(lines[15], "sum in a recorded graph,,,decoder.join_peers,16384,4.25,,,,478.1,0");
    }
}
