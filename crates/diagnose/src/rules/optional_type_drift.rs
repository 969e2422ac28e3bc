use super::{Context, Need, Rule, Text};
use crate::abi::{self, Mismatch};
use crate::remedy::text;
use facts::Finding;

pub(super) const RULE: Rule = Rule {
    id: "optional-type-drift",
    title: "an extension built for a torch with another optional type",
    about: "\
torch replaced its own c10::optional by std::optional (the change began with 2.1 and ended with 2.5), and the type is
part of the mangled name of every operator that takes one. An extension built for one of the two types does not find
these operators in a torch with the other type.

It shows, when the extension is imported, as
  undefined symbol: _ZN2at4_ops10zeros_like4callERKNS_6TensorEN3c108optionalINS5_10ScalarTypeEEE...
where `N3c108optional` is the old type and `St8optional` the new one.

Detected by looking the extension's undefined symbols up in what the installed libtorch_cpu.so exports.

Build the extension here without isolation, or install its wheel for the installed torch release.",
    links: &[
        "https://github.com/state-spaces/mamba/issues/149",
        "https://github.com/state-spaces/mamba/issues/576",
    ],
    texts: &[
        Text::new("undefined symbol: _ZN2at4_ops*N3c108optionalI*", "ImportError: /v/lib/python3.10/site-packages/selective_scan_cuda.cpython-310-x86_64-linux-gnu.so: undefined symbol: _ZN2at4_ops10zeros_like4callERKNS_6TensorEN3c108optionalINS5_10ScalarTypeEEENS6_INS5_6LayoutEEENS6_INS5_6DeviceEEENS6_IbEENS6_INS5_12MemoryFormatEEE"),
        Text::new("undefined symbol: _ZN2at4_ops*St8optionalI*", "ImportError: /v/lib/python3.12/site-packages/selective_scan_cuda.cpython-312-x86_64-linux-gnu.so: undefined symbol: _ZN2at4_ops10zeros_like4callERKNS_6TensorESt8optionalIN3c1010ScalarTypeEES5_INS6_6LayoutEES5_INS6_6DeviceEES5_IbES5_INS6_12MemoryFormatEE"),
    ],
    remedy: |seen| text(seen.fitting_extension()),
    needs: &[Need::Torch, Need::Compiled],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    const CAUSE: &str = "torch replaced c10::optional by std::optional, which is part of the mangled name of every function that takes one.";
    abi::findings(&RULE, context, Mismatch::Optional, CAUSE)
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let old = "_ZN2at4_ops10zeros_like4callERKNS_6TensorEN3c108optionalINS5_10ScalarTypeEEE";
        let new = "_ZN2at4_ops10zeros_like4callERKNS_6TensorESt8optionalIN3c1010ScalarTypeEE";
        let env = |wanted: &'static str, exported: &'static str| {
            let env = env("/v").torch("2.5.1+cu124", Some("12.4")).dist("mamba_ssm", "2.0.0");
            let file = "selective_scan_cuda.so";
            vec![
                env.misses("mamba_ssm", file, wanted, "torch/lib/libtorch_cpu.so", exported)
                    .build(),
            ]
        };
        vec![
            Case::new("c10::optional with std::optional", machines::a10(), env(old, new)).finds(
                Error,
                Certain,
                &["mamba_ssm 2.0.0 in /v", "N3c108optionalI", "St8optionalI"],
            ),
            Case::new("the reverse", machines::a10(), env(new, old)).finds(
                Error,
                Certain,
                &["St8optionalI"],
            ),
            Case::new("the same type on both sides", machines::a10(), env(old, old)),
        ]
    }
}
