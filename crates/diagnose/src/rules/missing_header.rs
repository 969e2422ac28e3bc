use super::{Observation, PastedError, Rule, Text};
use crate::host;
use crate::torch_build::{installed, live_dist};
pub(super) const RULE: Rule = Rule {
    id: "missing-header",
    title: "a build that lacks a header",
    about: "\
A compiler stops at the first header it does not find. Each header belongs to a package: pybind11/pybind11.h to
pybind11; Python.h to the interpreter's development files; cuda_runtime.h, cublas_v2.h and the like to the CUDA toolkit
(not its runtime packages); cudnn.h and nccl.h to separate packages; CUTLASS headers to a git submodule.

It shows as
  fatal error: pybind11/pybind11.h: No such file or directory

Install the package of the header where the build runs: pybind11 in the environment (and build without isolation), the
others with the system's package manager; fetch submodules with `git submodule update --init --recursive`.",
    links: &[
        "https://pybind11.readthedocs.io/en/stable/installing.html",
    ],
    texts: &[
        Text::new("fatal error: pybind11/pybind11.h: No such file or directory", "csrc/pybind.cc:1:10: fatal error: pybind11/pybind11.h: No such file or directory
    1 | #include <pybind11/pybind11.h>
compilation terminated."),
        Text::new("fatal error: Python.h: No such file or directory", "/v/include/pyconfig.h:3:12: fatal error: Python.h: No such file or directory"),
        Text::new("fatal error: cuda_runtime.h: No such file or directory", "fatal error: cuda_runtime.h: No such file or directory"),
        Text::new("fatal error: cuda_runtime_api.h: No such file or directory", "fatal error: cuda_runtime_api.h: No such file or directory"),
        Text::new("fatal error: cublas_v2.h: No such file or directory", "fatal error: cublas_v2.h: No such file or directory"),
        Text::new("fatal error: cusparse.h: No such file or directory", "fatal error: cusparse.h: No such file or directory"),
        Text::new("fatal error: cusolverDn.h: No such file or directory", "fatal error: cusolverDn.h: No such file or directory"),
        Text::new("fatal error: curand_kernel.h: No such file or directory", "fatal error: curand_kernel.h: No such file or directory"),
        Text::new("fatal error: curand.h: No such file or directory", "fatal error: curand.h: No such file or directory"),
        Text::new("fatal error: cufft.h: No such file or directory", "fatal error: cufft.h: No such file or directory"),
        Text::new("fatal error: nvrtc.h: No such file or directory", "fatal error: nvrtc.h: No such file or directory"),
        Text::new("fatal error: cuda_fp16.h: No such file or directory", "fatal error: cuda_fp16.h: No such file or directory"),
        Text::new("fatal error: cudnn.h: No such file or directory", "fatal error: cudnn.h: No such file or directory"),
        Text::new("fatal error: nccl.h: No such file or directory", "fatal error: nccl.h: No such file or directory"),
        Text::new("fatal error: cutlass/{header}: No such file or directory", "fatal error: cutlass/cutlass.h: No such file or directory"),
        Text::new("fatal error: cute/{header}: No such file or directory", "fatal error: cute/tensor.hpp: No such file or directory"),
        Text::new("fatal error: torch/extension.h: No such file or directory", "fatal error: torch/extension.h: No such file or directory"),
    ],
    remedy: |seen| commands(seen),
    observe: Some(observe),
    ..Rule::BLANK
};

fn wants(seen: &PastedError, header: &str) -> bool {
    seen.text.contains(&format!("fatal error: {header}"))
}

/// The headers of a CUDA toolkit.
const TOOLKIT: [&str; 10] = [
    "cuda_runtime.h",
    "cuda_runtime_api.h",
    "cublas_v2.h",
    "cusparse.h",
    "cusolverDn.h",
    "curand_kernel.h",
    "curand.h",
    "cufft.h",
    "nvrtc.h",
    "cuda_fp16.h",
];

fn commands(seen: &PastedError) -> Vec<String> {
    let installer = seen.installer();
    let cuda = seen.env().and_then(installed).and_then(|torch| torch.cuda).unwrap_or((12, 8));
    if wants(seen, "Python.h") {
        let system = host::install_package(seen.machine(), "python3-dev", "python3-devel");
        return vec![
            system,
            "# a Python that uv made has its headers: uv venv --python 3.12".into(),
        ];
    }
    if TOOLKIT.iter().any(|header| wants(seen, header)) {
        return host::use_toolkit(seen.machine(), cuda);
    }
    if wants(seen, "cudnn.h") {
        return vec![host::install_package(
            seen.machine(),
            &format!("libcudnn9-dev-cuda-{}", cuda.0),
            &format!("libcudnn9-devel-cuda-{}", cuda.0),
        )];
    }
    if wants(seen, "nccl.h") {
        return vec![host::install_package(seen.machine(), "libnccl-dev", "libnccl-devel")];
    }
    if wants(seen, "cutlass/") || wants(seen, "cute/") {
        return vec!["git submodule update --init --recursive".into()];
    }
    if wants(seen, "torch/extension.h") {
        return vec![format!(
            "{} -c 'from torch.utils import cpp_extension; print(cpp_extension.include_paths())'",
            installer.python()
        )];
    }
    vec![
        installer.install(&["pybind11".into()], None).into(),
        "# then build with --no-build-isolation".into(),
    ]
}

/// Only pybind11 and the toolkit's headers can be checked; no fact records other system headers.
fn observe(seen: &PastedError) -> Option<Observation> {
    let env = seen.env()?;
    if TOOLKIT.iter().any(|header| wants(seen, header)) {
        let nvcc = seen.machine().toolkits.iter().find(|toolkit| toolkit.has_nvcc);
        let places = "CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda*";
        return Some(match nvcc {
            None => Observation::new(true, "no CUDA toolkit with nvcc", places),
            Some(toolkit) => {
                Observation::new(false, format!("a toolkit is in {}", toolkit.root), places)
            }
        });
    }
    wants(seen, "pybind11/").then(|| {
        let place = env.site_packages.join(", ");
        match live_dist(env, "pybind11") {
            Some(dist) => Observation::new(
                false,
                format!("pybind11 {} is installed", dist.version),
                dist.path.clone(),
            ),
            None => Observation::new(true, "pybind11 is not installed", place),
        }
    })
}

#[cfg(test)]
mod tests {
    use crate::test_support::{env, machines};

    #[test]
    fn each_header_names_its_package() {
        let check = |header: &str, expect: &str, confirmed: Option<bool>| {
            let text = format!("x.cc:1:10: fatal error: {header}: No such file or directory");
            let envs = [env("/v").uv().torch("2.9.1+cu128", Some("12.8")).build()];
            let found = crate::explain(&text, &machines::rtx4090(), &envs).remove(0);
            assert_eq!(found.rule.id, "missing-header");
            assert!(
                found.fix.iter().any(|line| line.contains(expect)),
                "{header}: {:?}",
                found.fix
            );
            assert_eq!(found.confirmed_here, confirmed, "{header}");
        };
        check("pybind11/pybind11.h", "uv pip install --python /v/bin/python pybind11", Some(true));
        check("Python.h", "sudo apt-get install --yes python3-dev", None);
        check("cuda_runtime.h", "cuda-toolkit-12-8", Some(true));
        check("cudnn.h", "libcudnn9-dev-cuda-12", None);
        check("cutlass/cutlass.h", "git submodule update", None);
    }
}
