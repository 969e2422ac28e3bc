use super::{Context, Need, Rule, Text};
use crate::remedy::Installer;
use crate::torch_build::{installed, live_dist};
use facts::CompactSort;
use facts::{Confidence, Finding, PyEnv, Severity};
use knowledge::dotted;
pub(super) const RULE: Rule = Rule {
    id: "bitsandbytes-library",
    title: "bitsandbytes has no library for torch's CUDA",
    about: "\
bitsandbytes ships one compiled library for each CUDA release it was built for and loads the one torch's CUDA names. A
torch with a newer CUDA selects one that was not shipped; BNB_CUDA_VERSION can do so too.

It shows as
  RuntimeError: Configured CUDA binary not found at .../bitsandbytes/libbitsandbytes_cuda129.so
where the number is the CUDA release without its dot.

Detected by listing bitsandbytes' libraries and reading `cuda` in torch/version.py.

Upgrade bitsandbytes to a release that ships the library, or install a torch whose CUDA is among those shipped. A
library for another minor version of the same CUDA major version runs as well: BNB_CUDA_VERSION selects it.",
    links: &[
        "https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1688",
        "https://github.com/bitsandbytes-foundation/bitsandbytes/issues/1848",
    ],
    texts: &[
        Text::new("Configured CUDA binary not found at {file}", "bitsandbytes library load error: Configured CUDA binary not found at /usr/local/lib/python3.12/dist-packages/bitsandbytes/libbitsandbytes_cuda129.so
RuntimeError: Configured CUDA binary not found at /usr/local/lib/python3.12/dist-packages/bitsandbytes/libbitsandbytes_cuda129.so"),
        Text::new("Could not find the bitsandbytes CUDA binary at", "Could not find the bitsandbytes CUDA binary at PosixPath('/opt/venv/lib/python3.10/site-packages/bitsandbytes/libbitsandbytes_cuda121.so')"),
        Text::new("Required library version not found: libbitsandbytes_cuda{v}", "CUDA SETUP: Required library version not found: libbitsandbytes_cuda121.so. Maybe you need to compile it from source?"),
    ],
    remedy: |seen| vec![seen.installer().install(&["bitsandbytes>=0.46".into()], None).into()],
    needs: &[Need::Torch, Need::Package("bitsandbytes")],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().filter_map(judge).collect()
}

/// The CUDA releases, as 128 for 12.8, that bitsandbytes has a library for.
fn shipped(env: &PyEnv) -> Vec<u32> {
    let number = |path: &str| -> Option<u32> {
        let name = path.rsplit('/').next()?.strip_prefix("libbitsandbytes_cuda")?;
        name.strip_suffix(".so")?.parse().ok()
    };
    let mut all: Vec<u32> = env.native_files.iter().filter_map(|file| number(&file.path)).collect();
    all.compact_sort();
    all
}

fn judge(env: &PyEnv) -> Option<Finding> {
    let dist = live_dist(env, "bitsandbytes")?;
    let torch = installed(env)?;
    let cuda = torch.cuda?;
    let wanted = cuda.0.saturating_mul(10).saturating_add(cuda.1);
    let shipped = shipped(env);
    // A build from source that lists no library, or for another vendor's GPU, is not judged.
    if shipped.is_empty() || shipped.contains(&wanted) {
        return None;
    }
    let names: Vec<String> = shipped.iter().map(u32::to_string).collect();
    let install = Installer::of(env).install(&["bitsandbytes>=0.46".into()], None);
    let mut fix = vec![install.upgraded()];
    // A library runs with any CUDA runtime of its major version, and with no other.
    if let Some(near) = shipped.iter().rev().find(|number| **number / 10 == cuda.0) {
        fix.push("# or, until then, the nearest library of the same major version:".into());
        fix.push(format!("export BNB_CUDA_VERSION={near}").into());
    }
    let finding = RULE
        .finding(
            Severity::Error,
            Confidence::Certain,
            format!(
                "bitsandbytes {} in {} has no library for torch's CUDA {}",
                dist.version,
                env.root,
                dotted(cuda)
            ),
        )
        .evidence(
            format!("libraries for CUDA {}", names.join(", ")),
            format!("{}/RECORD", dist.path),
        )
        .evidence(format!("torch was built with CUDA {}", dotted(cuda)), torch.torch.source.clone())
        .cause(format!(
            "It loads libbitsandbytes_cuda{wanted}.so, which this release does not ship."
        ))
        .fix(fix)
        .finish();
    Some(finding)
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, PyEnv, Severity::*};

    fn with(torch: &str, cuda: &str, libraries: &[u32]) -> Vec<PyEnv> {
        let mut env = env("/v").torch(torch, Some(cuda)).dist("bitsandbytes", "0.46.0");
        for number in libraries {
            env = env
                .native("bitsandbytes", &format!("bitsandbytes/libbitsandbytes_cuda{number}.so"));
        }
        vec![env.build()]
    }

    pub(super) fn cases() -> Vec<Case> {
        vec![
            Case::new(
                "12.9 is not shipped",
                machines::h200(),
                with("2.8.0+cu129", "12.9", &[118, 126, 128]),
            )
            .finds(
                Error,
                Certain,
                &[
                    "no library for torch's CUDA 12.9",
                    "libraries for CUDA 118, 126, 128",
                    "libbitsandbytes_cuda129.so",
                    "pip install --upgrade 'bitsandbytes>=0.46'",
                    "export BNB_CUDA_VERSION=128",
                ],
            ),
            Case::new(
                "another major version",
                machines::h200(),
                with("2.11.0+cu130", "13.0", &[126, 128]),
            )
            .finds(Error, Certain, &["libbitsandbytes_cuda130.so"])
            .without(&["BNB_CUDA_VERSION"]),
            Case::new("shipped", machines::h200(), with("2.9.1+cu128", "12.8", &[126, 128])),
            Case::new("no library is listed", machines::h200(), with("2.9.1+cu128", "12.8", &[])),
            Case::new(
                "no torch",
                machines::h200(),
                vec![env("/v").dist("bitsandbytes", "0.46.0").build()],
            ),
        ]
    }
}
