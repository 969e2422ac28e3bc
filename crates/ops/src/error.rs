//! Errors of op calls, with hints.

use crate::DType;
use device::DeviceError;

/// A variant that was not chosen, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// The variant.
    pub variant: &'static str,
    /// Why.
    pub reason: String,
}

/// Errors of an op call. Every message names the tensor or setting, its value and the expected one.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum OpError {
    /// No op has this name.
    #[error("there is no op `{name}`")]
    UnknownOp {
        /// The name asked for.
        name: String,
        /// The names of the ops.
        known: Vec<&'static str>,
    },
    /// A required tensor was not given.
    #[error("{op}: tensor `{tensor}` {shape} is missing")]
    MissingTensor {
        /// The op.
        op: &'static str,
        /// The tensor.
        tensor: &'static str,
        /// Its shape as the op's table writes it.
        shape: &'static str,
    },
    /// A tensor that the op does not know.
    #[error("{op}: there is no tensor `{tensor}`")]
    UnknownTensor {
        /// The op.
        op: &'static str,
        /// The name given.
        tensor: String,
        /// The names the op knows.
        known: Vec<&'static str>,
    },
    /// A tensor of the wrong shape.
    #[error("{op}: tensor `{tensor}` has shape {shape:?}, wanted {wanted}")]
    Shape {
        /// The op.
        op: &'static str,
        /// The tensor.
        tensor: String,
        /// Its shape.
        shape: Vec<usize>,
        /// The shape wanted, with the sizes that are already fixed by other tensors.
        wanted: String,
    },
    /// A tensor of the wrong element type.
    #[error("{op}: tensor `{tensor}` is {dtype}, wanted {wanted}")]
    DType {
        /// The op.
        op: &'static str,
        /// The tensor.
        tensor: String,
        /// Its type.
        dtype: DType,
        /// The types accepted.
        wanted: String,
    },
    /// A tensor whose values are not allowed.
    #[error("{op}: tensor `{tensor}` {what}")]
    Value {
        /// The op.
        op: &'static str,
        /// The tensor.
        tensor: String,
        /// The problem with its values: `is NaN at element 17`.
        what: String,
    },
    /// A setting that the op does not know.
    #[error("{op}: there is no setting `{setting}`")]
    UnknownSetting {
        /// The op.
        op: &'static str,
        /// The name given.
        setting: String,
        /// The names the op knows.
        known: Vec<&'static str>,
    },
    /// A setting whose value cannot be used.
    #[error("{op}: setting `{setting}` is `{value}`, wanted {wanted}")]
    Setting {
        /// The op.
        op: &'static str,
        /// The setting.
        setting: String,
        /// The value given.
        value: String,
        /// The accepted values.
        wanted: String,
    },
    /// No variant of the op can run this call on this device.
    #[error("{op}: no variant can run this: {}", list(.refused))]
    NoVariant {
        /// The op.
        op: &'static str,
        /// Every variant with its reason.
        refused: Vec<Refusal>,
    },
    /// The variant asked for cannot run this call on this device.
    #[error("{op}: variant `{variant}` cannot run this: {reason}")]
    Refused {
        /// The op.
        op: &'static str,
        /// The variant asked for.
        variant: String,
        /// Its reason.
        reason: String,
    },
    /// The device is out of memory, or its driver failed.
    #[error("{op}: {error}")]
    Device {
        /// The op.
        op: &'static str,
        /// The device's error.
        error: DeviceError,
    },
}

fn list(refused: &[Refusal]) -> String {
    if refused.is_empty() {
        return "it has none for this backend".to_owned();
    }
    let reasons: Vec<String> =
        refused.iter().map(|refusal| format!("{} ({})", refusal.variant, refusal.reason)).collect();
    reasons.join(", ")
}

impl OpError {
    /// A hint on how to fix it.
    pub fn hint(&self) -> Option<String> {
        match self {
            Self::UnknownOp { known, .. } => Some(format!("the ops are {}", known.join(", "))),
            Self::UnknownTensor { known, .. } => {
                Some(format!("its tensors are {}", known.join(", ")))
            }
            Self::UnknownSetting { known, .. } if known.is_empty() => {
                Some("it has no settings".to_owned())
            }
            Self::UnknownSetting { known, .. } => {
                Some(format!("its settings are {}", known.join(", ")))
            }
            Self::DType { .. } => Some("convert it before saving the file".to_owned()),
            Self::Device { error, .. } => error.hint(),
            _ => None,
        }
    }
}
