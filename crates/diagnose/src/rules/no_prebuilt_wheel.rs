use super::{Observation, PastedError, Rule, Text};
use crate::host::build_jobs;
use crate::remedy::text;
pub(super) const RULE: Rule = Rule {
    id: "no-prebuilt-wheel",
    title: "no wheel for this torch and Python, so the package is compiled",
    about: "\
flash-attn, mamba-ssm and causal-conv1d publish wheels on their release pages for some combinations of torch, CUDA, C++
ABI, Python and CPU architecture, and their setup looks there first. If none fits, everything is compiled: 45 minutes
and more, and about 5 GB of memory for each nvcc thread. flash-attn 2.8.3.post2, mamba-ssm 2.3.2.post1 and causal-conv1d
1.7.0 have no wheel on PyPI, and the official wheels end at torch 2.10.

It shows as
  Precompiled wheel not found. Building from source...
or as a wheel address that answers 404.

Choose the newest torch for which every required package has a wheel, or compile once with MAX_JOBS set and keep the
wheel.",
    links: &[
        "https://github.com/Dao-AILab/flash-attention/issues/1017",
        "https://github.com/Dao-AILab/flash-attention/releases",
    ],
    texts: &[
        Text::new("Precompiled wheel not found. Building from source", "Precompiled wheel not found. Building from source..."),
    ],
    role: super::Role::Notice,
    remedy: |seen| {
        let mut lines = text(seen.fitting_extension());
        if let (Some(last), Some(jobs)) = (lines.last_mut(), build_jobs(seen.machine())) {
            *last = format!("MAX_JOBS={jobs} {last}");
        }
        lines
    },
    observe: Some(observe),
    ..Rule::BLANK
};

/// Whether the URL that the setup guessed has the wheel label of the installed torch.
fn observe(seen: &PastedError) -> Option<Observation> {
    let env = seen.env()?;
    let label = crate::extension::wheel_label(seen.machine(), env)?;
    let torch = env.torch.as_ref()?;
    // Setups print the URL that they try, whether or not it has a wheel.
    let (_, address) = seen.text.split_once("Guessing wheel URL: ")?;
    let guessed = address.split_whitespace().next().filter(|url| url.contains("cxx11abi"))?;
    Some(Observation::new(
        guessed.contains(&label),
        format!("a wheel for the torch here has {label} in its name"),
        torch.source.clone(),
    ))
}

#[cfg(test)]
mod tests {
    use crate::test_support::{env, machines};

    #[test]
    fn guessed_wheel_is_compared_with_the_installed_torch() {
        let envs = [env("/v").torch("2.11.0+cu128", Some("12.8")).build()];
        let explain = |label: &str| {
            let text = format!(
                "Guessing wheel URL:  https://x/flash_attn-2.8.3+{label}.whl\nPrecompiled wheel not found. Building from source..."
            );
            crate::explain(&text, &machines::a10(), &envs).remove(0)
        };
        let fits = explain("cu12torch2.11cxx11abiTRUE-cp312-cp312-linux_x86_64");
        assert_eq!(fits.confirmed_here, Some(true));
        assert!(fits.fix.last().unwrap().starts_with("MAX_JOBS="), "{:?}", fits.fix);
        assert_eq!(
            explain("cu12torch2.6cxx11abiFALSE-cp312-cp312-linux_x86_64").confirmed_here,
            Some(false)
        );
    }
}
