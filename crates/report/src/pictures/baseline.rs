//! Figures of other people's reports, kept to be compared with: `baselines.csv`, each row with its source.

use crate::plot::Band;
use std::collections::BTreeMap;

const TABLE: &str = include_str!("baselines.csv");

/// The baselines of an op at these sizes; none where any size that a baseline names is another one.
pub(super) fn bands(op: &str, shape: &BTreeMap<String, u64>) -> Vec<Band> {
    let mut reader = csv::Reader::from_reader(TABLE.as_bytes());
    let rows = reader.records().map_while(Result::ok);
    rows.filter_map(|row| {
        let fits = row.get(1)? == op
            && row.get(2)?.split(' ').all(|size| {
                let size = size
                    .split_once('=')
                    .and_then(|(name, size)| Some((name, size.parse::<u64>().ok()?)));
                size.is_some_and(|(name, size)| shape.get(name) == Some(&size))
            });
        let number = |at| row.get(at)?.parse::<f64>().ok();
        fits.then_some(Band {
            label: row.get(3)?.to_owned(),
            from: number(4)?,
            to: number(5)?,
            low: number(6)?,
            high: number(7)?,
        })
    })
    .collect()
}
