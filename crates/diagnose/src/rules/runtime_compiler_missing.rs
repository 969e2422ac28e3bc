use super::{Context, Rule};
use crate::torch_build::live_dist;
use crate::{gpu, host};
use facts::{Confidence, EnvKind, Finding, Machine, PyEnv, Severity};

pub(super) const RULE: Rule = Rule {
    id: "runtime-compiler-missing",
    title: "an installed package compiles code at run time, and the compiler is missing",
    about: "\
Some packages compile code at run time (JIT) instead of at install time: Triton (and with it torch.compile, vllm and
sglang) needs a C compiler, FlashInfer without its precompiled kernels needs nvcc, ninja and a C++ compiler, and
DeepSpeed's optimizers and transformer kernels need nvcc and a C++ compiler. Slim container images have none of them.
The import works; the first request or step fails.

It shows as one of
  RuntimeError: Failed to find C compiler. Please specify via CC environment variable.
  RuntimeError: Could not find nvcc and default cuda_home='/usr/local/cuda' doesn't exist
  deepspeed.ops.op_builder.builder.MissingCUDAException: CUDA_HOME does not exist

Detected by the packages of the environment, the compilers on PATH, and the CUDA toolkits.

Install the compiler of the distribution; for FlashInfer install flashinfer-jit-cache and flashinfer-cubin instead of
a toolkit.",
    links: &["https://github.com/triton-lang/triton/blob/main/python/triton/runtime/build.py"],
    remedy: |seen| vec![host::install_package(seen.machine(), "build-essential", "gcc gcc-c++ make")],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// A package, whether it needs nvcc and a C++ compiler (else only a C compiler), and packages with its precompiled kernels.
const NEEDS: [(&str, bool, &[&str]); 3] = [
    ("triton", false, &[]),
    ("flashinfer-python", true, &["flashinfer-jit-cache"]),
    ("deepspeed", true, &[]),
];

/// Engines that compile at startup and fail to start without a compiler.
const ENGINES: [&str; 2] = ["vllm", "sglang"];

fn check(context: &Context) -> Vec<Finding> {
    let machine = context.machine;
    let Some(compilers) = &machine.compilers else { return Vec::new() };
    if gpu::nvidia(machine).next().is_none() {
        return Vec::new();
    }
    // The system's Python has packages that the user did not choose.
    let envs = context.envs.iter().filter(|env| env.kind != EnvKind::System);
    envs.filter_map(|env| judge(machine, env, &compilers.value, &compilers.source)).collect()
}

fn judge(machine: &Machine, env: &PyEnv, compilers: &[String], source: &str) -> Option<Finding> {
    let nvcc = machine.toolkits.iter().any(|toolkit| toolkit.has_nvcc);
    let missing = NEEDS.iter().filter(|(package, cuda, spared)| {
        let installed = live_dist(env, package).is_some();
        let spared = spared.iter().any(|name| live_dist(env, name).is_some());
        let lacks = compilers.is_empty() || *cuda && !nvcc;
        installed && !spared && lacks
    });
    let missing: Vec<_> = missing.collect();
    let (first, ..) = missing.first()?;
    let what = match (compilers.is_empty(), nvcc) {
        (true, true) => "no host compiler is on PATH",
        (true, false) => "no host compiler and no nvcc are here",
        _ => "no nvcc is here",
    };
    let engine = ENGINES.iter().find(|name| live_dist(env, name).is_some());
    let severity = match engine {
        Some(_) if compilers.is_empty() => Severity::Warning,
        _ => Severity::Info,
    };
    let mut draft = RULE.finding(
        severity,
        Confidence::Likely,
        format!("{first} in {} compiles while it runs, and {what}", env.root),
    );
    for (package, ..) in &missing {
        if let Some(dist) = live_dist(env, package) {
            draft = draft.evidence(format!("{package} {}", dist.version), dist.path.clone());
        }
    }
    let shown = if compilers.is_empty() { "none".to_owned() } else { compilers.join(", ") };
    let mut fix = Vec::new();
    if compilers.is_empty() {
        fix.push(host::install_package(machine, "build-essential", "gcc gcc-c++ make"));
    }
    if !nvcc && missing.iter().any(|(_, cuda, _)| *cuda) {
        fix.push("# for packages that compile CUDA:".to_owned());
        fix.extend(host::install_toolkit(
            machine,
            env.torch
                .as_ref()
                .and_then(|torch| torch.cuda.as_deref().and_then(knowledge::minor_of))
                .unwrap_or((13, 0)),
        ));
    }
    Some(
        draft
            .evidence(format!("host compilers: {shown}"), source)
            .cause("The compiled code is needed at the first step or request; the import works without it.")
            .fix(fix)
            .finish(),
    )
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Fact, Machine, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let with = |compilers: &[&str]| -> Machine {
            let mut machine = machines::h200();
            machine.toolkits.clear();
            let names = compilers.iter().map(|name| (*name).to_owned()).collect();
            machine.compilers = Some(Fact::new(names, "PATH=/usr/bin"));
            machine
        };
        let torch = || env("/v").torch("2.9.1+cu128", Some("12.8")).dist("triton", "3.5.1");
        vec![
            Case::new("vllm without gcc", with(&[]), vec![torch().dist("vllm", "0.12.0").build()])
                .finds(
                    Warning,
                    Likely,
                    &["triton in /v", "no host compiler", "triton 3.5.1", "build-essential"],
                ),
            Case::new("torch alone", with(&[]), vec![torch().build()]).finds(
                Info,
                Likely,
                &["host compilers: none"],
            ),
            Case::new(
                "FlashInfer without nvcc",
                with(&["gcc", "g++"]),
                vec![torch().dist("flashinfer-python", "0.5.2").build()],
            )
            .finds(Info, Likely, &["no nvcc", "cuda-toolkit-12-8"]),
            Case::new(
                "FlashInfer with its kernels",
                with(&["gcc"]),
                vec![
                    torch()
                        .dist("flashinfer-python", "0.5.2")
                        .dist("flashinfer-jit-cache", "0.5.2")
                        .build(),
                ],
            ),
            Case::new("a compiler", with(&["gcc"]), vec![torch().dist("vllm", "0.12.0").build()]),
            Case::new("unknown compilers", machines::h200(), vec![torch().build()]),
        ]
    }
}
