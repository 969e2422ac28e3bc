//! `profile.yaml`: the versions of a stack in a few lines, as in field report 4.

use super::Format;
use crate::emit::EmitError;
use crate::profile_yaml::ProfileFile;
use facts::InstallPlan;

pub(super) const FORMAT: Format = Format {
    name: "profile.yaml",
    about: "the versions of this stack in a few lines, and two settings of the program on it.",
    write,
};

fn write(plan: &InstallPlan) -> Result<String, EmitError> {
    let unfit = |reason: String| EmitError::Unfit {
        format: FORMAT.name,
        reason,
        hint: "use plan.toml".to_owned(),
    };
    let profile = ProfileFile::of(plan).ok_or_else(|| unfit("it has no torch".to_owned()))?;
    profile.write().map_err(|error| unfit(error.to_string()))
}
