use super::{Context, Look, Rule, Seen, Text};
use crate::{gpu, host};
use facts::{Confidence, Finding, Severity};
pub(super) const RULE: Rule = Rule {
    id: "no-driver",
    title: "no NVIDIA driver answers",
    about: "\
CUDA programs talk to the GPU through libcuda.so.1, which only the driver brings: no package of torch's does. Where it
is missing or its kernel module is not loaded, there is no GPU for any program. In a container it is passed in from
the host (docker run --gpus all, with NVIDIA's container toolkit installed); after a kernel upgrade the module may
have to be built again; secure boot can refuse to load it.

It shows as one of
  NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.
  RuntimeError: Found no NVIDIA driver on your system.
  ImportError: libcuda.so.1: cannot open shared object file: No such file or directory
  RuntimeError: No CUDA GPUs are available

Seen by NVML refusing to start while a GPU or a CUDA torch is here.

Install or load the driver on the host; in a container, pass the GPUs in.",
    links: &[
        "https://docs.nvidia.com/datacenter/cloud-native/container-toolkit/latest/install-guide.html",
    ],
    texts: &[
        Text {
            pattern: "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver",
            sample: "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed and running.",
        },
        Text {
            pattern: "Found no NVIDIA driver on your system",
            sample: "RuntimeError: Found no NVIDIA driver on your system. Please check that you have an NVIDIA GPU and installed a driver from http://www.nvidia.com/Download/index.aspx",
        },
        Text {
            pattern: "libcuda.so.1: cannot open shared object file",
            sample: "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory",
        },
        Text {
            pattern: "RuntimeError: No CUDA GPUs are available",
            sample: "RuntimeError: No CUDA GPUs are available",
        },
        Text {
            pattern: "Failed to initialize NVML: Driver Not Loaded",
            sample: "Failed to initialize NVML: Driver Not Loaded",
        },
    ],
    remedy: |seen| match host::container(seen.machine()) {
        Some("wsl") => host::update_driver(seen.machine(), 580),
        Some(_) => vec!["# start the container again with its GPUs:".into(), "docker run --gpus all ...".into()],
        None => {
            let mut lines = vec!["sudo modprobe nvidia".to_owned(), "# where there is no such module:".to_owned()];
            lines.extend(host::update_driver(seen.machine(), 580));
            lines
        }
    },
    look: Some(look),
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// What NVML says when the libraries and the module differ; that is another rule's matter.
const MISMATCH: &str = "mismatch";

fn check(context: &Context) -> Vec<Finding> {
    let machine = context.machine;
    let Some(error) = machine.driver.as_ref().and_then(|driver| driver.nvml_error.as_ref()) else {
        return Vec::new();
    };
    let torch =
        context.envs.iter().filter_map(|env| env.torch.as_ref()).find(|torch| torch.cuda.is_some());
    let gpu = gpu::nvidia(machine).next();
    // Libraries without a GPU or a program for one are no fault: a container made for other hosts has them.
    if error.value.contains(MISMATCH) || (gpu.is_none() && torch.is_none()) {
        return Vec::new();
    }
    let mut draft = RULE
        .finding(
            Severity::Error,
            Confidence::Likely,
            format!("the NVIDIA driver does not answer: {}", error.value),
        )
        .evidence(format!("NVML says: {}", error.value), error.source.clone());
    if let Some(gpu) = gpu {
        draft = draft.evidence(gpu::describe(gpu), gpu.name.source.clone());
    }
    if let Some(torch) = torch {
        draft = draft.evidence(format!("torch {} wants CUDA", torch.version), torch.source.clone());
    }
    let fix = match host::container(machine) {
        Some("wsl") => host::update_driver(machine, 580),
        Some(_) => vec![
            "# start the container again with its GPUs:".into(),
            "docker run --gpus all ...".into(),
        ],
        None => vec!["sudo modprobe nvidia".into(), "sudo dmesg | grep -i nvrm".into()],
    };
    vec![
        draft
            .cause("The driver's library is here, but its kernel module is not loaded or refuses.")
            .fix(fix)
            .done(),
    ]
}

/// Without the words, a machine without a driver is simply a machine without a GPU.
fn look(seen: &Seen) -> Option<Look> {
    let driver = seen.machine().driver.as_ref();
    Some(match driver.and_then(|driver| driver.version()) {
        Some(version) => {
            Look::new(false, format!("driver {} is here", version.value), version.source.clone())
        }
        None => Look::new(
            true,
            "no trace of an NVIDIA driver",
            "/sys/module/nvidia, /proc/driver/nvidia, libcuda.so.1",
        ),
    })
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Fact, Machine, Severity::*};

    fn refused(mut machine: Machine, words: &str) -> Machine {
        let driver = machine.driver.get_or_insert_default();
        driver.nvml_error = Some(Fact::new(words.into(), "NVML nvmlInit_v2"));
        machine
    }

    #[test]
    fn the_words_are_confirmed_where_no_driver_is() {
        let text = "RuntimeError: Found no NVIDIA driver on your system.";
        assert_eq!(crate::explain(text, &machines::x86(), &[])[0].confirmed_here, Some(true));
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
                "a container without its GPUs",
                refused(machines::in_container(machines::x86()), "Driver Not Loaded"),
                torch(),
            )
            .finds(
                Error,
                Likely,
                &["torch 2.9.1+cu128 wants CUDA", "docker run --gpus all"],
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
