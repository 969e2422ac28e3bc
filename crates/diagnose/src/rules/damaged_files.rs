use super::{Context, Need, Rule, Text};
use crate::data::wrong_records::record_is_wrong;
use crate::remedy::{Installer, quote};
use crate::torch_build::{by_conda, is_leftover, same_name};
use facts::CompactSort;
use facts::{
    Alteration, AlteredFile, Confidence, Dist, Finding, NativeFile, PyEnv, RemedyStep, Severity,
};
use knowledge::cuda_of_label;

pub(super) const RULE: Rule = Rule {
    id: "damaged-files",
    title: "installed files are missing, cut off or overwritten",
    about: "\
Each installed package lists its files in RECORD, with sizes and hashes. An interrupted download or copy, a full disk, a
crash before the data was written, a clean-up script, or uninstalling another package that shares the folder leaves
files missing, truncated, or full of zero bytes.

It shows as one of
  ImportError: .../libtorch_cpu.so: file too short
  ImportError: .../x.so: invalid ELF header
  ImportError: .../x.so: ELF load command past end of file
  SyntaxError: source code string cannot contain null bytes
or as a module that is not found although its package is installed.

Detected by comparing each file with RECORD: existence and size, and contents with `doctor --verify-files` (without it,
only contents of Python files modified after the install); and by reading the ELF headers of compiled files. Bytecode,
empty files, certificate authorities appended to cacert.pem, compiled files that a Linux distribution stripped or whose
published RECORD is known to be wrong, and the package's metadata do not count.

Reinstall the same version.",
    links: &["https://packaging.python.org/en/latest/specifications/recording-installed-packages/"],
    texts: &[
        Text::new("ImportError: *.so: file too short", "ImportError: /v/lib/python3.12/site-packages/torch/lib/libtorch_cpu.so: file too short"),
        Text::new(": invalid ELF header", "OSError: /v/lib/python3.12/site-packages/nvidia/cublas/lib/libcublas.so.12: invalid ELF header"),
        Text::new("ELF load command past end of file", "ImportError: /v/lib/python3.12/site-packages/own/_C.so: ELF load command past end of file"),
        Text::new("source code string cannot contain null bytes", "SyntaxError: source code string cannot contain null bytes"),
        Text::new("no RECORD file was found for {name}", "error: uninstall-no-record-file\n\n× Cannot uninstall torch 2.3.0\n╰─> The package's contents are unknown: no RECORD file was found for torch."),
    ],
    remedy: |seen| {
        let installer = seen.installer();
        let install = installer.install(&["PACKAGE==VERSION".into()], None);
        vec![
            "# for the package that the file belongs to, which `firstlight doctor` names:".into(),
            install.reinstalled().without_deps().into(),
        ]
    },
    needs: &[Need::Environment],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

/// The missing and altered files of one distribution.
struct Damage<'a> {
    dist: &'a Dist,
    severity: Severity,
    /// Description and path of each file, the worst first.
    seen: Vec<(String, String)>,
    total: usize,
}

fn check(context: &Context) -> Vec<Finding> {
    context.envs.iter().flat_map(judge).collect()
}

fn judge(env: &PyEnv) -> Vec<Finding> {
    let live = env.dists.iter().filter(|dist| !is_leftover(dist));
    let damages: Vec<Damage<'_>> = live.filter_map(|dist| damage(env, dist)).collect();
    let of = |severity| -> Vec<&Damage<'_>> {
        damages.iter().filter(|damage| damage.severity == severity).collect()
    };
    let found = [Severity::Error, Severity::Warning]
        .into_iter()
        .filter_map(|severity| finding(env, severity, &of(severity)));
    found.chain(unlisted_damage(env)).collect()
}

/// The damage of one distribution, without files that another distribution overwrote (`overwritten-files`).
fn damage<'a>(env: &'a PyEnv, dist: &'a Dist) -> Option<Damage<'a>> {
    let own = |file: &&NativeFile| file.dist.as_deref().is_some_and(|it| same_name(it, &dist.name));
    let mut seen: Vec<(Severity, String, String)> = Vec::new();
    let damaged = env.native_files.iter().filter(own);
    for (file, what) in damaged.filter_map(|file| Some((file, file.damage.as_ref()?))) {
        let recorded = dist.altered.iter().find(|it| it.path == file.path).and_then(|it| match it
            .how
        {
            Alteration::Size { recorded, .. } => Some(format!("; RECORD says {recorded} bytes")),
            _ => None,
        });
        let what = format!("{} {what}{}", file.name(), recorded.unwrap_or_default());
        seen.push((Severity::Error, what, file.path.clone()));
    }
    for file in dist.altered.iter().filter(|file| file.belongs_to.is_none()) {
        if seen.iter().any(|(_, _, path)| *path == file.path) {
            continue;
        }
        if let Some((severity, what)) = judge_file(dist, file) {
            seen.push((severity, what, file.path.clone()));
        }
    }
    seen.compact_sort_by_key(|(severity, _, _)| *severity);
    let severity = seen.first()?.0;
    // The report of `altered` is capped; the remaining files count as the listed ones do.
    let rest = (dist.altered_total as usize).saturating_sub(dist.altered.len());
    let total = seen.len() + rest;
    let seen = seen.into_iter().map(|(_, what, path)| (what, path)).collect();
    Some(Damage { dist, severity, seen, total })
}

/// Whether compiled files were changed after RECORD was written: by the publisher, or by a Linux distribution, which strips
/// them. Packages of a distribution have INSTALLER `debian` or `rpm`, or none.
fn rewritten_after_record(dist: &Dist) -> bool {
    let by_distribution = match dist.installer.as_deref().map(str::trim) {
        None => true,
        Some(installer) => matches!(installer, "debian" | "rpm"),
    };
    by_distribution || record_is_wrong(&dist.name)
}

/// The severity of one file: an error for modules and libraries that an import needs, a warning for data and tests.
fn judge_file(dist: &Dist, file: &AlteredFile) -> Option<(Severity, String)> {
    let name = file.path.rsplit('/').next().unwrap_or(&file.path);
    let aside = ["/tests/", "/test/", "/examples/", "/benchmarks/", "/bin/", "/share/"]
        .iter()
        .any(|part| file.path.contains(part));
    let compiled = name.contains(".so");
    let imported = (compiled || name.ends_with(".py")) && !aside;
    let worst = if imported { Severity::Error } else { Severity::Warning };
    match file.how {
        Alteration::Missing => Some((worst, format!("{name} is not there"))),
        Alteration::Zeros => Some((worst, format!("{name} has zero bytes in it"))),
        Alteration::Size { recorded, found: 0 } => {
            Some((worst, format!("{name} is empty; RECORD says {recorded} bytes")))
        }
        Alteration::CutOff { recorded, found } => Some((
            worst,
            format!(
                "{name} is cut off within a line: it has {found} bytes of the {recorded} in RECORD"
            ),
        )),
        Alteration::Size { .. } if compiled && rewritten_after_record(dist) => None,
        // Administrators append their own certificate authority to bundled CA files.
        Alteration::Size { recorded, found } if name == "cacert.pem" && found > recorded => None,
        Alteration::Size { recorded, found } => {
            Some((Severity::Warning, format!("{name} has {found} bytes; RECORD says {recorded}")))
        }
        Alteration::Hash => {
            Some((Severity::Warning, format!("{name} has other contents than RECORD says")))
        }
    }
}

fn finding(env: &PyEnv, severity: Severity, damages: &[&Damage<'_>]) -> Option<Finding> {
    let first = damages.first()?;
    let more = match damages.len() {
        1 => String::new(),
        count => format!(", and of {} more packages", count - 1),
    };
    let files = |total: usize| match total {
        1 => "1 file".to_owned(),
        total => format!("{total} files"),
    };
    let how = match severity {
        Severity::Error => "missing or damaged",
        _ if first.total == 1 => "not as it was installed",
        _ => "not as they were installed",
    };
    let title = format!(
        "{} of {} {} in {} {how}{more}",
        files(first.total),
        first.dist.name,
        first.dist.version,
        env.root
    );
    let mut draft = RULE.finding(severity, Confidence::Certain, title);
    // A few files of each package are enough.
    let shown = if damages.len() > 3 { 1 } else { 4 };
    for damage in damages.iter().take(12) {
        for (what, path) in damage.seen.iter().take(shown) {
            draft = draft.evidence(what.clone(), path.clone());
        }
        if damage.total > damage.seen.len().min(shown) {
            let what = format!("{} of {} in all", files(damage.total), damage.dist.name);
            draft = draft.evidence(what, format!("{}/RECORD", damage.dist.path));
        }
    }
    let cause = match severity {
        Severity::Error => {
            "The files are not as they were installed: a copy was interrupted, the disk was full, or something removed \
             or overwrote them."
        }
        _ => {
            "The files were changed or removed after the install. If this was done on purpose, no action is needed."
        }
    };
    let dists: Vec<&Dist> = damages.iter().map(|damage| damage.dist).collect();
    Some(draft.cause(cause).fix(reinstall_commands(env, &dists)).finish())
}

/// Reinstalls distributions in their installed versions.
pub(super) fn reinstall_commands(env: &PyEnv, dists: &[&Dist]) -> Vec<RemedyStep> {
    let installer = Installer::of(env);
    let (conda, pip): (Vec<&Dist>, Vec<&Dist>) = dists.iter().partition(|dist| by_conda(dist));
    let spec = |dist: &&Dist| {
        let public = dist.version.split('+').next().unwrap_or(&dist.version);
        format!("{}=={public}", Dist::normalise(&dist.name))
    };
    // The version label names the PyTorch index of a wheel; each index needs its own command.
    let index = |dist: &Dist| {
        let (_, label) = dist.version.split_once('+')?;
        let (major, minor) = cuda_of_label(label)?;
        Some((major, minor?)).filter(|_| dist.name.starts_with("torch"))
    };
    let mut indexes: Vec<_> = pip.iter().map(|dist| index(dist)).collect();
    indexes.compact_sort();
    indexes.dedup();
    let mut lines = Vec::new();
    for wanted in indexes {
        let specs: Vec<String> =
            pip.iter().filter(|dist| index(dist) == wanted).map(spec).collect();
        lines.push(installer.install(&specs, wanted).reinstalled().without_deps());
    }
    if !conda.is_empty() {
        let specs: Vec<String> = conda.iter().map(|dist| spec(dist).replace("==", "=")).collect();
        lines.push(installer.conda(&specs).reinstalled());
    }
    lines
}

/// Damaged compiled files that no distribution lists.
fn unlisted_damage(env: &PyEnv) -> Option<Finding> {
    let mut files = env.native_files.iter().filter(|file| file.dist.is_none());
    let (file, what) = files.find_map(|file| Some((file, file.damage.as_ref()?)))?;
    let finding = RULE
        .finding(
            Severity::Warning,
            Confidence::Certain,
            format!("{} in {} {what}", file.name(), env.root),
        )
        .evidence(format!("{} {what}", file.name()), file.path.clone())
        .cause("No installed package lists the file, so nothing can bring it back; Python may still find it first.")
        .fix([format!("rm {}", quote(&file.path))])
        .finish();
    Some(finding)
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, EnvBuilder, env, machines};
    use facts::{Alteration, AlteredFile, Confidence::*, NativeFile, PyEnv, Severity::*};

    const SITE: &str = "/v/lib/python3.12/site-packages";

    fn altered(mut env: PyEnv, dist: &str, files: &[(&str, Alteration)], total: u32) -> PyEnv {
        let dist = env.dists.iter_mut().find(|it| it.name == dist).expect("a distribution");
        let file = |(path, how): &(&str, Alteration)| AlteredFile {
            path: format!("{SITE}/{path}"),
            how: how.clone(),
            belongs_to: None,
        };
        dist.altered = files.iter().map(file).collect();
        dist.altered_total = total;
        env
    }

    fn damaged(mut env: PyEnv, dist: Option<&str>, file: &str, what: &str) -> PyEnv {
        env.native_files.push(NativeFile {
            path: format!("{SITE}/{file}"),
            dist: dist.map(str::to_owned),
            damage: Some(what.into()),
            ..NativeFile::default()
        });
        env
    }

    pub(super) fn cases() -> Vec<Case> {
        let start = || env("/v").uv().torch("2.8.0+cu128", Some("12.8")).dist("numpy", "2.3.5");
        let build = EnvBuilder::build;
        let size = |recorded, found| Alteration::Size { recorded, found };
        let missing = || Alteration::Missing;
        let one = |env| vec![env];
        let cut = "is cut off: it has 4096 bytes, and its headers describe 9000000";
        vec![
            Case::new("libtorch_cpu.so is cut off", machines::a10(), {
                let file = ("torch/lib/libtorch_cpu.so", size(9_000_000, 4096));
                let env = altered(build(start()), "torch", &[file], 1);
                one(damaged(env, Some("torch"), "torch/lib/libtorch_cpu.so", cut))
            })
            .finds(
                Error,
                Certain,
                &[
                    "1 file of torch 2.8.0 in /v missing or damaged",
                    "libtorch_cpu.so is cut off: it has 4096 bytes, and its headers describe 9000000; RECORD says 9000000 bytes",
                    "torch/lib/libtorch_cpu.so]",
                    "uv pip install --python /v/bin/python --reinstall --no-deps torch==2.8.0",
                ],
            ),
            Case::new("numpy's whole tree is gone", machines::a10(), {
                let files = [("numpy/_core/_multiarray_umath.so", missing()), ("numpy/__init__.py", missing())];
                one(altered(build(start()), "numpy", &files, 900))
            })
            .finds(
                Error,
                Certain,
                &["900 files of numpy 2.3.5 in /v missing", "_multiarray_umath.so is not there", "--reinstall --no-deps numpy==2.3.5"],
            ),
            Case::new("two packages, one command", machines::a10(), {
                let env = altered(build(start()), "numpy", &[("numpy/__init__.py", size(10, 0))], 1);
                one(altered(env, "torch", &[("torch/x.py", Alteration::Zeros)], 1))
            })
            .finds(
                Error,
                Certain,
                &[
                    "and of 1 more packages",
                    "__init__.py is empty; RECORD says 10 bytes",
                    "x.py has zero bytes in it",
                    "--reinstall --no-deps torch==2.8.0 numpy==2.3.5",
                ],
            ),
            Case::new("a label names the index", machines::a10(), {
                let start = env("/v").dist("torch", "2.8.0+cu128");
                one(altered(build(start), "torch", &[("torch/x.py", missing())], 1))
            })
            .finds(
                Error,
                Certain,
                &["-m pip install --force-reinstall --no-deps torch==2.8.0 --index-url https://download.pytorch.org/whl/cu128"],
            ),
            Case::new("a file changed by hand, tests taken out", machines::a10(), {
                let files = [("numpy/x.py", size(10, 12)), ("numpy/tests/test_x.py", missing())];
                one(altered(build(start()), "numpy", &files, 2))
            })
            .finds(Warning, Certain, &["2 files of numpy 2.3.5 in /v not as they were installed", "x.py has 12 bytes"]),
            Case::new("a package's first file is cut off", machines::a10(), {
                let cut = Alteration::CutOff { recorded: 900, found: 512 };
                one(altered(build(start()), "numpy", &[("numpy/__init__.py", cut)], 1))
            })
            .finds(
                Error,
                Certain,
                &["__init__.py is cut off within a line: it has 512 bytes of the 900 in RECORD", "--reinstall --no-deps numpy==2.3.5"],
            ),
            Case::new("a stray file", machines::a10(), one(damaged(build(start()), None, "own.so", "is empty")))
                .finds(Warning, Certain, &["own.so in /v is empty", "rm /v/lib/python3.12/site-packages/own.so"]),
            Case::new("a compiled file that grew", machines::a10(), {
                let env = build(start().installer("numpy", "uv"));
                one(altered(env, "numpy", &[("numpy/x.so", size(2_407_041, 2_407_042))], 1))
            })
            .finds(
                Warning,
                Certain,
                &[
                    "1 file of numpy 2.3.5 in /v not as it was installed",
                    "x.so has 2407042 bytes; RECORD says 2407041",
                    "--reinstall --no-deps numpy==2.3.5",
                ],
            ),
            Case::new("a compiled file that shrank and has whole headers", machines::a10(), {
                let env = build(start().installer("numpy", "pip\n"));
                one(altered(env, "numpy", &[("numpy/x.so", size(2_407_041, 2_407_000))], 1))
            })
            .finds(Warning, Certain, &["x.so has 2407000 bytes; RECORD says 2407041"]),
            Case::new("the vendor set a search path after RECORD was written", machines::a10(), {
                let env = start().dist("PyNvVideoCodec", "2.0.4").installer("PyNvVideoCodec", "uv");
                let env = build(env);
                one(altered(env, "PyNvVideoCodec", &[("PyNvVideoCodec/x.so", size(2_407_041, 2_443_232))], 1))
            }),
            Case::new("a Linux distribution stripped the compiled files", machines::a10(), {
                one(altered(build(start()), "numpy", &[("numpy/x.so", size(22_526_640, 1_693_064))], 1))
            }),
            Case::new("another package wrote over it", machines::a10(), {
                let mut env = altered(build(start()), "numpy", &[("numpy/x.py", size(1, 2))], 1);
                env.dists[1].altered[0].belongs_to = Some("numpy-other".into());
                one(env)
            }),
            Case::new("all as installed", machines::a10(), one(build(start()))),
        ]
    }
}
