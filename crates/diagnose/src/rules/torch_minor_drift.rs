use super::{Context, Need, Rule, Text};
use crate::abi::{self, Mismatch};
use crate::remedy::text;
use facts::Finding;

pub(super) const RULE: Rule = Rule {
    id: "torch-minor-drift",
    title: "an extension built for another torch release: c10::cuda::SetDevice changed its arguments",
    about: "\
torch has no stable C++ ABI between releases. c10::cuda::SetDevice took an int, then (from 2.3) a signed char, then a
signed char and a bool, so the signature in the error shows which torch the extension was built against.

It shows, when the extension is imported, as one of
  undefined symbol: _ZN3c104cuda9SetDeviceEi
  undefined symbol: _ZN3c104cuda9SetDeviceEa
  undefined symbol: _ZN3c104cuda9SetDeviceEab
The first means that the extension is older than the installed torch, the last that it is newer.

Detected by looking the extension's undefined symbols up in what the installed libc10_cuda.so exports.

Install the extension's wheel for the installed torch release (its name has torchX.Y), or build it here.",
    links: &[
        "https://github.com/Dao-AILab/flash-attention/issues/931",
        "https://github.com/Dao-AILab/flash-attention/issues/1816",
        "https://github.com/state-spaces/mamba/issues/788",
    ],
    texts: &[
        Text::new("undefined symbol: _ZN3c104cuda9SetDeviceEi", "ImportError: /v/lib/python3.10/site-packages/flash_attn_2_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDeviceEi"),
        Text::new("undefined symbol: _ZN3c104cuda9SetDeviceEa", "ImportError: /v/lib/python3.12/site-packages/flash_attn_2_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDeviceEa"),
        Text::new("undefined symbol: _ZN3c104cuda9SetDeviceEab", "ImportError: /v/lib/python3.12/site-packages/selective_scan_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: _ZN3c104cuda9SetDeviceEab"),
    ],
    remedy: |seen| text(seen.fitting_extension()),
    needs: &[Need::Torch, Need::Compiled],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    const CAUSE: &str =
        "torch has no stable C++ ABI between releases, and this function changed its arguments.";
    abi::findings(&RULE, context, Mismatch::SetDevice, CAUSE)
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let env = |wanted: &'static str, exported: &'static str| {
            let env = env("/v").torch("2.9.1+cu128", Some("12.8")).dist("mamba_ssm", "2.2.6.post3");
            let file = "selective_scan_cuda.so";
            vec![
                env.misses("mamba_ssm", file, wanted, "torch/lib/libc10_cuda.so", exported).build(),
            ]
        };
        vec![
            Case::new(
                "built for torch 2.3 to 2.7",
                machines::a10(),
                env("_ZN3c104cuda9SetDeviceEa", "_ZN3c104cuda9SetDeviceEab"),
            )
            .finds(
                Error,
                Certain,
                &[
                    "mamba_ssm 2.2.6.post3 in /v was built for another torch than the installed 2.9.1+cu128",
                    "needs _ZN3c104cuda9SetDeviceEa",
                    "exports _ZN3c104cuda9SetDeviceEab",
                    "it is in torch 2.3 to 2.7",
                    "MAMBA_FORCE_BUILD=TRUE /v/bin/python -m pip install",
                ],
            ),
            Case::new(
                "another function is another rule",
                machines::a10(),
                env(
                    "_ZN3c104cuda29c10_cuda_check_implementationEiPKcS2_jb",
                    "_ZN3c104cuda9SetDeviceEab",
                ),
            ),
        ]
    }
}
