use super::{Role, Rule, Text};

pub(super) const RULE: Rule = Rule {
    id: "build-failed",
    title: "a compiler run of the build failed; the cause is earlier in the log",
    about: "\
PyTorch's extensions are compiled by ninja, which runs many compilers at once and continues after the first failure.
The last lines, that ninja returned 1 and that the wheel could not be built, are the same for every cause: another
CUDA release, a missing header, a compiler that is too new, too little memory.

It shows as one of
  subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1.
  RuntimeError: Error compiling objects for extension

Look for the first `error:` or `fatal` above it, or give the whole log to `firstlight explain`, which searches it for
known errors. With one compiler at a time (MAX_JOBS=1) the lines of an error stay together. If a prebuilt wheel fits,
nothing has to be compiled.",
    links: &["https://github.com/Dao-AILab/flash-attention/issues/189"],
    texts: &[
        Text::new("Command '['ninja', '-v'*returned non-zero exit status", "subprocess.CalledProcessError: Command '['ninja', '-v']' returned non-zero exit status 1."),
        Text::new("RuntimeError: Error compiling objects for extension", "RuntimeError: Error compiling objects for extension"),
        Text::new("RuntimeError: Error building extension", "RuntimeError: Error building extension 'fused_adam'"),
        Text::new("ninja: build stopped: subcommand failed", "ninja: build stopped: subcommand failed."),
        Text::new("Building wheel for {name} (pyproject.toml) did not run successfully", "× Building wheel for flash-attn (pyproject.toml) did not run successfully."),
        Text::new("Failed building wheel for {name}", "  ERROR: Failed building wheel for flash-attn"),
    ],
    role: Role::Consequence,
    remedy: |_| {
        vec![
            "# the same command again, one compiler at a time, with its whole output kept:".into(),
            "MAX_JOBS=1 pip install --no-build-isolation --verbose PACKAGE 2>&1 | tee build.log".into(),
            "firstlight explain build.log".into(),
            "grep -nE 'error:|fatal' build.log | head".into(),
        ]
    },
    ..Rule::BLANK
};
