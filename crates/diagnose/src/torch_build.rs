use facts::{Dist, Machine, Platform, PyEnv, Torch};
use knowledge::torch_builds::{self, Build};
use knowledge::{Arch, Minor, Version, cuda_of_label, minor_of};

/// The installed torch with its versions parsed.
#[derive(Debug)]
pub(crate) struct Installed<'a> {
    /// The record of the probe.
    pub(crate) torch: &'a Torch,
    /// `__version__`.
    pub(crate) version: Version,
    /// The CUDA release it was built with.
    pub(crate) cuda: Option<Minor>,
}

/// The environment's torch; `None` if there is none or its version does not parse.
pub(crate) fn installed(env: &PyEnv) -> Option<Installed<'_>> {
    let torch = env.torch.as_ref()?;
    let version = Version::parse(&torch.version)?;
    Some(Installed { torch, version, cuda: torch.cuda.as_deref().and_then(minor_of) })
}

/// The distribution installed under a name; leftovers of interrupted installs (`~orch-...`) do not count.
pub(crate) fn live_dist<'a>(env: &'a PyEnv, name: &str) -> Option<&'a Dist> {
    env.dists.iter().find(|dist| same_name(&dist.name, name) && !is_leftover(dist))
}

/// Whether two names are equal by PEP 503 ([`Dist::normalise`]). Rules ask this for each file and each distribution of
/// an environment, so no normalised name is allocated. Package names are ASCII.
pub(crate) fn same_name(one: &str, other: &str) -> bool {
    one == other || letters(one).eq(letters(other))
}

fn letters(name: &str) -> impl Iterator<Item = u8> {
    let mut before = b' ';
    name.bytes().filter_map(move |letter| {
        let letter = match letter {
            b'-' | b'_' | b'.' => b'-',
            letter => letter.to_ascii_lowercase(),
        };
        let again = letter == b'-' && before == b'-';
        before = letter;
        (!again).then_some(letter)
    })
}

/// Whether pip renamed a dist-info folder while replacing a package and never removed it.
pub(crate) fn is_leftover(dist: &Dist) -> bool {
    folder(dist).starts_with('~') || dist.name.starts_with('~') || dist.name.starts_with('-')
}

/// The name of the dist-info folder.
pub(crate) fn folder(dist: &Dist) -> &str {
    dist.path.trim_end_matches('/').rsplit('/').next().unwrap_or(&dist.path)
}

/// Whether conda, not pip or uv, installed a distribution.
pub(crate) fn by_conda(dist: &Dist) -> bool {
    dist.installer.as_deref().is_some_and(|word| word.trim() == "conda")
}

/// The architecture of a Linux machine's wheels; `None` on other systems, where torch has no CUDA builds.
pub(crate) fn linux_arch(machine: &Machine) -> Option<Arch> {
    match machine.platform {
        Platform::LinuxX86_64 => Some(Arch::X86_64),
        Platform::LinuxAarch64 => Some(Arch::Aarch64),
        _ => None,
    }
}

/// The table row of the published CUDA build in an environment; `None` for CPU builds and for builds that the PyTorch
/// project did not publish (conda, a vendor, a nightly, from source), which the table does not list.
pub(crate) fn published(machine: &Machine, env: &PyEnv) -> Option<&'static Build> {
    let torch = installed(env)?;
    // The project's CUDA wheels have +cuNNN in version.py, also those on PyPI whose METADATA has no label.
    let label = torch.version.local.as_deref().and_then(cuda_of_label);
    let ours = torch.version.is_final() && label.is_some();
    let conda = live_dist(env, "torch").is_some_and(by_conda);
    if !ours || conda {
        return None;
    }
    torch_builds::build(torch.version.minor(), torch.cuda?, linux_arch(machine)?)
}

#[cfg(test)]
mod tests {
    use super::same_name;
    use facts::Dist;

    #[test]
    fn names_match_if_their_normalised_forms_do() {
        let names = [
            "flash-attn",
            "flash_attn",
            "Flash.Attn",
            "flash-_.attn",
            "flashattn",
            "flash",
            "flash-attn-",
            "torch",
            "",
        ];
        for one in names {
            for other in names {
                let alike = Dist::normalise(one) == Dist::normalise(other);
                assert_eq!(same_name(one, other), alike, "{one} {other}");
            }
        }
    }
}
