//! The packages whose kernels each layer kind of transformers calls.

use crate::Citation;
use crate::packed::table;
use crate::table::rows;
use serde::Deserialize;
use std::sync::LazyLock;

/// One package whose kernels a layer kind calls.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct KernelPackage {
    /// Its name in the `kernels` of layer rows.
    name: String,
    /// Normalised name.
    pub package: String,
    /// Other package names it is published under.
    #[serde(default)]
    pub also: Vec<String>,
    /// The functions that are called.
    pub functions: Vec<String>,
    /// The compiled module that it needs; `None` if it has Triton code only.
    pub compiled: Option<String>,
    /// Whether layers run at full speed without it.
    #[serde(default)]
    pub optional: bool,
    /// The fallback that runs without it, as a sentence.
    pub otherwise: String,
    /// Source of the row.
    pub source: Citation,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Layer {
    kind: String,
    kernels: Vec<String>,
    #[allow(dead_code, reason = "a row without a source does not parse")]
    source: Citation,
}

static KERNELS: LazyLock<Vec<KernelPackage>> =
    LazyLock::new(|| rows(table!("kernels.toml"), "kernel"));
static LAYERS: LazyLock<Vec<Layer>> = LazyLock::new(|| rows(table!("kernels.toml"), "layer"));

/// The packages that a layer kind uses, in the order of installation; empty for a kind that uses none or is unknown.
pub fn of_layer(kind: &str) -> impl Iterator<Item = &'static KernelPackage> {
    let layer = LAYERS.iter().find(|layer| layer.kind == kind);
    let names = layer.map_or(&[][..], |layer| layer.kernels.as_slice());
    names.iter().filter_map(|name| KERNELS.iter().find(|kernel| kernel.name == *name))
}

/// Every layer kind of the table.
pub fn kinds() -> impl Iterator<Item = &'static str> {
    LAYERS.iter().map(|layer| layer.kind.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kernel_of_a_layer_is_in_the_table() {
        for layer in LAYERS.iter() {
            assert_eq!(of_layer(&layer.kind).count(), layer.kernels.len(), "{layer:?}");
        }
        let packages: Vec<&str> = of_layer("mamba2").map(|row| row.package.as_str()).collect();
        assert_eq!(packages, ["causal-conv1d", "mamba-ssm"]);
        assert_eq!(of_layer("convolution").count(), 0);
    }
}
