//! FalconMamba: Mamba with an RMSNorm without weights of B, of C and of the low-rank input of the step size (dt).

use super::{ModelFamily, mamba};
use crate::builder::ArchitectureBuilder;
use crate::layers::Norms;
use crate::{Architecture, Config, ConfigError};

pub(super) const FAMILY: ModelFamily = ModelFamily {
    name: "falcon-mamba",
    config_names: &["falcon_mamba", "FalconMambaForCausalLM"],
    multimodal_types: &[],
    without_kernels: None,
    matches_keys: |_| false,
    read,
};

/// transformers' default of `mixer_rms_eps`.
const MIXER_EPS: f64 = 1e-6;

fn read(config: &Config, mut builder: ArchitectureBuilder) -> Result<Architecture, ConfigError> {
    let eps = builder.need(config.number_or("mixer_rms_eps", MIXER_EPS), MIXER_EPS);
    mamba::read_with(config, builder, Norms::Plain { eps })
}
