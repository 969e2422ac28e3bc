/// What is wrong with a config. Every message names the file and the key, what it is and what was wanted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConfigError {
    /// A text that is no config.
    #[error("{path}: {reason}")]
    NotAConfig {
        /// The file.
        path: String,
        /// What it is instead.
        reason: String,
    },
    /// A config without a key that its family needs.
    #[error("{path}: `{key}` is missing, wanted {wanted}")]
    MissingKey {
        /// The file.
        path: String,
        /// The key.
        key: String,
        /// What it holds.
        wanted: &'static str,
    },
    /// A key whose value cannot be used.
    #[error("{path}: `{key}` is {value}, wanted {wanted}")]
    Key {
        /// The file.
        path: String,
        /// The key.
        key: String,
        /// Its value.
        value: String,
        /// What it may be.
        wanted: String,
    },
    /// A config of no family that is known, or of a kind of one that no engine runs.
    #[error("{path}: {names} is no model family that firstlight {}", if *known { "runs" } else { "knows" })]
    Family {
        /// The file.
        path: String,
        /// Its `model_type` and `architectures`.
        names: String,
        /// Whether the family is known.
        known: bool,
    },
    /// A shape of no such name.
    #[error("there is no model shape `{name}`")]
    Shape {
        /// The name given.
        name: String,
    },
    /// Fewer layers than were asked for.
    #[error("the model has {all} layers, and {asked} were asked for")]
    Layers {
        /// Layers of the model.
        all: usize,
        /// Layers that were asked for.
        asked: usize,
    },
}

impl ConfigError {
    /// What to do about it.
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
