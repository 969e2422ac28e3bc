use super::{Context, Need, Observation, PastedError, Rule, Text};
use crate::access::{self, Obstacle};
use crate::host;
use facts::{Confidence, Finding, Severity};
pub(super) const RULE: Rule = Rule {
    id: "no-driver",
    title: "no NVIDIA driver answers",
    about: "\
CUDA programs use the GPU through libcuda.so.1, which is part of the driver and of no package of torch. If it is missing
or the kernel module is not loaded, no program can use the GPU. In a container it is passed in from the host (docker run
--gpus all, with NVIDIA's container toolkit installed); after a kernel upgrade the module may have to be rebuilt; Secure
Boot can refuse to load it.

It shows as one of
  NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.
  RuntimeError: Found no NVIDIA driver on your system.
  ImportError: libcuda.so.1: cannot open shared object file: No such file or directory
  RuntimeError: No CUDA GPUs are available

Detected by NVML failing to initialize, or by a GPU on the PCI bus without an NVIDIA driver; a CUDA torch on a machine
without any GPU is reported with severity info.

Check first that this host or job has a GPU; then install or load the driver on the host; for a container, pass the GPUs
in.",
    links: &[
        "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html",
    ],
    texts: &[
        Text::new("NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running."),
        Text::new("Found no NVIDIA driver on your system", "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from http://www.nvidia.com/Download/index.aspx"),
        Text::new("libcuda.so.1: cannot open shared object file", "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"),
        // Printed by fbgemm-gpu 1.3.0, imported where there is no driver.
        Text::new("libnvidia-ml.so.1: cannot open shared object file", "OSError: libnvidia-ml.so.1: cannot open shared object file: No such file or directory"),
        Text::new("No CUDA GPUs are available", "RuntimeError: No CUDA GPUs are available"),
        // cuInit's error 3: libcuda is installed, but the kernel module or nvidia_uvm does not answer.
        Text::new("CUDA driver initialization failed, you might not have a CUDA gpu", "RuntimeError: CUDA driver initialization failed, you might not have a CUDA gpu."),
        Text::new("CUDA API failed at * with error: initialization error", "CUDA API failed at src/cusz.cu:154 with error: initialization error (3)"),
        // JAX prints the driver's error above this line. https://github.com/jax-ml/jax/issues/28376
        Text::new("FAILED_PRECONDITION: No visible GPU devices", "jaxlib.xla_extension.XlaRuntimeError: FAILED_PRECONDITION: No visible GPU devices."),
        Text::new("no CUDA-capable device is detected", "failed call to cuInit: CUDA_ERROR_NO_DEVICE: no CUDA-capable device is detected"),
        Text::new("0 active drivers ([]). There should only be one", "RuntimeError: 0 active drivers ([]). There should only be one."),
        Text::new("kernel driver does not appear to be running on this host", "I tensorflow/stream_executor/cuda/cuda_diagnostics.cc:156] kernel driver does not appear to be running on this host (16c54693e7f2): /proc/driver/nvidia/version does not exist"),
        Text::new("NVMLError_LibraryNotFound: NVML Shared Library Not Found", "pynvml.NVMLError_LibraryNotFound: NVML Shared Library Not Found"),
        Text::new("Failed to initialize NVML: Driver Not Loaded", "Failed to initialize NVML: Driver Not Loaded"),
        // A module that was built for another kernel, or by another compiler; the kernel log has the reason.
        Text::new("could not insert 'nvidia': Exec format error", "modprobe: ERROR: could not insert 'nvidia': Exec format error"),
        Text::new("nvidia-smi: command not found", "bash: nvidia-smi: command not found"),
    ],
    remedy: |seen| match host::container(seen.machine()) {
        Some("wsl") => host::repair_wsl(),
        // The error is of another machine, whose GPU and driver the text alone can tell of.
        _ if !access::has_nvidia(seen.machine()) => crate::explain::list_causes(seen, "no-driver"),
        Some(_) => host::pass_gpus(seen.machine(), None),
        None => {
            let mut lines = vec!["sudo modprobe nvidia".to_owned(), "# if there is no such module:".to_owned()];
            lines.extend(host::update_driver(seen.machine(), 580));
            lines
        }
    },
    needs: &[Need::Nvidia],
    observe: Some(observe),
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    match access::obstacle(context) {
        Some(Obstacle::NoDriver) => vec![missing(context)],
        Some(Obstacle::NoGpu) => vec![no_gpu(context)],
        _ => Vec::new(),
    }
}

fn missing(context: &Context) -> Finding {
    let machine = context.machine;
    let error = machine.driver.as_ref().and_then(|driver| driver.nvml_error.as_ref());
    let module = machine.access.module_file.as_ref();
    let (confidence, title, cause) = match (error, module) {
        (Some(error), _) => (
            Confidence::Likely,
            format!("the NVIDIA driver does not answer: {}", error.value),
            "The driver's library is installed, but its kernel module is not loaded or returns an error.",
        ),
        (None, Some(_)) => (
            Confidence::Likely,
            "the NVIDIA driver is installed and not loaded".to_owned(),
            "The kernel module is installed for this kernel, but the kernel has not loaded it or has unloaded it.",
        ),
        (None, None) => (
            Confidence::Certain,
            "an NVIDIA GPU is here and no driver for it".to_owned(),
            "libcuda and the kernel module are part of the driver; no Python package contains them.",
        ),
    };
    let draft = RULE.finding(Severity::Error, confidence, title);
    let draft = access::evidence(draft, context).fact("the kernel module", module);
    let fix = match error.is_some() || module.is_some() {
        true => vec!["sudo modprobe nvidia".into(), "sudo dmesg | grep -iE 'nvrm|nvidia'".into()],
        false => host::update_driver(machine, 580),
    };
    draft.cause(cause).fix(fix).finish()
}

/// Information only: programs that use CUDA report a missing driver, and all others run.
fn no_gpu(context: &Context) -> Finding {
    let place = host::container(context.machine)
        .map_or("machine".into(), |name| format!("{name} container"));
    let (env, torch) = access::cuda_torch(context)
        .next()
        .map_or((String::new(), String::new()), |(env, torch)| {
            (env.root.clone(), torch.version.clone())
        });
    let sure = context.machine.access.pci.is_some();
    let confidence = if sure { Confidence::Certain } else { Confidence::Likely };
    let title =
        format!("torch {torch} in {env} was built for CUDA, and this {place} has no NVIDIA GPU");
    let draft = access::evidence(RULE.finding(Severity::Info, confidence, title), context);
    draft
        .cause(
            "It runs on the CPU. Code that uses CUDA reports that it found no NVIDIA driver; the CPU build of torch is \
             some gigabytes smaller.",
        )
        .finish()
}

/// A GPU without a driver confirms the message. A machine without a GPU is not the one that printed it.
fn observe(seen: &PastedError) -> Option<Observation> {
    if !access::has_nvidia(seen.machine()) && host::container(seen.machine()) != Some("wsl") {
        return None;
    }
    let driver = seen.machine().driver.as_ref();
    Some(match driver.and_then(|driver| driver.version()) {
        Some(version) => Observation::new(
            false,
            format!("driver {} is here", version.value),
            version.source.clone(),
        ),
        None => Observation::new(
            true,
            "no trace of an NVIDIA driver",
            "/sys/module/nvidia, /proc/driver/nvidia, libcuda.so.1",
        ),
    })
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Severity::*};
    use machines::refused;

    /// The commands for a text that was pasted in a container without a GPU.
    fn elsewhere(text: &str) -> Vec<String> {
        let torch = [env("/v").torch("2.9.1+cu128", Some("12.8")).build()];
        for envs in [&[], torch.as_slice()] {
            let found = &crate::explain(text, &machines::in_container(machines::x86()), envs)[0];
            assert_eq!((found.rule.id, found.confirmed_here), ("no-driver", None));
            assert!(found.findings.is_empty() && found.evidence.is_empty(), "{found:#?}");
        }
        crate::explain(text, &machines::in_container(machines::x86()), &[])[0].fix.clone()
    }

    #[test]
    fn a_machine_without_nvidia_lists_the_causes_by_the_words_of_the_text() {
        let text = "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.";
        for (words, first) in [
            ("It doesnt show me the gpus.", "no GPU"),
            ("I installed nvidia-dkms and use kernel linux-cachyos.", "running kernel"),
            ("It is in WSL2.", "WSL"),
            ("docker run --rm image nvidia-smi", "container"),
        ] {
            let fix = elsewhere(&format!("{words}\n{text}"));
            assert!(fix[0].starts_with("# ") && fix[0].contains(first), "{words}: {fix:#?}");
            for cause in ["no GPU", "running kernel", "not installed", "container"] {
                assert!(fix.iter().any(|line| line.contains(cause)), "{cause}: {fix:#?}");
            }
        }
    }

    #[test]
    fn missing_driver_confirms_the_message() {
        let text = "RuntimeError: Found no NVIDIA driver on your system.";
        let bare = machines::on_bus(machines::x86(), None);
        assert_eq!(crate::explain(text, &bare, &[])[0].confirmed_here, Some(true));
        assert_eq!(crate::explain(text, &machines::x86(), &[])[0].confirmed_here, None);
        assert_eq!(crate::explain(text, &machines::h200(), &[])[0].confirmed_here, Some(false));
    }

    pub(super) fn cases() -> Vec<Case> {
        let torch = || vec![env("/v").torch("2.9.1+cu128", Some("12.8")).build()];
        vec![
            Case::new(
                "the module is not loaded",
                refused(machines::a10(), "Driver Not Loaded"),
                torch(),
            )
            .finds(
                Error,
                Likely,
                &[
                    "NVML says: Driver Not Loaded [NVML nvmlInit_v2]",
                    "NVIDIA A10",
                    "sudo modprobe nvidia",
                ],
            ),
            Case::new(
                "a GPU on the bus and no driver",
                machines::on_bus(machines::x86(), None),
                torch(),
            )
            .finds(
                Error,
                Certain,
                &[
                    "an NVIDIA GPU (PCI device 0x2684) at 0000:01:00.0 with no driver",
                    "nvidia:580",
                    "/v",
                ],
            ),
            Case::new("a machine without a GPU", machines::x86(), torch())
                .finds(Info, Likely, &["torch 2.9.1+cu128 in /v", "this machine has no NVIDIA GPU"])
                .without(&["pip"]),
            Case::new(
                "a container without its GPUs is another rule",
                machines::in_container(machines::on_bus(machines::x86(), Some("nvidia"))),
                torch(),
            ),
            Case::new(
                "a mismatch is another rule",
                refused(machines::a10(), "Driver/library version mismatch"),
                torch(),
            ),
            Case::new("libraries alone", refused(machines::x86(), "Driver Not Loaded"), vec![]),
            Case::new("a driver that answers", machines::a10(), torch()),
        ]
    }
}
