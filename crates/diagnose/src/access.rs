//! The reason why programs have no NVIDIA GPU: one per machine, so that one fault gives one finding.

use crate::draft::Draft;
use crate::rules::Context;
use crate::{gpu, host};
use facts::{DeviceNode, Machine, MachineKind, PciGpu, PyEnv, Torch};

/// Why programs on this machine have no NVIDIA GPU.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Obstacle {
    /// The user may not open the device files.
    Permissions,
    /// WSL without the driver files that Windows mounts.
    Wsl,
    /// A container that lost access to its GPUs.
    LostGpus,
    /// A container that was started without GPUs.
    NotPassed,
    /// The kernel bound the GPU to nouveau.
    Nouveau,
    /// The kernel module is installed, and Secure Boot refuses to load it.
    SecureBoot,
    /// A GPU or a driver library is present, and no driver answers.
    NoDriver,
    /// A CUDA build of torch on a machine without a GPU: nothing to repair.
    NoGpu,
}

/// The first obstacle that explains the others. `None` if the driver answers, if no environment uses a GPU, or if
/// another rule reports the reason (two driver versions, a driver call that did not return).
pub(crate) fn obstacle(context: &Context) -> Option<Obstacle> {
    let machine = context.machine;
    let driver = machine.driver.as_ref();
    let refusal = driver.and_then(|driver| driver.nvml_error.as_ref());
    let refused = |words: &str| refusal.is_some_and(|error| error.value.contains(words));
    let linux = machine.platform.as_str().starts_with("linux");
    if !linux
        || machine.kind == MachineKind::Jetson
        || driver.is_some_and(|driver| driver.no_answer.is_some())
        || refused("mismatch")
    {
        return None;
    }
    if !closed(machine).is_empty() || refused("Insufficient Permissions") {
        return Some(Obstacle::Permissions);
    }
    if refusal.is_none() && gpu::nvidia(machine).next().is_some() {
        return None;
    }
    let wanted = cuda_torch(context).next().is_some();
    let gpu_here = !gpus_on_bus(machine).is_empty() || gpu::nvidia(machine).next().is_some();
    match host::container(machine) {
        Some("wsl") => (refusal.is_some() || wanted).then_some(Obstacle::Wsl),
        Some(_) if refused("Unknown Error") => Some(Obstacle::LostGpus),
        Some(_) => {
            let asks = refusal.is_some() || loaded(machine) || gpu_here;
            match (wanted, asks) {
                (true, true) => Some(Obstacle::NotPassed),
                (true, false) => Some(Obstacle::NoGpu),
                // The image has the driver's tools and the host has a GPU, but no environment uses one.
                (false, _) => None,
            }
        }
        None => {
            let bound = |name: &str| {
                let mut gpus = gpus_on_bus(machine).iter();
                gpus.any(|gpu| gpu.driver.as_deref() == Some(name))
            };
            let off = machine.access.secure_boot.as_ref().is_none_or(|secure| !secure.value);
            if gpu_here && bound("nouveau") && (wanted || driver.is_some()) {
                Some(Obstacle::Nouveau)
            } else if gpu_here && bound("vfio-pci") {
                // The GPU is reserved for a virtual machine.
                wanted.then_some(Obstacle::NoGpu)
            } else if gpu_here && !loaded(machine) && !off && machine.access.module_file.is_some() {
                Some(Obstacle::SecureBoot)
            } else if gpu_here && (wanted || refusal.is_some()) || wanted && refusal.is_some() {
                Some(Obstacle::NoDriver)
            } else {
                wanted.then_some(Obstacle::NoGpu)
            }
        }
    }
}

/// Whether this machine has a trace of NVIDIA: a GPU, the driver or its device files. Without one, its state says nothing about
/// an error that names a GPU or the driver: the error is of another machine.
pub(crate) fn has_nvidia(machine: &Machine) -> bool {
    machine.driver.is_some()
        || gpu::nvidia(machine).next().is_some()
        || !gpus_on_bus(machine).is_empty()
        || !machine.access.nodes.is_empty()
}

/// The environments whose torch was built for CUDA.
pub(crate) fn cuda_torch<'a>(
    context: &Context<'a>,
) -> impl Iterator<Item = (&'a PyEnv, &'a Torch)> + use<'a> {
    let envs = context.envs;
    let torch = |env: &'a PyEnv| Some((env, env.torch.as_ref()?));
    envs.iter().filter_map(torch).filter(|(_, torch)| torch.cuda.is_some())
}

/// NVIDIA's display controllers on the PCI bus.
pub(crate) fn gpus_on_bus(machine: &Machine) -> &[PciGpu] {
    machine.access.pci.as_ref().map_or(&[], |gpus| gpus.value.as_slice())
}

/// The device files of the driver that this process may not open.
pub(crate) fn closed(machine: &Machine) -> Vec<&DeviceNode> {
    // Only the driver's daemons and the display open the other device files; CUDA does not need them.
    let computing = |path: &str| {
        let name = path.strip_prefix("/dev/nvidia").unwrap_or_default();
        name == "ctl"
            || name == "-uvm"
            || !name.is_empty() && name.bytes().all(|b| b.is_ascii_digit())
    };
    machine.access.nodes.iter().filter(|node| computing(&node.path) && !node.opens).collect()
}

/// Whether NVIDIA's kernel module is loaded, according to the kernel's own files.
pub(crate) fn loaded(machine: &Machine) -> bool {
    let module = machine.driver.as_ref().and_then(|driver| driver.kernel_module.as_ref());
    module.is_some_and(|module| module.source.starts_with('/'))
}

/// Adds the NVML error, the GPUs, their drivers and the environments with a CUDA torch as evidence.
pub(crate) fn evidence(mut draft: Draft, context: &Context) -> Draft {
    let machine = context.machine;
    if let Some(error) = machine.driver.as_ref().and_then(|driver| driver.nvml_error.as_ref()) {
        draft = draft.evidence(format!("NVML says: {}", error.value), error.source.clone());
    }
    for gpu in gpu::nvidia(machine) {
        draft = draft.evidence(gpu::describe(gpu), gpu.name.source.clone());
    }
    let bus =
        machine.access.pci.iter().flat_map(|pci| pci.value.iter().map(|gpu| (gpu, &pci.source)));
    for (gpu, source) in bus {
        let driver =
            gpu.driver.as_deref().map_or("no driver".into(), |name| format!("driver {name}"));
        let what =
            format!("an NVIDIA GPU (PCI device {}) at {} with {driver}", gpu.device, gpu.bus);
        draft = draft.evidence(what, format!("{source}/{}", gpu.bus));
    }
    for (env, torch) in cuda_torch(context) {
        draft = draft.evidence(
            format!("torch {} wants CUDA in {}", torch.version, env.root),
            torch.source.clone(),
        );
    }
    draft
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::test_support::{env, machines};
    use facts::Fact;

    /// A machine has at most one obstacle, and one finding for it.
    #[test]
    fn each_machine_has_one_obstacle() {
        let torch = [env("/v").torch("2.11.0", Some("13.0")).build()];
        let cpu = [env("/v").torch("2.11.0+cpu", None).build()];
        let check = |machine: &Machine, envs: &[PyEnv], expect: Option<Obstacle>| {
            let context = Context { machine, envs };
            assert_eq!(obstacle(&context), expect);
            let rules = [
                "no-driver",
                "container-without-gpus",
                "container-lost-gpus",
                "wsl-gpu",
                "nouveau",
                "secure-boot",
                "device-permissions",
            ];
            let found = crate::run(machine, envs);
            let of = found.iter().filter(|finding| rules.contains(&finding.rule.as_str())).count();
            assert_eq!(of, usize::from(expect.is_some()), "{found:#?}");
        };
        check(&machines::h200(), &torch, None);
        check(&machines::x86(), &torch, Some(Obstacle::NoGpu));
        check(&machines::x86(), &cpu, None);
        check(&machines::x86(), &[], None);
        check(&machines::m3_max(), &torch, None);
        check(&machines::jetson_orin(), &torch, None);
        check(&machines::in_container(machines::x86()), &torch, Some(Obstacle::NoGpu));
        check(&machines::on_bus(machines::x86(), None), &torch, Some(Obstacle::NoDriver));
        check(&machines::on_bus(machines::x86(), None), &cpu, None);
        check(&machines::on_bus(machines::x86(), Some("nouveau")), &torch, Some(Obstacle::Nouveau));
        check(&machines::on_bus(machines::x86(), Some("nouveau")), &cpu, None);
        check(&machines::on_bus(machines::x86(), Some("vfio-pci")), &torch, Some(Obstacle::NoGpu));
        let mut signed = machines::on_bus(machines::x86(), None);
        signed.access.secure_boot = Some(Fact::new(true, "efivars"));
        check(&signed, &torch, Some(Obstacle::NoDriver));
        signed.access.module_file = Some(Fact::new("updates/dkms/nvidia.ko".into(), "modules.dep"));
        check(&signed, &cpu, Some(Obstacle::SecureBoot));
        let inside = machines::in_container(machines::on_bus(machines::x86(), Some("nvidia")));
        check(&inside, &torch, Some(Obstacle::NotPassed));
        check(&inside, &cpu, None);
        let refused = |machine, words| machines::refused(machine, words);
        let mismatch = refused(machines::a10(), "Driver/library version mismatch");
        check(&mismatch, &torch, None);
        let a10 = machines::in_container(machines::a10());
        check(&refused(a10, "Unknown Error"), &cpu, Some(Obstacle::LostGpus));
        let denied = refused(machines::a10(), "Insufficient Permissions");
        check(&denied, &cpu, Some(Obstacle::Permissions));
        check(&machines::closed(machines::a10()), &cpu, Some(Obstacle::Permissions));
        let wsl = machines::within(machines::x86(), "wsl");
        check(&wsl, &torch, Some(Obstacle::Wsl));
        check(&wsl, &cpu, None);
    }
}
