use super::{Observation, PastedError, Rule, Text};
use crate::torch_build::installed;
use facts::{Machine, Platform, PyEnv};
pub(super) const RULE: Rule = Rule {
    id: "kernel-hub-variant",
    title: "the kernel hub has no build for this torch",
    about: "\
The kernels package downloads compiled kernels, with one build for each torch release, CUDA release, C++ ABI and CPU
architecture (torch29-cxx11-cu128-x86_64-linux). There is no matching build if torch is newer or older than every build
of that kernel, or if the kernel was not built for this CPU architecture or operating system.

It shows as
  FileNotFoundError: Cannot find a build variant for this system in kernels-community/flash-attn

Detected by comparing the installed torch, its CUDA and the CPU architecture with the folder names under build/ in that
repository; newer releases of the package report why each build does not fit.

Use a revision of the kernel whose builds use torch's stable ABI (they fit every later torch), upgrade the kernels
package, or install a torch that has a build.",
    links: &[
        "https://github.com/huggingface/kernels/pull/25",
        "https://github.com/huggingface/kernels/issues/436",
    ],
    texts: &[
        Text::new("Cannot find a build variant for this system in {repository}", "FileNotFoundError: Cannot find a build variant for this system in kernels-community/flash-attn (revision: main). Available variants: torch27-cxx11-cu126-x86_64-linux, torch28-cxx11-cu128-x86_64-linux"),
    ],
    remedy: |seen| {
        let mut lines = vec![format!("{} --upgrade", seen.installer().install(&["kernels".into()], None))];
        if let Some(variant) = seen.env().and_then(|env| variant(seen.machine(), env)) {
            lines.insert(0, format!("# the build that would fit here is {variant}; look for it under build/ of the kernel"));
        }
        lines
    },
    observe: Some(observe),
    ..Rule::BLANK
};

/// The folder name of the matching build: `torch29-cxx11-cu128-x86_64-linux`.
fn variant(machine: &Machine, env: &PyEnv) -> Option<String> {
    let torch = installed(env)?;
    let (cuda, minor) = (torch.cuda?, torch.version.minor());
    let arch = match machine.platform {
        Platform::LinuxX86_64 => "x86_64",
        Platform::LinuxAarch64 => "aarch64",
        _ => return None,
    };
    Some(format!("torch{}{}-cxx11-cu{}{}-{arch}-linux", minor.0, minor.1, cuda.0, cuda.1))
}

/// Whether the variant of the installed torch is missing from the variants that the message lists.
fn observe(seen: &PastedError) -> Option<Observation> {
    let env = seen.env()?;
    let wanted = variant(seen.machine(), env)?;
    let torch = env.torch.as_ref()?;
    let listed = seen.text.contains("-linux");
    listed.then(|| {
        let there = seen.text.contains(&wanted);
        Observation::new(!there, format!("this torch needs {wanted}"), torch.source.clone())
    })
}

#[cfg(test)]
mod tests {
    use crate::test_support::{env, machines};

    #[test]
    fn listed_variants_are_compared_with_the_installed_torch() {
        let explain = |torch: &str, cuda: &str| {
            let text = "FileNotFoundError: Cannot find a build variant for this system in k/a. \
                        Available: torch28-cxx11-cu128-x86_64-linux";
            let envs = [env("/v").torch(torch, Some(cuda)).build()];
            crate::explain(text, &machines::a10(), &envs).remove(0)
        };
        let other = explain("2.11.0+cu130", "13.0");
        assert_eq!((other.rule.id, other.confirmed_here), ("kernel-hub-variant", Some(true)));
        assert!(other.fix[0].contains("torch211-cxx11-cu130-x86_64-linux"), "{:?}", other.fix);
        assert_eq!(explain("2.8.0+cu128", "12.8").confirmed_here, Some(false));
    }
}
