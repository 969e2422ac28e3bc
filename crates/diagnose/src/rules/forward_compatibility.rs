use super::{Context, Need, Observation, PastedError, Rule, Text};
use crate::{gpu, host};
use facts::{Confidence, Finding, Machine, Severity};
use knowledge::Version;
use std::cmp::Ordering;

pub(super) const RULE: Rule = Rule {
    id: "forward-compatibility",
    title: "a forward-compatibility libcuda that this GPU does not support",
    about: "\
NVIDIA's forward compatibility package (cuda-compat) puts a newer libcuda on the library path before the driver's own,
so that a newer CUDA runs on an older driver. Only data-centre GPUs support it; on GeForce and workstation cards CUDA
refuses to start. CUDA container images include it, and it stays first when the host's driver is upgraded.

It shows as torch.cuda.is_available() being False, with
  Error 804: forward compatibility was attempted on non supported HW
and, where the package does not fit the driver, with
  Error 803: system has unsupported display driver / cuda driver combination

Detected by the first libcuda on the loader's path being in a compat folder and of another version than the module.

Remove the compat folder from the library path, or update the driver to the CUDA release the program needs.",
    links: &[
        "https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html",
    ],
    also: &[],
    texts: &[
        Text::new("Error 804: forward compatibility was attempted on non supported HW", "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 804: forward compatibility was attempted on non supported HW"),
        Text::new("Error 803: system has unsupported display driver / cuda driver combination", "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver combination (Triggered internally at ../c10/cuda/CUDAFunctions.cpp:108.)"),
        Text::new("forward compatibility was attempted on non supported HW", "RuntimeError: CUDA failed with error forward compatibility was attempted on non supported HW"),
        Text::new("system has unsupported display driver / cuda driver combination", "CUDA: Check failed: e == cudaSuccess (803 vs. 0) : system has unsupported display driver / cuda driver combination"),
    ],
    role: super::Role::Cause,
    remedy: |seen| remove_compat(seen.machine()),
    needs: &[Need::CudaLibrary],
    check: Some(check),
    check_gpus: None,
    check_fleet: None,
    observe: Some(observe),
    #[cfg(test)]
    cases: tests::cases,
};

fn remove_compat(machine: &Machine) -> Vec<String> {
    let mut lines = vec![
        "ldconfig -p | grep libcuda.so".to_owned(),
        "# remove its compat folder from LD_LIBRARY_PATH and /etc/ld.so.conf.d:".to_owned(),
        "unset LD_LIBRARY_PATH".to_owned(),
        "sudo rm -f /etc/ld.so.conf.d/*compat*.conf && sudo ldconfig".to_owned(),
        "# or update the driver to the program's CUDA, which needs no compat package:".to_owned(),
    ];
    lines.extend(host::update_driver(machine, 580));
    lines
}

fn check(context: &Context) -> Vec<Finding> {
    judge(context.machine).into_iter().collect()
}

/// A compatibility libcuda before the driver's own on the library path, of another version than the loaded module.
fn judge(machine: &Machine) -> Option<Finding> {
    let driver = machine.driver.as_ref()?;
    let library = driver.cuda_library.as_ref()?;
    let module = driver.kernel_module.as_ref()?;
    let gpu = gpu::nvidia(machine).next()?;
    let (folder, name) = library.value.rsplit_once('/')?;
    if !folder.split('/').any(|part| part.starts_with("compat") || part.starts_with("cuda-compat"))
    {
        return None;
    }
    let release = Version::parse(name.strip_prefix("libcuda.so.")?)?;
    let own = Version::parse(&module.value)?;
    let (severity, confidence, cause) = match release.release.cmp(&own.release) {
        Ordering::Equal => return None,
        Ordering::Less => (
            Severity::Error,
            Confidence::Likely,
            "A libcuda older than the loaded module fails with error 803: it stayed first on the library path when the \
             driver was upgraded.",
        ),
        Ordering::Greater if gpu::all_geforce(machine) => (
            Severity::Error,
            Confidence::Certain,
            "A libcuda newer than the loaded module starts on data-centre GPUs only (error 804 on others).",
        ),
        // The package's purpose on a data-centre GPU.
        Ordering::Greater => return None,
    };
    let title = format!(
        "programs load NVIDIA's compatibility libcuda {} instead of driver {}'s own",
        name.trim_start_matches("libcuda.so."),
        module.value
    );
    let finding = RULE
        .finding(severity, confidence, title)
        .evidence(format!("found first, by {}", library.source), library.value.clone())
        .fact("kernel module", Some(module))
        .evidence(gpu::describe(gpu), gpu.name.source.clone())
        .cause(cause)
        .fix(remove_compat(machine))
        .finish();
    Some(finding)
}

/// A GeForce GPU confirms the error, since it never supports forward compatibility; other GPUs do not decide it. A known
/// libcuda is left to `check`.
fn observe(seen: &PastedError) -> Option<Observation> {
    let gpu = gpu::nvidia(seen.machine()).next()?;
    let known = seen.context.driver().is_some_and(|driver| driver.cuda_library.is_some());
    (!known && gpu::all_geforce(seen.machine()))
        .then(|| Observation::new(true, gpu::describe(gpu), gpu.name.source.clone()))
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, machines};
    use facts::{Confidence, Fact, Machine, Severity};

    fn with_library(mut machine: Machine, path: &str) -> Machine {
        let driver = machine.driver.as_mut().expect("a driver");
        driver.cuda_library =
            Some(Fact::new(path.into(), "LD_LIBRARY_PATH /usr/local/cuda/compat"));
        machine
    }

    pub(super) fn cases() -> Vec<Case> {
        let own = "/usr/lib/x86_64-linux-gnu/libcuda.so.550.163.01";
        let newer = "/usr/local/cuda-12.8/compat/libcuda.so.570.86.15";
        let older = "/usr/local/cuda-12.0/compat/libcuda.so.525.60.13";
        let case = |what, machine, path| Case::new(what, with_library(machine, path), Vec::new());
        vec![
            case("a newer libcuda first, on GeForce", machines::rtx4090(), newer).finds(
                Severity::Error,
                Confidence::Certain,
                &[
                    "compatibility libcuda 570.86.15",
                    "kernel module 550.163.01",
                    "error 804",
                    "unset LD_LIBRARY_PATH",
                ],
            ),
            case("an older libcuda first, from before an upgrade", machines::h200(), older).finds(
                Severity::Error,
                Confidence::Likely,
                &["compatibility libcuda 525.60.13", "error 803"],
            ),
            case("the driver's own", machines::rtx4090(), own),
            case(
                "a newer libcuda on a data-centre GPU",
                machines::a10(),
                "/usr/local/cuda-13.0/compat/libcuda.so.580.65.06",
            ),
            Case::new("a libcuda that is not known", machines::rtx4090(), Vec::new()),
        ]
    }

    #[test]
    fn only_geforce_confirms_the_error() {
        let text = "Error 804: forward compatibility was attempted on non supported HW";
        assert_eq!(crate::explain(text, &machines::rtx4090(), &[])[0].confirmed_here, Some(true));
        assert_eq!(crate::explain(text, &machines::h200(), &[])[0].confirmed_here, None);
        let own =
            with_library(machines::rtx4090(), "/usr/lib/x86_64-linux-gnu/libcuda.so.550.163.01");
        assert_eq!(crate::explain(text, &own, &[])[0].confirmed_here, Some(false));
    }
}
