use super::{Context, Need, Rule};
use crate::dist_requirements::{DistRequirement, applicable_requirements};
use crate::remedy::Installer;
use crate::requirement::{self, Requirement};
use crate::torch_build::{is_leftover, live_dist};
use facts::{Confidence, Dist, Finding, PyEnv, Severity};
use knowledge::Version;

pub(super) const RULE: Rule = Rule {
    id: "sibling-versions",
    title: "two packages that are released together are of different versions",
    about: "\
One project releases several packages at the same version, and one of them pins another to that version in an extra.
Upgrading only one leaves the other at an older version, and no installer objects, because installed metadata does not
record which extras were requested. Some of these packages compare versions at import and raise an error; others fail at
a changed interface.

Detected in METADATA: an extra pins another installed package to exactly the version of the package itself.

Install both at one version, or remove the sibling if nothing uses it.",
    links: &["https://packaging.python.org/en/latest/specifications/core-metadata/#provides-extra-multiple-use"],
    remedy: |seen| vec![format!("{} -m pip check", seen.installer().python())],
    needs: &[Need::Environment],
    check: Some(check),
    #[cfg(test)]
    cases: tests::cases,
    ..Rule::BLANK
};

fn check(context: &Context) -> Vec<Finding> {
    let of = |env| judge(env, &applicable_requirements(context.machine, env));
    context.envs.iter().flat_map(of).collect()
}

fn judge(env: &PyEnv, wants: &[DistRequirement<'_>]) -> Vec<Finding> {
    let live = env.dists.iter().filter(|dist| !is_leftover(dist));
    let pairs = live.flat_map(|dist| {
        let pins = dist.requires.iter().filter_map(|line| pin(dist, line));
        let siblings = pins.filter_map(|wanted| Some((live_dist(env, &wanted.name)?, wanted)));
        let apart = siblings.filter(|(sibling, wanted)| is_apart(dist, sibling, wanted, wants));
        let mut apart: Vec<&Dist> = apart.map(|(sibling, _)| sibling).collect();
        apart.dedup_by_key(|sibling| &sibling.path);
        apart.into_iter().map(move |sibling| finding(env, dist, sibling))
    });
    pairs.collect()
}

/// A requirement of an extra that pins another package to the version of this one.
fn pin(dist: &Dist, line: &str) -> Option<Requirement> {
    let wanted = requirement::parse(line)?;
    let constraint = wanted.constraint();
    let version = constraint.strip_prefix("==")?;
    let of_extra = wanted.marker.contains("extra");
    let own = public(&dist.version) == version && wanted.name != Dist::normalise(&dist.name);
    (of_extra && own).then_some(wanted)
}

/// Whether the sibling is of another version that no applicable requirement explains.
fn is_apart(
    dist: &Dist,
    sibling: &Dist,
    wanted: &Requirement,
    wants: &[DistRequirement<'_>],
) -> bool {
    let allows = |wanted: &Requirement, version: &str| {
        Version::parse(version).and_then(|version| wanted.allows(&version))
    };
    let others = wants.iter().filter(|want| want.wanted.name == wanted.name);
    let accounted = others.into_iter().any(|want| {
        want.dist.path == dist.path || allows(&want.wanted, &dist.version) == Some(false)
    });
    allows(wanted, &sibling.version) == Some(false) && !accounted
}

fn public(version: &str) -> &str {
    version.split('+').next().unwrap_or(version)
}

fn finding(env: &PyEnv, dist: &Dist, sibling: &Dist) -> Finding {
    let (own, version) = (&dist.name, public(&dist.version));
    let installer = Installer::of(env);
    let title = format!(
        "{own} {version} in {} is released together with {} {version}, and {} is installed",
        env.root, sibling.name, sibling.version
    );
    RULE.finding(Severity::Warning, Confidence::Likely, title)
        .evidence(
            format!("an extra of {own} {version} pins {}=={version}", sibling.name),
            dist.path.clone(),
        )
        .evidence(format!("{} {}", sibling.name, sibling.version), sibling.path.clone())
        .cause("One of the two was installed or upgraded without the other.")
        .fix([installer.install(&[format!("{}=={version}", sibling.name)], None)])
        .finish()
}

#[cfg(test)]
mod tests {
    use crate::test_support::{Case, env, machines};
    use facts::{Confidence::*, Severity::*};

    pub(super) fn cases() -> Vec<Case> {
        let pair = |sibling: &str| {
            env("/v")
                .uv()
                .dist("nvidia-cutlass-dsl", "4.8.0")
                .requires(
                    "nvidia-cutlass-dsl",
                    "nvidia-cutlass-dsl-libs-cu13==4.8.0; extra == 'cu13'",
                )
                .requires("nvidia-cutlass-dsl", "nvidia-cutlass-dsl[cu13]==4.8.0; extra == 'all'")
                .dist("nvidia-cutlass-dsl-libs-cu13", sibling)
        };
        vec![
            Case::new("one was upgraded", machines::a10(), vec![pair("4.7.1").build()]).finds(
                Warning,
                Likely,
                &[
                    "nvidia-cutlass-dsl 4.8.0 in /v is released together with nvidia-cutlass-dsl-libs-cu13 4.8.0, and 4.7.1 is installed",
                    "an extra of nvidia-cutlass-dsl 4.8.0 pins nvidia-cutlass-dsl-libs-cu13==4.8.0",
                    "uv pip install --python /v/bin/python nvidia-cutlass-dsl-libs-cu13==4.8.0",
                ],
            ),
            Case::new("of one version", machines::a10(), vec![pair("4.8.0").build()]),
            Case::new("a build of that version", machines::a10(), vec![pair("4.8.0+cu130").build()]),
            Case::new(
                "another package pins it",
                machines::a10(),
                vec![
                    pair("4.7.1")
                        .dist("other", "1.0")
                        .requires("other", "nvidia-cutlass-dsl-libs-cu13<4.8")
                        .build(),
                ],
            ),
            Case::new(
                "a pin on another version",
                machines::a10(),
                vec![
                    env("/v")
                        .dist("a", "2.0")
                        .requires("a", "b==1.0; extra == 'x'")
                        .dist("b", "0.9")
                        .build(),
                ],
            ),
        ]
    }
}
