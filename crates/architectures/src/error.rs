/// Errors of a config. Every message names the file and the key, its value and the expected value.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// Text that is not a config.
    #[error("{path}: {reason}")]
    NotAConfig {
        /// The file.
        path: String,
        /// Why it is not.
        reason: String,
    },
    /// A config without a key that its family needs.
    #[error("{path}: `{key}` is missing, expected {wanted}")]
    MissingKey {
        /// The file.
        path: String,
        /// The key.
        key: String,
        /// The value of the key.
        wanted: &'static str,
    },
    /// A key with an unusable value.
    #[error("{path}: `{key}` is {value}, expected {wanted}")]
    Key {
        /// The file.
        path: String,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// Allowed values.
        wanted: String,
    },
    /// An unknown family, or a variant that no engine runs.
    #[error("{path}: {names} is no model family that firstlight {}", if *known { "runs" } else { "knows" })]
    Family {
        /// The file.
        path: String,
        /// Its `model_type` and `architectures`.
        names: String,
        /// Whether the family is known.
        known: bool,
    },
    /// An unknown shape.
    #[error("there is no model shape `{name}`")]
    Shape {
        /// The name given.
        name: String,
    },
    /// Fewer layers than requested.
    #[error("the model has {all} layers, and {asked} were asked for")]
    Layers {
        /// Layers of the model.
        all: usize,
        /// Requested layers.
        asked: usize,
    },
}

impl ConfigError {
    /// The remedy.
    pub fn hint(&self) -> String {
        match self {
            Self::Family { .. } => {
                let names: Vec<&str> = crate::FAMILIES.iter().map(|family| family.name).collect();
                format!("families: {}", names.join(", "))
            }
            Self::Shape { .. } => {
                let names: Vec<&str> = crate::SHAPES.iter().map(|shape| shape.name).collect();
                format!("shapes: {}", names.join(", "))
            }
            Self::Layers { all, .. } => format!("ask for 1 to {all} layers"),
            Self::NotAConfig { .. } | Self::MissingKey { .. } | Self::Key { .. } => {
                "take the config.json that was published with the weights".to_owned()
            }
        }
    }
}
