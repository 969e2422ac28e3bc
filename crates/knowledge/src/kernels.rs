//! The packages each kind of layer takes functions from.

use crate::Source;
use crate::packed::table;
use crate::table::rows;
use serde::Deserialize;
use std::sync::LazyLock;

/// One package a kind of layer takes functions from.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Kernel {
    /// What layers call it in the table.
    name: String,
    /// Normalised name.
    pub package: String,
    /// Other names it is published under.
    #[serde(default)]
    pub also: Vec<String>,
    /// The functions that are called.
    pub functions: Vec<String>,
    /// The compiled file it is of no use without; `None` where it is Triton code alone.
    pub compiled: Option<String>,
    /// Whether layers run at full speed without it.
    #[serde(default)]
    pub optional: bool,
    /// What happens without it.
    pub otherwise: String,
    /// Where it was read.
    pub source: Source,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Layer {
    kind: String,
    kernels: Vec<String>,
    #[allow(dead_code, reason = "a row without a source does not parse")]
    source: Source,
}

static KERNELS: LazyLock<Vec<Kernel>> = LazyLock::new(|| rows(table!("kernels.toml"), "kernel"));
static LAYERS: LazyLock<Vec<Layer>> = LazyLock::new(|| rows(table!("kernels.toml"), "layer"));

/// What a kind of layer wants, in the order of installing; empty for one that wants nothing, and for a kind that is not known.
pub fn of_layer(kind: &str) -> impl Iterator<Item = &'static Kernel> {
    let layer = LAYERS.iter().find(|layer| layer.kind == kind);
    let names = layer.map_or(&[][..], |layer| layer.kernels.as_slice());
    names.iter().filter_map(|name| KERNELS.iter().find(|kernel| kernel.name == *name))
}

/// Every kind of layer of the table.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    LAYERS.iter().map(|layer| layer.kind.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_that_a_layer_names_is_there() {
        for layer in LAYERS.iter() {
            assert_eq!(of_layer(&layer.kind).count(), layer.kernels.len(), "{layer:?}");
        }
        let packages: Vec<&str> = of_layer("mamba2").map(|row| row.package.as_str()).collect();
        assert_eq!(packages, ["causal-conv1d", "mamba-ssm"]);
        assert_eq!(of_layer("convolution").count(), 0);
    }
}
