//! What a remedy is written from when someone pasted an error: the machine, its environments and words of the error.

use crate::gpu;
use crate::host;
use crate::remedy::Installer;
use crate::rules::Context;
use facts::{Machine, PyEnv};

/// What has to be here before a rule's silence means that all is well.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Need {
    /// A Python environment.
    Environment,
    /// An environment with torch.
    Torch,
    /// An environment whose compiled files were read.
    Compiled,
    /// An environment with this distribution.
    Package(&'static str),
    /// An NVIDIA GPU whose compute capability is known.
    Gpu,
    /// An NVIDIA driver.
    Driver,
    /// The libcuda that programs get.
    CudaLibrary,
    /// NVSwitches, and the processes of the system that has them.
    NvSwitches,
}

impl Need {
    pub(crate) fn met(self, context: &Context) -> bool {
        match self {
            Self::Environment => !context.envs.is_empty(),
            Self::Torch => context.envs.iter().any(|env| env.torch.is_some()),
            Self::Compiled => context
                .envs
                .iter()
                .any(|env| env.native_files.iter().any(|file| file.elf.is_some())),
            Self::Package(name) => context.envs.iter().any(|env| env.dist(name).is_some()),
            Self::Gpu => !gpu::capabilities(context.machine).is_empty(),
            Self::Driver => context.machine.driver.is_some(),
            Self::CudaLibrary => {
                context.driver().is_some_and(|driver| driver.cuda_library.is_some())
            }
            Self::NvSwitches => {
                let seen = context.driver().is_some_and(|driver| driver.nvswitches.is_some());
                seen && host::container(context.machine).is_none()
            }
        }
    }
}

/// A pasted error on this machine.
#[derive(Debug)]
pub struct Seen<'a> {
    pub(crate) context: Context<'a>,
    /// The whole text with single spaces; empty when a rule was asked for by name.
    pub(crate) text: &'a str,
    pub(crate) words: Vec<(String, String)>,
}

impl<'a> Seen<'a> {
    /// The machine.
    pub(crate) fn machine(&self) -> &'a Machine {
        self.context.machine
    }

    /// The environment a remedy is for: the first with torch, else the first. The one the user names comes first.
    pub(crate) fn env(&self) -> Option<&'a PyEnv> {
        let envs = self.context.envs;
        envs.iter().find(|env| env.torch.is_some()).or(envs.first())
    }

    /// The words that change that environment; pip's for the `python` on PATH where there is none.
    pub(crate) fn installer(&self) -> Installer<'a> {
        self.env().map_or(Installer::on_path(), Installer::of)
    }

    /// What a `{name}` of the pattern stood for.
    pub(crate) fn word(&self, name: &str) -> Option<&str> {
        self.words.iter().find(|(known, _)| known == name).map(|(_, word)| word.as_str())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{env, machines};

    #[test]
    fn what_is_not_here_is_not_judged() {
        let machine = machines::x86();
        let gpu = machines::a10();
        let torch = [env("/v").torch("2.9.1+cu128", Some("12.8")).build()];
        let check = |need: Need, machine: &Machine, envs: &[PyEnv], expect: bool| {
            assert_eq!(need.met(&Context { machine, envs }), expect, "{need:?}");
        };
        check(Need::Environment, &machine, &[], false);
        check(Need::Environment, &machine, &[env("/v").build()], true);
        check(Need::Torch, &machine, &[env("/v").build()], false);
        check(Need::Torch, &machine, &torch, true);
        check(Need::Package("Torch"), &machine, &torch, true);
        check(Need::Package("triton"), &machine, &torch, false);
        check(Need::Gpu, &machine, &torch, false);
        check(Need::Gpu, &gpu, &[], true);
        check(Need::Driver, &gpu, &[], true);
        check(Need::Driver, &machine, &[], false);
    }

    #[test]
    fn commands_fit_the_environment_with_torch_or_the_path() {
        let machine = machines::a10();
        let envs = [env("/plain").build(), env("/v").uv().torch("2.9.1", None).build()];
        let seen = |envs| Seen {
            context: Context { machine: &machine, envs },
            text: "",
            words: Vec::new(),
        };
        assert_eq!(
            seen(&envs).installer().install(&["ninja".into()], None),
            "uv pip install --python /v/bin/python ninja"
        );
        assert_eq!(
            seen(&[]).installer().install(&["ninja".into()], None),
            "python -m pip install ninja"
        );
    }
}
