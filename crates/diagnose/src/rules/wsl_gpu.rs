use super::{Context, Need, Rule, Text};
use crate::access::{self, Obstacle};
use crate::host;
use facts::{Confidence, Finding, Severity};

pub(super) const RULE: Rule = Rule {
    id: "wsl-gpu",
    title: "WSL cannot access the GPU of Windows",
    about: "\
WSL 2 uses the Windows driver: its libraries are mounted at /usr/lib/wsl/lib and access the GPU through /dev/dxg. A
Linux driver installed inside WSL hides them. WSL also has no GPU if Windows does not provide one: no NVIDIA GPU, a
driver too old for WSL, a data-centre GPU in TCC mode, or WSL 1.

It shows as one of
  nvidia-container-cli: initialization error: WSL environment detected but no adapters were found
  Failed to initialize NVML: GPU access blocked by the operating system

Detected by NVML failing to initialize, or a missing libcuda, while the kernel is WSL's.

Update WSL and the Windows driver, uninstall every NVIDIA driver package inside WSL, and restart WSL.",
    links: &[
        "https://docs.nvidia.com/cuda/wsl-user-guide/index.html",
        "https://github.com/microsoft/WSL/issues/9962",
        "https://github.com/NVIDIA/nvidia-container-toolkit/issues/155",
    ],
    texts: &[
        Text::new("WSL environment detected but no adapters were found", "nvidia-container-cli: initialization error: WSL environment detected but no adapters were found: unknown"),
        Text::new("GPU access blocked by the operating system", "Failed to initialize NVML: GPU access blocked by the operating system\nFailed to properly shut down NVML: GPU access blocked by the operating system"),
        Text::new("/usr/lib/wsl/lib/libcuda.so.1: cannot open shared object file", "OSError: /usr/lib/wsl/lib/libcuda.so.1: cannot open shared object file: No such file or directory"),
    ],
    remedy: |_| host::repair_wsl(),
    needs: &[Need::Wsl],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    if access::obstacle(context) != Some(Obstacle::Wsl) {
        return Vec::new();
    }
    let draft = RULE.finding(Severity::Error, Confidence::Likely, "WSL has no GPU of Windows");
    let container = context.machine.virtualisation.as_ref().and_then(|v| v.container.as_ref());
    vec![
        access::evidence(draft, context)
            .fact("the kernel is", container)
            .cause("The driver is that of Windows; its libraries are not here, or a Linux driver hides them.")
            .fix(host::repair_wsl())
            .finish(),
    ]
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let torch = || vec![env("/v").torch("2.9.1+cu128", Some("12.8")).build()];
        let wsl = || machines::within(machines::x86(), "wsl");
        vec![
            Case::new("no driver of Windows", wsl(), torch()).finds(
                Error,
                Likely,
                &["wsl.exe --update", "/usr/lib/wsl/lib", "torch 2.9.1+cu128 wants CUDA"],
            ),
            Case::new(
                "a Linux driver in WSL",
                machines::refused(wsl(), "The operating system has blocked the request"),
                vec![],
            )
            .finds(Error, Likely, &["blocked the request", "apt-get purge"]),
            Case::new("WSL with its GPU", machines::within(machines::rtx4090(), "wsl"), torch()),
            Case::new("no torch with CUDA", wsl(), vec![]),
            Case::new("no WSL", machines::x86(), torch()),
        ]
    }
}
