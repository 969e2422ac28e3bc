use super::{Look, Rule, Seen, Text};
use crate::{gpu, host};
pub(super) const RULE: Rule = Rule {
    id: "forward-compatibility",
    title: "a compatibility libcuda that this GPU does not take",
    about: "\
NVIDIA's forward compatibility package (cuda-compat) puts a newer libcuda in front of the driver's own, so that a
newer CUDA runs on an older driver. Only data-centre GPUs take it; on GeForce and workstation cards CUDA refuses to
start. CUDA containers have it built in, and it stays in front when the host's driver is upgraded.

It shows as torch.cuda.is_available() being False, with
  Error 804: forward compatibility was attempted on non supported HW
and, where the package does not fit the driver, with
  Error 803: system has unsupported display driver / cuda driver combination

Take the compat folder off the library path, or bring the driver to the CUDA release the program wants.",
    links: &[
        "https://docs.nvidia.com/deploy/cuda-compatibility/forward-compatibility.html",
    ],
    texts: &[
        Text {
            pattern: "Error 804: forward compatibility was attempted on non supported HW",
            sample: "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda functions before calling NumCudaDevices() that might have already set an error? Error 804: forward compatibility was attempted on non supported HW",
        },
        Text {
            pattern: "Error 803: system has unsupported display driver / cuda driver combination",
            sample: "UserWarning: CUDA initialization: Unexpected error from cudaGetDeviceCount(). Error 803: system has unsupported display driver / cuda driver combination (Triggered internally at ../c10/cuda/CUDAFunctions.cpp:108.)",
        },
    ],
    remedy: |seen| {
        let mut lines = vec![
            "ldconfig -p | grep libcuda.so".to_owned(),
            "# take its compat folder off LD_LIBRARY_PATH and out of /etc/ld.so.conf.d:".to_owned(),
            "unset LD_LIBRARY_PATH".to_owned(),
            "sudo rm -f /etc/ld.so.conf.d/*compat*.conf && sudo ldconfig".to_owned(),
            "# or, with a driver as new as the program's CUDA, none of it is needed:".to_owned(),
        ];
        lines.extend(host::update_driver(seen.machine(), 580));
        lines
    },
    look: Some(look),
    ..Rule::BLANK
};

/// GeForce cards take no forward compatibility whatever its version; about others the GPU's name tells nothing.
fn look(seen: &Seen) -> Option<Look> {
    let gpu = gpu::nvidia(seen.machine()).next()?;
    gpu::all_geforce(seen.machine())
        .then(|| Look::new(true, gpu::describe(gpu), gpu.name.source.clone()))
}

#[cfg(test)]
mod tests {
    use crate::test_support::machines;

    #[test]
    fn a_geforce_confirms_and_others_cannot_tell() {
        let text = "Error 804: forward compatibility was attempted on non supported HW";
        assert_eq!(crate::explain(text, &machines::rtx4090(), &[])[0].confirmed_here, Some(true));
        assert_eq!(crate::explain(text, &machines::h200(), &[])[0].confirmed_here, None);
    }
}
