//! Queries of the rules about the compiled files of an environment.

use crate::torch_build::live_dist;
use facts::{Dist, Elf, Machine, NativeFile, Platform, PyEnv};

/// One ELF file of an environment.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Native<'a> {
    pub(crate) env: &'a PyEnv,
    pub(crate) file: &'a NativeFile,
    pub(crate) elf: &'a Elf,
}

/// Every ELF file of an environment.
pub(crate) fn files(env: &PyEnv) -> impl Iterator<Item = Native<'_>> {
    env.native_files
        .iter()
        .filter_map(move |file| Some(Native { env, file, elf: file.elf.as_ref()? }))
}

/// The files that pass a test, grouped by distribution: one package gives one finding.
pub(crate) fn by_owner<'a>(
    env: &'a PyEnv,
    wanted: impl Fn(&Native<'a>) -> bool,
) -> Vec<Vec<Native<'a>>> {
    let mut groups: Vec<Vec<Native<'a>>> = Vec::new();
    for native in files(env).filter(|native| wanted(native)) {
        let key = native.owner_name();
        match groups.iter_mut().find(|group| key.is_some() && group[0].owner_name() == key) {
            Some(group) => group.push(native),
            None => groups.push(vec![native]),
        }
    }
    groups
}

impl<'a> Native<'a> {
    /// The name of its distribution, as PEP 503 normalises it.
    pub(crate) fn owner_name(&self) -> Option<String> {
        self.file.dist.as_deref().map(Dist::normalise)
    }

    /// Its distribution, if that is installed.
    pub(crate) fn owner(&self) -> Option<&'a Dist> {
        live_dist(self.env, self.file.dist.as_deref()?)
    }

    /// Its distribution and version, such as `flash_attn 2.8.3`, or the path of a file without a distribution.
    pub(crate) fn label(&self) -> String {
        match self.owner() {
            Some(dist) => format!("{} {}", dist.name, dist.version),
            None => self.file.path.clone(),
        }
    }

    /// Whether it is one of several builds of a library from which a package selects one at import, such as
    /// libbitsandbytes_cuda118.so and libbitsandbytes_cuda128.so. Most of them are not meant to load here.
    pub(crate) fn is_one_of_several(&self) -> bool {
        let own = stem(self.file.name());
        let numbered = self.file.name().split(".so").next().is_some_and(|name| name != own);
        // The part before the last underscore names the library, so builds for other accelerators count as well.
        let family = own.rsplit_once('_').map_or(own, |(family, _)| family);
        numbered
            && self.env.native_files.iter().any(|other| {
                other.path != self.file.path
                    && folder(&other.path) == folder(&self.file.path)
                    && stem(other.name()).starts_with(family)
            })
    }

    /// Whether the same folder has another build of the same library, for another torch, CUDA or processor by its name,
    /// that passes the test: the package loads that one.
    pub(crate) fn has_sibling(&self, fits: impl Fn(&Native<'a>) -> bool) -> bool {
        // A file that another library needs by name is not an alternative: libtorch_cuda.so is loaded together with
        // libtorch_cpu.so.
        let needed = self.elf.opened_by.as_deref().is_some_and(|asker| !asker.ends_with(".py"));
        !needed && !self.is_torch() && self.has_alternative_build(fits)
    }

    /// Whether a file in the same folder, whose name differs only in numbers and accelerator names, passes the test.
    pub(crate) fn has_alternative_build(&self, fits: impl Fn(&Native<'a>) -> bool) -> bool {
        let own = build_family(self.file.name());
        files(self.env).any(|other| {
            other.file.path != self.file.path
                && folder(&other.file.path) == folder(&self.file.path)
                && build_family(other.file.name()) == own
                && fits(&other)
        })
    }

    /// Whether an import of its package opens it: it is a Python module, or code that the import runs names it.
    pub(crate) fn is_opened(&self) -> bool {
        let by_name = || !self.file.name().starts_with("lib");
        self.is_torch()
            || self.elf.opened_by.is_some()
            || self.elf.module.unwrap_or_else(by_name) && !self.is_optional()
    }

    /// Whether its package tries to load it and works without it.
    pub(crate) fn is_optional(&self) -> bool {
        self.elf.optional_in.is_some() && self.elf.opened_by.is_none()
    }

    /// Whether it is one of several builds, and nothing shows that an import opens this one.
    pub(crate) fn is_left_to_choice(&self) -> bool {
        !self.is_opened() && self.has_sibling(|_| true)
    }

    /// Whether it needs torch's libraries in an environment without torch, and no import opens it.
    pub(crate) fn is_plugin_without_torch(&self) -> bool {
        let torch = |name: &str| name.starts_with("libtorch") || name.starts_with("libc10");
        let missing = self.elf.needed.iter().filter(|needed| needed.path.is_none());
        self.env.torch.is_none()
            && !self.is_opened()
            && missing.into_iter().any(|it| torch(&it.name))
    }

    /// Whether it is built for this machine's processor; true if the processor is not known.
    pub(crate) fn is_for(&self, machine: &Machine) -> bool {
        let own = match machine.platform {
            Platform::LinuxX86_64 => "x86_64",
            Platform::LinuxAarch64 => "aarch64",
            _ => return true,
        };
        self.elf.machine == own
    }

    /// Whether one of NVIDIA's packages of CUDA libraries installed it.
    pub(crate) fn is_nvidia(&self) -> bool {
        self.owner_name().is_some_and(|name| name.starts_with("nvidia-"))
    }

    /// Whether it belongs to torch's own package.
    pub(crate) fn is_torch(&self) -> bool {
        self.owner_name().as_deref() == Some("torch")
    }
}

/// A file name without its suffix and the number before the suffix.
fn stem(name: &str) -> &str {
    let name = name.split(".so").next().unwrap_or(name);
    name.trim_end_matches(|c: char| c.is_ascii_digit() || c == '_' || c == '.')
}

/// A file name without digits and accelerator names.
fn build_family(name: &str) -> String {
    let mut name: String = name.chars().filter(|c| !c.is_ascii_digit()).collect();
    for word in ["cpu", "cuda", "rocm", "hip", "xpu"] {
        name = name.replace(word, "");
    }
    name
}

fn folder(path: &str) -> &str {
    path.rsplit_once('/').map_or("", |(folder, _)| folder)
}
