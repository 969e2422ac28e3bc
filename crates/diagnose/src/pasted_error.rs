//! Input of a remedy for a pasted error: the machine, its environments and words of the error.

use crate::access;
use crate::gpu;
use crate::host;
use crate::remedy::Installer;
use crate::rules::Context;
use facts::{Evidence, Fact, Machine, PyEnv};

/// A fact that a rule needs. Without it, no finding does not mean that all is well.
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
    /// The libcuda that programs load.
    CudaLibrary,
    /// NVSwitches, seen from outside a container so that the host's processes are visible.
    NvSwitches,
    /// A memory limit below the machine's memory.
    MemoryLimit,
    /// A container, whose devices are visible only from inside.
    Container,
    /// WSL.
    Wsl,
    /// An NVIDIA GPU on the PCI bus, with or without a driver.
    GpuOnBus,
    /// A trace of NVIDIA: a GPU, the driver or its device files.
    Nvidia,
    /// The driver's device files.
    DeviceFiles,
    /// The kernel's log.
    KernelLog,
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
            Self::MemoryLimit => context.machine.memory.limit_bytes.is_some(),
            Self::Container => host::container(context.machine).is_some_and(|name| name != "wsl"),
            Self::Wsl => host::container(context.machine) == Some("wsl"),
            Self::GpuOnBus => !access::gpus_on_bus(context.machine).is_empty(),
            Self::Nvidia => access::has_nvidia(context.machine),
            Self::KernelLog => context.machine.xids.is_some(),
            Self::DeviceFiles => !context.machine.access.nodes.is_empty(),
            Self::NvSwitches => {
                let seen = context.driver().is_some_and(|driver| driver.nvswitches.is_some());
                seen && host::container(context.machine).is_none()
            }
        }
    }
}

impl Need {
    /// The evidence that this need is met.
    pub(crate) fn evidence(self, context: &Context) -> Vec<Evidence> {
        let dist = |env: &PyEnv, name: &str| {
            let dist = env.dist(name)?;
            Some((format!("{name} {}", dist.version), dist.path.clone()))
        };
        let each = |of: &dyn Fn(&PyEnv) -> Option<(String, String)>| {
            let seen = context.envs.iter().filter_map(of);
            seen.map(|(what, source)| Evidence { what, source }).collect()
        };
        let fact = |name: &str, fact: Option<&Fact<String>>| {
            let seen = fact.into_iter();
            seen.map(|fact| Evidence {
                what: format!("{name} {}", fact.value),
                source: fact.source.clone(),
            })
            .collect()
        };
        match self {
            Self::Environment => each(&|env| Some(("its packages".into(), env.root.clone()))),
            Self::Torch => each(&|env| {
                let torch = env.torch.as_ref()?;
                let built = torch.cuda.as_ref().map_or("no CUDA".into(), |c| format!("CUDA {c}"));
                Some((format!("torch {} with {built}", torch.version), torch.source.clone()))
            }),
            Self::Compiled => each(&|env| {
                let files = env.native_files.iter().filter(|file| file.elf.is_some()).count();
                let some = files > 0;
                some.then(|| (format!("{files} compiled files"), env.root.clone()))
            }),
            Self::Package(name) => each(&|env| dist(env, name)),
            Self::Gpu => gpu::capabilities(context.machine)
                .into_iter()
                .map(|(gpu, _)| Evidence {
                    what: gpu::describe(gpu),
                    source: gpu.name.source.clone(),
                })
                .collect(),
            Self::Driver => fact("driver", context.driver().and_then(|driver| driver.version())),
            Self::CudaLibrary => {
                fact("libcuda", context.driver().and_then(|driver| driver.cuda_library.as_ref()))
            }
            Self::MemoryLimit => {
                let limit = context.machine.memory.limit_bytes.iter();
                let what = |bytes: u64| format!("a limit of {} MiB", bytes >> 20);
                limit
                    .map(|fact| Evidence { what: what(fact.value), source: fact.source.clone() })
                    .collect()
            }
            Self::Container | Self::Wsl => {
                let place =
                    context.machine.virtualisation.as_ref().and_then(|v| v.container.as_ref());
                fact("running in", place)
            }
            Self::GpuOnBus => {
                let pci = context.machine.access.pci.iter();
                let what = |count: usize| format!("{count} NVIDIA GPUs on the PCI bus");
                pci.map(|pci| Evidence { what: what(pci.value.len()), source: pci.source.clone() })
                    .collect()
            }
            Self::DeviceFiles => {
                let nodes = context.machine.access.nodes.iter();
                let what = |mode: u32, path: &str| format!("{path} with mode {mode:o}");
                nodes
                    .map(|node| Evidence {
                        what: what(node.mode, &node.path),
                        source: node.path.clone(),
                    })
                    .collect()
            }
            Self::Nvidia | Self::NvSwitches | Self::KernelLog => Vec::new(),
        }
    }
}

/// A pasted error, with the machine and the environments to diagnose it on.
#[derive(Debug)]
pub struct PastedError<'a> {
    pub(crate) context: Context<'a>,
    /// The whole text with single spaces; empty if a rule was requested by name.
    pub(crate) text: &'a str,
    pub(crate) words: Vec<(String, String)>,
}

impl<'a> PastedError<'a> {
    /// The machine.
    pub(crate) fn machine(&self) -> &'a Machine {
        self.context.machine
    }

    /// The environment that a remedy changes: the first with torch, else the first. An environment that the user names
    /// is listed first.
    pub(crate) fn env(&self) -> Option<&'a PyEnv> {
        let envs = self.context.envs;
        envs.iter().find(|env| env.torch.is_some()).or(envs.first())
    }

    /// The package manager commands for that environment; without one, pip of the `python` on PATH.
    pub(crate) fn installer(&self) -> Installer<'a> {
        self.env().map_or(Installer::on_path(), Installer::of)
    }

    /// The word that a `{name}` of the pattern matched.
    pub(crate) fn word(&self, name: &str) -> Option<&str> {
        self.words.iter().find(|(known, _)| known == name).map(|(_, word)| word.as_str())
    }
}

/// Whether the files here agree with a pasted error.
#[derive(Debug)]
pub struct Observation {
    /// Whether they agree.
    pub agrees: bool,
    /// The observation and its source.
    pub evidence: Evidence,
}

impl Observation {
    /// An answer with its evidence.
    pub(crate) fn new(agrees: bool, what: impl Into<String>, source: impl Into<String>) -> Self {
        Self { agrees, evidence: Evidence { what: what.into(), source: source.into() } }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{env, machines};

    #[test]
    fn needs_are_met_by_recorded_facts() {
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
    fn commands_target_the_environment_with_torch_or_the_path() {
        let machine = machines::a10();
        let envs = [env("/plain").build(), env("/v").uv().torch("2.9.1", None).build()];
        let seen = |envs| PastedError {
            context: Context { machine: &machine, envs },
            text: "",
            words: Vec::new(),
        };
        assert_eq!(
            seen(&envs).installer().install(&["ninja".into()], None).to_string(),
            "uv pip install --python /v/bin/python ninja"
        );
        assert_eq!(
            seen(&[]).installer().install(&["ninja".into()], None).to_string(),
            "python -m pip install ninja"
        );
    }
}
