use serde::{Deserialize, Serialize};

/// A value together with where it was read: a file, a library call or a command.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Fact<T> {
    /// What was read.
    pub value: T,
    /// Where it was read, as a user could look it up again: `/proc/meminfo`, `NVML nvmlDeviceGetName`, `uname -m`.
    pub source: String,
}

impl<T> Fact<T> {
    /// Pairs a value with its source.
    pub fn new(value: T, source: impl Into<String>) -> Self {
        Self { value, source: source.into() }
    }

    /// The same source for a value derived from this one.
    pub fn map<U>(self, derive: impl FnOnce(T) -> U) -> Fact<U> {
        Fact { value: derive(self.value), source: self.source }
    }
}
