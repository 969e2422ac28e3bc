use super::{Also, Observation, PastedError, Rule, Text};
use crate::host;
use crate::torch_build::installed;
pub(super) const RULE: Rule = Rule {
    id: "cuda-home-not-set",
    title: "a build that finds no CUDA toolkit",
    about: "\
Compiling an extension needs nvcc. torch's wheels contain the CUDA runtime libraries but not the compiler. torch's
extension builder looks in CUDA_HOME, then for nvcc on PATH, then in /usr/local/cuda.

It shows as
  OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root.
or as a setup that reports that nvcc was not found.

Detected by looking for nvcc in the same places.

Set CUDA_HOME to a toolkit of torch's CUDA major version, install one, or install a prebuilt wheel.",
    links: &[
        "https://github.com/Dao-AILab/flash-attention/issues/1736",
    ],
    texts: &[
        Text::new("CUDA_HOME environment variable is not set", "OSError: CUDA_HOME environment variable is not set. Please set it to your CUDA install root."),
        Text::new("No such file or directory: '*/bin/nvcc'", "FileNotFoundError: [Errno 2] No such file or directory: '/usr/local/cuda/bin/nvcc'"),
        Text::new("No such file or directory: 'nvcc'", "FileNotFoundError: [Errno 2] No such file or directory: 'nvcc'"),
        Text::new("RuntimeError: * Could not find nvcc", "RuntimeError: Worker failed with error 'Could not find nvcc'"),
        Text::new("RuntimeError: Could not find nvcc", "RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist"),
        Text::new("nvcc was not found. Are you sure your environment has nvcc available", "UserWarning: mamba_ssm was requested, but nvcc was not found. Are you sure your environment has nvcc available?"),
        Text::new("name 'bare_metal_version' is not defined", "NameError: name 'bare_metal_version' is not defined"),
        Text::new("get_cuda_bare_metal_version(CUDA_HOME)", "    _, bare_metal_version = get_cuda_bare_metal_version(CUDA_HOME)"),
        Text::new("raise_if_cuda_home_none('*')", "    raise_if_cuda_home_none(\"flash_attn\")"),
        Text::new("CUDA_HOME does not exist, unable to compile CUDA op(s)", "AssertionError: CUDA_HOME does not exist, unable to compile CUDA op(s)"),
    ],
    also: &[Also {
        cause: "A toolkit is installed, but the isolated build does not see it: its PATH or CUDA_HOME differs, or it uses another torch with another CUDA.",
        check: &[
            "nvcc --version; echo $CUDA_HOME; python -c 'import torch; print(torch.version.cuda)'",
            "pip install --no-build-isolation PACKAGE  # works: this is the cause",
        ],
    }],
    remedy: |seen| {
        let cuda = seen.env().and_then(installed).and_then(|torch| torch.cuda);
        host::use_toolkit(seen.machine(), cuda.unwrap_or((12, 8)))
    },
    observe: Some(observe),
    ..Rule::BLANK
};

fn observe(seen: &PastedError) -> Option<Observation> {
    let places = "CUDA_HOME, CUDA_PATH, PATH, /usr/local/cuda*";
    Some(match seen.machine().toolkits.iter().find(|toolkit| toolkit.has_nvcc) {
        Some(toolkit) => {
            let unset = toolkit.found_by != "CUDA_HOME"
                && toolkit.found_by != "PATH"
                && toolkit.root != "/usr/local/cuda";
            Observation::new(
                unset,
                format!("nvcc is in {}, found by {}", toolkit.root, toolkit.found_by),
                places,
            )
        }
        None => Observation::new(true, "no nvcc", places),
    })
}

#[cfg(test)]
mod tests {
    use crate::test_support::{env, machines};

    #[test]
    fn uses_the_installed_toolkit_or_installs_one() {
        let text = "OSError: CUDA_HOME environment variable is not set.";
        let envs = [env("/v").torch("2.9.1+cu128", Some("12.8")).build()];
        let without = &crate::explain(text, &machines::rtx4090(), &envs)[0];
        assert_eq!(without.confirmed_here, Some(true));
        assert_eq!(without.fix[1], "sudo apt-get install --yes cuda-toolkit-12-8");
        let aside = machines::with_toolkit(machines::rtx4090(), "12.8", "/usr/local");
        let found = &crate::explain(text, &aside, &envs)[0];
        assert_eq!(found.confirmed_here, Some(true));
        assert_eq!(found.fix, ["export CUDA_HOME=/usr/local/cuda-12.8"]);
        assert_eq!(crate::explain(text, &machines::h200(), &envs)[0].confirmed_here, Some(false));
    }
}
