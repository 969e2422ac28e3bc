//! FalconMamba: Mamba whose step size's low rank, B and C are normalised, without weights.

use super::{Family, mamba};
use crate::draft::Draft;
use crate::layers::Norms;
use crate::{Architecture, Config, ConfigError};

pub(super) const FAMILY: Family = Family {
    name: "falcon-mamba",
    known_by: &["falcon_mamba", "FalconMambaForCausalLM"],
    inside: &[],
    demands: None,
    recognises: |_| false,
    read,
};

/// transformers' own, which configs need not name.
const MIXER_EPS: f64 = 1e-6;

fn read(config: &Config, mut draft: Draft) -> Result<Architecture, ConfigError> {
    let eps = draft.need(config.number_or("mixer_rms_eps", MIXER_EPS), MIXER_EPS);
    mamba::read_with(config, draft, Norms::Plain { eps })
}
