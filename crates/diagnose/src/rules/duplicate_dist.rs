use super::{Context, Need, Rule, Text};
use crate::remedy::{Installer, quote};
use crate::torch_build::{is_leftover, live_dist};
use facts::CompactCollect;
use facts::{Confidence, Dist, Finding, PyEnv, Severity};
use knowledge::{Version, cuda_of_label};
use std::collections::{BTreeMap, BTreeSet};

pub(super) const RULE: Rule = Rule {
    id: "duplicate-dist",
    title: "one package installed twice, or the remains of an interrupted install",
    about: "\
Each installed package has one dist-info folder. Two dist-info folders of different versions in one site-packages mean
that an install overwrote another without removing it: it is unknown which version's files are there, and tools report
different versions. Folders that begin with `~` are backups that pip made while it replaced a package and did not
delete, because it was interrupted or a file was in use.

It shows as
  WARNING: Ignoring invalid distribution ~orch
from pip, or as different versions in `pip list` and in the imported package.

Detected in the names of the dist-info folders.

Remove every copy and install the one you need; delete the `~` folders. The same package in two site-packages is not a
fault: the first on sys.path is used.",
    links: &[],
    texts: &[Text::new("WARNING: Ignoring invalid distribution {name}", "WARNING: Ignoring invalid distribution ~orch (/home/user/.venv/lib/python3.12/site-packages)")],
    role: super::Role::Notice,
    remedy: |seen| match seen.env() {
        Some(env) => {
            env.site_packages.iter().map(|site| format!("rm -r {}/~*", quote(site))).collect()
        }
        None => vec!["python -m pip list".into()],
    },
    needs: &[Need::Environment],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    context
        .envs
        .iter()
        .flat_map(|env| {
            let groups = groups(env);
            let mut findings: Vec<Finding> = twice(env, &groups);
            findings.extend(never_replaced(env));
            findings.extend(leftovers(env));
            findings.extend(shadowed(env, &groups));
            findings
        })
        .collect()
}

fn site(dist: &Dist) -> &str {
    dist.path.trim_end_matches('/').rsplit_once('/').map_or("", |(site, _)| site)
}

fn groups(env: &PyEnv) -> BTreeMap<String, Vec<&Dist>> {
    let mut groups: BTreeMap<String, Vec<&Dist>> = BTreeMap::new();
    for dist in env.dists.iter().filter(|dist| !is_leftover(dist)) {
        groups.entry(Dist::normalise(&dist.name)).or_default().push(dist);
    }
    groups
}

/// Different versions of one package in one folder.
fn twice(env: &PyEnv, groups: &BTreeMap<String, Vec<&Dist>>) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (name, dists) in groups {
        let mut sites: BTreeMap<&str, Vec<&Dist>> = BTreeMap::new();
        for dist in dists {
            sites.entry(site(dist)).or_default().push(dist);
        }
        for copies in sites.into_values() {
            if copies.iter().any(|dist| dist.version != copies[0].version) {
                findings.push(twice_in_one(env, name, &copies));
            }
        }
    }
    findings
}

fn twice_in_one(env: &PyEnv, name: &str, copies: &[&Dist]) -> Finding {
    let versions: Vec<&str> = copies.iter().map(|dist| dist.version.as_str()).collect();
    let mut draft = RULE.finding(
        Severity::Warning,
        Confidence::Certain,
        format!(
            "{name} is installed {} times in {}: {}",
            copies.len(),
            env.root,
            versions.join(", ")
        ),
    );
    for dist in copies {
        draft = draft.evidence(format!("{name} {}", dist.version), dist.path.clone());
    }
    // torch's version.py shows which files are there; for other packages the newest version is more probable.
    let installed =
        env.torch.as_ref().filter(|_| name == "torch").map(|torch| torch.version.as_str());
    let newest =
        copies.iter().filter_map(|dist| Version::parse(&dist.version)).max_by(|a, b| a.compare(b));
    let wanted = installed.and_then(Version::parse).or(newest);
    let installer = Installer::of(env);
    let mut fix = vec![installer.uninstall(&[name]); copies.len()];
    fix.push(match wanted {
        Some(version) => {
            let label = version.local.as_deref().and_then(cuda_of_label);
            let cuda = label.and_then(|(major, minor)| Some((major, minor?)));
            let index = cuda.filter(|_| name.starts_with("torch"));
            installer.install(&[format!("{name}=={}", version.public())], index)
        }
        None => installer.install(&[name.to_owned()], None),
    });
    draft
        .cause("An install wrote over another without removing it, so files of both may be mixed.")
        .fix(fix)
        .finish()
}

/// Packages that pip backed up to replace them and that were never replaced.
fn never_replaced(env: &PyEnv) -> Option<Finding> {
    let gone: Vec<&Dist> = env.dists.iter().filter(|dist| is_gone(env, dist)).collect();
    let first = gone.first()?;
    let more = match gone.len() {
        1 => String::new(),
        count => format!(", nor are {} more", count - 1),
    };
    let title = format!(
        "{} {} in {} was set aside to be replaced, and is not installed any more{more}",
        first.name, first.version, env.root
    );
    let mut draft = RULE.finding(Severity::Warning, Confidence::Likely, title);
    for dist in &gone {
        draft =
            draft.evidence(format!("{} {}, set aside", dist.name, dist.version), dist.path.clone());
    }
    let specs: Vec<String> = gone
        .iter()
        .map(|dist| format!("{}=={}", Dist::normalise(&dist.name), public(&dist.version)))
        .collect();
    let finding = draft
        .cause(
            "pip ended after it had backed up the old release and before the dist-info of the new one was written. Files \
             of both may be there, and no tool knows the package.",
        )
        .fix([
            "# the old release; name another one if you need it:".into(),
            Installer::of(env).install(&specs, None),
        ])
        .fix(gone.iter().map(|dist| removal(&dist.path)))
        .finish();
    Some(finding)
}

/// Whether a package was backed up by pip and is not installed.
fn is_gone(env: &PyEnv, dist: &Dist) -> bool {
    is_leftover(dist) && !dist.name.starts_with('~') && live_dist(env, &dist.name).is_none()
}

fn removal(path: &str) -> String {
    format!("rm -r -- {}", quote(path))
}

fn public(version: &str) -> &str {
    version.split('+').next().unwrap_or(version)
}

fn leftovers(env: &PyEnv) -> Option<Finding> {
    let set_aside = env.dists.iter().filter(|dist| is_leftover(dist) && !is_gone(env, dist));
    let of_dists = set_aside.map(|dist| dist.path.as_str());
    // A folder without readable METADATA is not a distribution; `problems` names it.
    let of_problems = env.problems.iter().filter_map(|problem| leftover_path(problem));
    let left: BTreeSet<&str> = of_dists.chain(of_problems).compact_set();
    if left.is_empty() {
        return None;
    }
    let names: Vec<&str> = left.iter().map(|path| last_part(path)).collect();
    let mut draft = RULE.finding(
        Severity::Info,
        Confidence::Certain,
        format!("remains of an interrupted install in {}: {}", env.root, names.join(", ")),
    );
    for path in &left {
        draft = draft.evidence(format!("folder {}", last_part(path)), *path);
    }
    let finding = draft
        .cause("The folder is a backup that pip made while it replaced the package and did not delete; nothing reads it.")
        .fix(left.iter().map(|path| removal(path)))
        .finish();
    Some(finding)
}

/// The path of a `~...dist-info` folder in a problem's text.
fn leftover_path(problem: &str) -> Option<&str> {
    let name = problem.find("/~")?;
    let ends = [".dist-info", ".egg-info"]
        .map(|ending| problem[name..].find(ending).map(|at| name + at + ending.len()));
    let path = &problem[..ends.into_iter().flatten().min()?];
    Some(&path[path.find('/')?..])
}

fn last_part(path: &str) -> &str {
    path.trim_end_matches('/').rsplit('/').next().unwrap_or(path)
}

/// Different versions of one package in different folders: the first on sys.path is used. Information only.
fn shadowed(env: &PyEnv, groups: &BTreeMap<String, Vec<&Dist>>) -> Option<Finding> {
    let mut lines = Vec::new();
    for (name, dists) in groups {
        let place =
            |dist: &&&Dist| env.site_packages.iter().position(|folder| folder == site(dist));
        let Some(used) = dists.iter().min_by_key(|dist| place(dist).unwrap_or(usize::MAX)) else {
            continue;
        };
        let hidden =
            dists.iter().filter(|dist| site(dist) != site(used) && dist.version != used.version);
        lines.extend(hidden.map(|dist| {
            (
                format!("{name} {} is used, {} is hidden", used.version, dist.version),
                dist.path.clone(),
            )
        }));
    }
    if lines.is_empty() {
        return None;
    }
    let mut draft = RULE.finding(
        Severity::Info,
        Confidence::Certain,
        format!(
            "{} package(s) in {} hide another version further along the path",
            lines.len(),
            env.root
        ),
    );
    for (what, source) in lines {
        draft = draft.evidence(what, source);
    }
    Some(
        draft
            .cause("Python imports a package from the first folder on sys.path that has it.")
            .finish(),
    )
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let site = "/v/lib/python3.12/site-packages";
        let two_torches =
            env("/v").torch("2.9.1+cu128", Some("12.8")).dist("torch", "2.5.1").build();
        let leftover = env("/v")
            .torch("2.9.1+cu128", Some("12.8"))
            .dist_at("torch", "2.5.1", &format!("{site}/~orch-2.5.1.dist-info"))
            .build();
        let killed =
            env("/v").dist_at("torch", "2.5.1", &format!("{site}/~orch-2.5.1.dist-info")).build();
        let mut unread = env("/v").build();
        unread.problems =
            vec![format!("{site}/~orch-2.1.0.dist-info is a remnant of an interrupted pip")];
        let mut two_folders = env("/usr")
            .system()
            .dist_at("numpy", "1.26.4", "/usr/lib/python3/dist-packages/numpy-1.26.4.dist-info")
            .dist_at(
                "numpy",
                "2.3.1",
                "/usr/local/lib/python3.12/dist-packages/numpy-2.3.1.dist-info",
            )
            .build();
        two_folders.site_packages =
            ["/usr/local/lib/python3.12/dist-packages", "/usr/lib/python3/dist-packages"]
                .map(String::from)
                .to_vec();
        let linked = env("/v")
            .dist("numpy", "2.3.1")
            .dist_at("numpy", "2.3.1", "/v/lib64/python3.12/site-packages/numpy-2.3.1.dist-info")
            .build();
        vec![
            Case::new("two torches in one folder", machines::a10(), vec![two_torches]).finds(
                Warning,
                Certain,
                &[
                    "torch is installed 2 times in /v: 2.9.1, 2.5.1",
                    "torch-2.5.1.dist-info]",
                    "/v/bin/python -m pip uninstall --yes torch\n/v/bin/python -m pip uninstall --yes torch",
                    "pip install torch==2.9.1 --index-url https://download.pytorch.org/whl/cu128",
                ],
            ),
            Case::new("a backup folder of pip", machines::a10(), vec![leftover]).finds(
                Info,
                Certain,
                &["~orch-2.5.1.dist-info", "rm -r -- '/v/lib/python3.12/site-packages/~orch-2.5.1.dist-info'"],
            ),
            Case::new("a backup folder without METADATA", machines::a10(), vec![unread]).finds(
                Info,
                Certain,
                &["remains of an interrupted install in /v: ~orch-2.1.0.dist-info", "site-packages/~orch-2.1.0.dist-info'"],
            )
            .without(&["interrupted pip'"]),
            Case::new("pip was killed while it replaced torch", machines::a10(), vec![killed]).finds(
                Warning,
                Likely,
                &[
                    "torch 2.5.1 in /v was set aside to be replaced, and is not installed any more",
                    "~orch-2.5.1.dist-info]",
                    "/v/bin/python -m pip install torch==2.5.1",
                ],
            ),
            Case::new("Debian's numpy and pip's", machines::x86(), vec![two_folders])
                .finds(Info, Certain, &["numpy 2.3.1 is used, 1.26.4 is hidden"]),
            Case::new("lib64 is a link to lib", machines::x86(), vec![linked]),
            Case::new(
                "one of each",
                machines::h200(),
                vec![env("/v").torch("2.11.0+cu130", Some("13.0")).dist("torchvision", "0.26.0").build()],
            ),
        ]
    }
}
