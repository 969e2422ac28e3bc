//! Xid errors, which NVIDIA's driver writes to the kernel log, by number.

use crate::Citation;
use crate::packed::table;
use crate::table::rows;
use serde::Deserialize;
use std::sync::LazyLock;

/// The usual origin of an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Origin {
    /// The running program.
    Program,
    /// Another error, which ended the program.
    Cleanup,
    /// The GPU's memory.
    Memory,
    /// NVLink or C2C, a link between GPUs or between a GPU and its CPU.
    Link,
    /// The driver or the GPU's firmware, which keep running.
    Driver,
    /// The GPU or its firmware, which stopped responding.
    Lost,
}

/// NVIDIA's immediate action for an error.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Action {
    /// No action.
    Ignore,
    /// Restart the program.
    RestartApp,
    /// Reset the GPU once no program uses it.
    ResetGpu,
    /// Reboot the machine.
    RestartHost,
    /// Restart the virtual machine.
    RestartVm,
    /// Follow the NVLink workflow: the error's own bits, and Xid 154, decide between none, a reset and a reboot.
    CheckLink,
    /// Check power cables and the seat of the board.
    CheckHardware,
    /// Update the driver or firmware.
    UpdateSoftware,
    /// Follow the action of the other errors in the log.
    FollowOther,
    /// Report it to the vendor.
    ContactSupport,
    /// The catalog states none.
    Unstated,
}

impl Action {
    /// The action as an imperative sentence without a full stop.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Ignore => "nothing, unless it repeats",
            Self::RestartApp => "restart the program",
            Self::ResetGpu => "reset the GPU when no program uses it; reboot where the reset fails",
            Self::RestartHost => "reboot the machine",
            Self::RestartVm => "restart the virtual machine",
            Self::CheckLink => {
                "check the NVLink error counters; reset the GPU where Xid 154 or a fatal link error asks for it"
            }
            Self::CheckHardware => "check the power cables and the seat of the board",
            Self::UpdateSoftware => "update the driver and its firmware",
            Self::FollowOther => "follow the action of the other Xid in the log",
            Self::ContactSupport => "report it to the vendor",
            Self::Unstated => "the catalog states no action; follow the other Xids in the log",
        }
    }
}

/// Severity of an error for the GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Weight {
    /// The GPU is fine; ignore the error or restart the program.
    Note,
    /// The GPU needs a check.
    Warning,
    /// The GPU is unusable until it is reset or replaced.
    Error,
}

/// One entry of the table: an Xid number and its meaning.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct XidEntry {
    /// Its number.
    pub number: u32,
    /// NVIDIA's description.
    pub words: String,
    /// Its usual origin.
    pub of: Origin,
    /// Its severity for the GPU.
    pub weight: Weight,
    /// NVIDIA's immediate action.
    pub action: Action,
    /// Source of the row.
    pub source: Citation,
}

static XIDS: LazyLock<Vec<XidEntry>> = LazyLock::new(|| rows(table!("xids.toml"), "xid"));

/// Every error of the table, by number.
pub fn xids() -> &'static [XidEntry] {
    &XIDS
}

/// The error with this number; `None` if the catalog lists it as unused or does not have it.
pub fn xid(number: u32) -> Option<&'static XidEntry> {
    XIDS.iter().find(|xid| xid.number == number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_ascend_and_rows_match_the_catalog() {
        assert!(xids().windows(2).all(|pair| pair[0].number < pair[1].number));
        assert_eq!(xid(79).map(|xid| xid.of), Some(Origin::Lost));
        assert!(xid(0).is_none());
        assert_eq!(
            xid(145).map(|xid| (xid.of, xid.action)),
            Some((Origin::Link, Action::CheckLink))
        );
        assert_eq!(
            xid(140).map(|xid| (xid.of, xid.action)),
            Some((Origin::Memory, Action::ResetGpu))
        );
        // A number that the catalog lists as unused.
        assert!(xid(7).is_none());
    }
}
