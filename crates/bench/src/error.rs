/// Why nothing could be timed.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum BenchError {
    /// No workload has this name.
    #[error("there is nothing to bench called `{name}`, expected one of {}", .known.join(", "))]
    Unknown {
        /// The name asked for.
        name: String,
        /// The names there are.
        known: Vec<&'static str>,
    },
    /// The backend cannot be used here.
    #[error(transparent)]
    Unavailable(#[from] device::Unavailable),
    /// A comparison call was refused by its op.
    #[error(transparent)]
    Op(#[from] ops::OpError),
    /// The ceilings of a GPU could not be measured.
    #[error("the ceilings could not be measured: {0}")]
    Ceilings(#[from] device::DeviceError),
}
