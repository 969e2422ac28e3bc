use serde::{Deserialize, Serialize};

/// A value with its source: a file, a library call or a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact<T> {
    /// The value.
    pub value: T,
    /// Its source, so that a user can read it again: `/proc/meminfo`, `NVML nvmlDeviceGetName`, `uname -m`.
    pub source: String,
}

impl<T> Fact<T> {
    /// Pairs a value with its source.
    pub fn new(value: T, source: impl Into<String>) -> Self {
        Self { value, source: source.into() }
    }

    /// A derived value with the same source.
    pub fn map<U>(self, derive: impl FnOnce(T) -> U) -> Fact<U> {
        Fact { value: derive(self.value), source: self.source }
    }
}
