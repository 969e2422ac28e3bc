//! The model families, one file each: the names they go by in config.json, and how their keys give the layers.

use crate::{Architecture, Config, ModelError};

mod granite_hybrid;
mod kimi_linear;

/// Every family.
pub const FAMILIES: &[Family] = &[granite_hybrid::FAMILY, kimi_linear::FAMILY];

/// One model family.
#[derive(Debug)]
pub struct Family {
    /// Its name here, words joined by `-`.
    pub name: &'static str,
    /// The words of `model_type` and `architectures` it is known by.
    pub known_by: &'static [&'static str],
    /// What a config of it describes.
    pub(crate) read: fn(&Config) -> Result<Architecture, ModelError>,
}

impl Architecture {
    /// What a config describes.
    ///
    /// # Errors
    /// [`ModelError`] naming the key that is missing or wrong, or the names that no family has.
    pub fn of(config: &Config) -> Result<Self, ModelError> {
        let names = config.names();
        let named = |family: &&Family| names.iter().any(|name| family.known_by.contains(name));
        match FAMILIES.iter().find(named) {
            Some(family) => (family.read)(config),
            None => Err(ModelError::Family {
                path: config.path().to_owned(),
                names: match names.as_slice() {
                    [] => "a config without model_type and architectures".to_owned(),
                    names => names.join(", "),
                },
            }),
        }
    }
}

/// The number of layers, which a hostile file could make a list of any length.
fn layer_count(config: &Config) -> Result<usize, ModelError> {
    match config.count("num_hidden_layers")? {
        count @ 1..=4096 => Ok(count),
        _ => Err(config.wrong("num_hidden_layers", "1 to 4096 layers")),
    }
}

/// Refuses an activation other than SiLU, the only one that these families have been published with.
fn only_silu(config: &Config) -> Result<(), ModelError> {
    match config.text("hidden_act")? {
        None | Some("silu" | "swish") => Ok(()),
        Some(_) => Err(config.wrong("hidden_act", "silu")),
    }
}

/// Refuses a flag that would change the layers in a way that is not written here.
fn only_without(config: &Config, flag: &str) -> Result<(), ModelError> {
    match config.flag_or(flag, false)? {
        false => Ok(()),
        true => Err(config.wrong(flag, "false, the published models have it so")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_list_is_the_folder() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/src/families");
        let stem = |entry: std::io::Result<std::fs::DirEntry>| {
            entry.unwrap().path().file_stem().unwrap().to_string_lossy().replace('_', "-")
        };
        let mut files: Vec<String> = std::fs::read_dir(folder).unwrap().map(stem).collect();
        let mut listed: Vec<&str> = FAMILIES.iter().map(|family| family.name).collect();
        files.sort();
        listed.sort_unstable();
        assert_eq!(files, listed);
    }
}
