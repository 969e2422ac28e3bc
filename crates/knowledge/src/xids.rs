//! Errors that NVIDIA's driver writes into the kernel's log, by their numbers.

use crate::Source;
use crate::table::rows;
use serde::Deserialize;
use std::sync::LazyLock;

/// Who an error usually comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The program that ran.
    Program,
    /// Another error, which ended the program.
    Cleanup,
    /// The GPU's memory.
    Memory,
    /// A link between GPUs.
    Link,
    /// The GPU or its firmware, which no longer answers.
    Lost,
}

/// What an error means for the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    /// Nothing: the program is started again.
    Note,
    /// It wants a look.
    Warning,
    /// It is of no use until it is reset or replaced.
    Error,
}

/// One numbered error.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Xid {
    /// Its number.
    pub number: u32,
    /// NVIDIA's description.
    pub words: String,
    /// Who it usually comes from.
    pub of: Origin,
    /// What it means for the GPU.
    pub weight: Weight,
    /// Where it was read.
    pub source: Source,
}

static XIDS: LazyLock<Vec<Xid>> = LazyLock::new(|| rows(include_str!("../data/xids.toml"), "xid"));

/// Every error of the table, by number.
pub fn xids() -> &'static [Xid] {
    &XIDS
}

/// The error of a number.
pub fn xid(number: u32) -> Option<&'static Xid> {
    XIDS.iter().find(|xid| xid.number == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_rise() {
        assert!(xids().windows(2).all(|pair| pair[0].number < pair[1].number));
        assert_eq!(xid(79).map(|xid| xid.of), Some(Origin::Lost));
        assert!(xid(0).is_none());
    }
}
