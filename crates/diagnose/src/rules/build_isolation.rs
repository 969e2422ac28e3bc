use super::{Observation, PastedError, Rule, Text};
use crate::remedy::text;

pub(super) const RULE: Rule = Rule {
    id: "build-isolation",
    title: "a build that cannot see the installed torch",
    about: "\
pip and uv build a source package in an isolated environment with only the build dependencies it declares. flash-attn,
mamba-ssm and others import torch in their setup but do not declare it, because they have to be built against the
installed torch: if they declared it, a newer torch would be downloaded and the result would not load.

It shows as
  ModuleNotFoundError: No module named 'torch'
while pip gets the requirements to build the wheel, although torch is installed.

Install torch first, with what the build needs (setuptools, wheel, ninja, packaging), then the package with
--no-build-isolation, or install a prebuilt wheel.",
    links: &[
        "https://github.com/Dao-AILab/flash-attention/issues/1920",
    ],
    texts: &[
        Text::new("Getting requirements to build wheel*No module named 'torch'", "  × Getting requirements to build wheel did not run successfully.
  │ exit code: 1
  ╰─> [20 lines of output]
      ModuleNotFoundError: No module named 'torch'
      [end of output]"),
        Text::new("build backend returned an error*No module named 'torch'", "  × Failed to build `flash-attn==2.8.3`
  ├─▶ The build backend returned an error
  ╰─▶ Call to `setuptools.build_meta:__legacy__.build_wheel` failed (exit status: 1)
      [stderr]
      ModuleNotFoundError: No module named 'torch'"),
        Text::new("No module named 'torch'*subprocess-exited-with-error", "      File \"<string>\", line 22, in <module>
      ModuleNotFoundError: No module named 'torch'
      [end of output]
  note: This error originates from a subprocess, and is likely not a problem with pip.
error: subprocess-exited-with-error"),
        Text::new("This error likely indicates that * depends on `torch`, but doesn't declare it as a build dependency", "      hint: This error likely indicates that `flash-attn@2.8.3` depends on `torch`, but doesn't declare it as a build dependency."),
    ],
    remedy: |seen| {
        let tools = ["setuptools", "wheel", "packaging", "ninja"].map(String::from);
        let mut lines = vec![seen.installer().install(&tools, None)];
        lines.extend(seen.fitting_extension());
        text(lines)
    },
    observe: Some(observe),
    ..Rule::BLANK
};

/// An installed torch confirms that build isolation hid it; without torch the message is literally true.
fn observe(seen: &PastedError) -> Option<Observation> {
    let env = seen.env()?;
    Some(match &env.torch {
        Some(torch) => Observation::new(
            true,
            format!("torch {} is installed, so the build did not look there", torch.version),
            torch.source.clone(),
        ),
        None => Observation::new(
            false,
            "torch is not installed: install it first",
            env.site_packages.join(", "),
        ),
    })
}

#[cfg(test)]
mod tests {
    use crate::test_support::{env, machines};

    #[test]
    fn installed_torch_confirms_build_isolation() {
        let text = "Getting requirements to build wheel did not run successfully. ModuleNotFoundError: No module named 'torch'";
        let explain = |env| crate::explain(text, &machines::a10(), &[env]).remove(0);
        let with = explain(env("/v").torch("2.9.1+cu128", Some("12.8")).build());
        assert_eq!((with.rule.id, with.confirmed_here), ("build-isolation", Some(true)));
        assert!(
            with.fix[0].ends_with("install setuptools wheel packaging ninja"),
            "{:?}",
            with.fix
        );
        assert_eq!(explain(env("/v").build()).confirmed_here, Some(false));
    }
}
