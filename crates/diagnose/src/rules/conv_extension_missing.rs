use super::{Context, Need, Rule, Text};
use crate::remedy::{Installer, text};
use crate::torch_build::live_dist;
use facts::{Confidence, Finding, PyEnv, RemedyStep, Severity};
pub(super) const RULE: Rule = Rule {
    id: "conv-extension-missing",
    title: "mamba-ssm without the compiled half of causal-conv1d",
    about: "\
mamba-ssm imports causal-conv1d if it can and continues with None if it cannot, so the error appears only when the
model runs. The import fails when causal-conv1d was never installed, when its compiled file is missing (its source was
copied without building it), or when that file does not load; and mamba-ssm uses the package only if it was installed
first.

It shows as
  AttributeError: 'NoneType' object has no attribute 'causal_conv1d_fwd'
or as TypeError: 'NoneType' object is not callable, from mamba_ssm/ops/triton/ssd_combined.py.

Detected by looking for the package and for causal_conv1d_cuda*.so among its files.

Install causal-conv1d first, then mamba-ssm, both built against the installed torch.",
    links: &[
        "https://github.com/state-spaces/mamba/issues/467",
        "https://github.com/state-spaces/mamba/issues/786",
    ],
    texts: &[
        Text::new("'NoneType' object has no attribute 'causal_conv1d_fwd'", "  File \"/v/lib/python3.11/site-packages/mamba_ssm/ops/triton/ssd_combined.py\", line 757, in forward
AttributeError: 'NoneType' object has no attribute 'causal_conv1d_fwd'"),
        Text::new("No module named 'causal_conv1d_cuda'", "ModuleNotFoundError: No module named 'causal_conv1d_cuda'"),
        Text::new("causal_conv1d_fwd_function*TypeError: 'NoneType' object is not callable", "    causal_conv1d_fwd_function(
TypeError: 'NoneType' object is not callable"),
    ],
    remedy: |seen| text(commands(seen.installer())),
    needs: &[Need::Package("mamba-ssm")],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// Builds causal-conv1d, then mamba-ssm, which uses it at import and whose build does not install a matching one.
fn commands(installer: Installer) -> Vec<RemedyStep> {
    let stand_in = installer.stand_in("causal-conv1d").map(RemedyStep::from).into_iter();
    let build = [
        installer.build(&["causal-conv1d"]).with_variable("CAUSAL_CONV1D_FORCE_BUILD", "TRUE"),
        installer.build(&["mamba-ssm"]).with_variable("MAMBA_FORCE_BUILD", "TRUE"),
    ];
    stand_in.chain(build).collect()
}

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().filter_map(judge).collect()
}

fn judge(env: &PyEnv) -> Option<Finding> {
    let mamba = live_dist(env, "mamba-ssm")?;
    let conv = live_dist(env, "causal-conv1d");
    let compiled = |path: &str| {
        path.rsplit('/').next().is_some_and(|name| name.starts_with("causal_conv1d_cuda"))
    };
    if conv.is_some() && env.native_files.iter().any(|file| compiled(&file.path)) {
        return None;
    }
    let draft = match conv {
        Some(conv) => RULE
            .finding(
                Severity::Error,
                Confidence::Certain,
                format!("causal-conv1d {} in {} has no compiled file, so mamba-ssm cannot use it", conv.version, env.root),
            )
            .evidence(
                format!("causal-conv1d {} lists no causal_conv1d_cuda*.so that is there", conv.version),
                format!("{}/RECORD", conv.path),
            ),
        None => RULE
            .finding(
                Severity::Warning,
                Confidence::Likely,
                format!("mamba-ssm {} in {} runs without causal-conv1d: slower, and Mamba-2 layers fail", mamba.version, env.root),
            )
            .evidence("causal-conv1d is not installed", env.site_packages.join(", ")),
    };
    let finding = draft
        .evidence(format!("mamba-ssm {}", mamba.version), mamba.path.clone())
        .cause("mamba-ssm uses causal-conv1d if it can be imported and None if it cannot, without a message.")
        .fix(commands(Installer::of(env)))
        .finish();
    Some(finding)
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let both =
            || env("/v").uv().dist("mamba-ssm", "2.2.6.post3").dist("causal-conv1d", "1.5.3.post1");
        vec![
            Case::new("the package without its .so", machines::a10(), vec![both().build()]).finds(
                Error,
                Certain,
                &[
                    "causal-conv1d 1.5.3.post1 in /v has no compiled file",
                    "causal_conv1d-1.5.3.post1.dist-info/RECORD",
                    "CAUSAL_CONV1D_FORCE_BUILD=TRUE uv pip install --python /v/bin/python",
                    "MAMBA_FORCE_BUILD=TRUE",
                ],
            ),
            Case::new(
                "mamba-ssm alone",
                machines::a10(),
                vec![env("/v").dist("mamba-ssm", "2.2.6.post3").build()],
            )
            .finds(
                Warning,
                Likely,
                &["causal-conv1d is not installed", "--no-build-isolation"],
            ),
            Case::new(
                "both, compiled",
                machines::a10(),
                vec![
                    both()
                        .native(
                            "causal-conv1d",
                            "causal_conv1d_cuda.cpython-312-x86_64-linux-gnu.so",
                        )
                        .build(),
                ],
            ),
            Case::new("neither", machines::a10(), vec![env("/v").build()]),
        ]
    }
}
