//! Judging one pair of environments: the rule has to be found in the broken one, with its evidence, and not in the
//! healthy one, in which nothing may be an error.

use crate::world::{Report, World};
use facts::Severity;

/// A broken environment and a healthy one that differ in as little as makes the difference.
pub(crate) struct Pair {
    /// The name of its file.
    pub(crate) name: &'static str,
    /// The rule that finds it.
    pub(crate) rule: &'static str,
    /// How it is found.
    pub(crate) found: Detection,
    /// The words it shows as, by which `explain` leads to the rule; empty where nothing is said.
    pub(crate) says: &'static str,
    /// Files of site-packages that this system's loader opens in this order: the last one fails with those words in
    /// the broken environment, and all open in the healthy one. Empty where no loader shows the row.
    pub(crate) opens: &'static [&'static str],
    /// Other rules that find errors in the broken environment, each true there.
    pub(crate) also: &'static [&'static str],
    /// Builds the broken environment, or the healthy one.
    pub(crate) build: fn(Twin) -> World,
}

/// Which environment of a pair is built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Twin {
    Broken,
    Healthy,
}

impl Twin {
    /// One value for the broken environment, another for the healthy one.
    pub(crate) fn pick<T>(self, broken: T, healthy: T) -> T {
        match self {
            Self::Broken => broken,
            Self::Healthy => healthy,
        }
    }

    /// A change to the broken environment alone.
    pub(crate) fn broken(self, world: World, change: impl FnOnce(World) -> World) -> World {
        if self == Self::Broken { change(world) } else { world }
    }
}

/// How a pair is found.
pub(crate) enum Detection {
    /// In the files: a finding of this severity, of which one piece of evidence names this.
    Files(Severity, &'static str),
    /// By its words, which what `explain` looks at in the environment confirms.
    Words,
}

/// What a pair leaves out.
pub(crate) const PAIR: Pair = Pair {
    name: "",
    rule: "",
    found: Detection::Words,
    says: "",
    opens: &[],
    also: &[],
    build: |_| World::on("x86-cpu"),
};

/// What is wrong with a pair.
pub(crate) fn judge(pair: &Pair) -> Vec<String> {
    let mut problems = Vec::new();
    broken(pair, &mut |what| problems.push(format!("{} (broken): {what}", pair.name)));
    healthy(pair, &mut |what| problems.push(format!("{} (healthy): {what}", pair.name)));
    problems
}

fn broken(pair: &Pair, problem: &mut dyn FnMut(String)) {
    let world = (pair.build)(Twin::Broken);
    let report = world.doctor();
    for rule in report.rules(Severity::Error) {
        if rule != pair.rule && !pair.also.contains(&rule) {
            problem(format!("{rule} is an error as well: {:?}", titles(&report, rule)));
        }
    }
    if let Detection::Files(severity, evidence) = pair.found {
        let own = report.findings.iter().filter(|finding| finding.rule == pair.rule);
        let shows = |finding: &facts::Finding| {
            finding.severity == severity
                && finding
                    .evidence
                    .iter()
                    .any(|it| it.source.contains(evidence) || it.what.contains(evidence))
        };
        if !own.clone().any(shows) {
            let own: Vec<_> = own.map(|finding| (finding.severity, &finding.evidence)).collect();
            problem(format!("{} is not found as {severity:?} by {evidence}: {own:?}", pair.rule));
        }
    }
    if !pair.says.is_empty() {
        explains(pair, pair.says, &report, problem);
    }
    if let Some(last) = world.open(pair.opens).last() {
        if !last.contains(pair.says) {
            problem(format!("the loader says {last}"));
        }
        explains(pair, &format!("ImportError: {last}"), &report, problem);
    }
}

/// The words lead to the rule first, and the environment agrees.
fn explains(pair: &Pair, words: &str, report: &Report, problem: &mut dyn FnMut(String)) {
    let matches = diagnose::explain(words, &report.machine, &report.envs);
    let first =
        matches.first().map(|found| (found.rule.id, found.confirmed_here, found.fix.is_empty()));
    if first != Some((pair.rule, Some(true), false)) {
        problem(format!("{words:?} is explained as {first:?}"));
    }
}

fn healthy(pair: &Pair, problem: &mut dyn FnMut(String)) {
    let world = (pair.build)(Twin::Healthy);
    let report = world.doctor();
    for rule in report.rules(Severity::Error) {
        problem(format!("{rule} is an error: {:?}", titles(&report, rule)));
    }
    // Nor may the rule find it, as bad as it is or worse.
    if let Detection::Files(severity, _) = pair.found {
        let own = report.findings.iter().filter(|finding| finding.rule == pair.rule);
        for finding in own.filter(|finding| finding.severity <= severity) {
            problem(format!("{:?}: {}", finding.severity, finding.title));
        }
    }
    let matches = diagnose::explain(pair.says, &report.machine, &report.envs);
    if matches.iter().any(|found| found.rule.id == pair.rule && found.confirmed_here == Some(true))
    {
        problem(format!("{:?} is confirmed", pair.says));
    }
    let said = world.open(pair.opens);
    if said.iter().any(|line| line != "opened") || said.len() != pair.opens.len() {
        problem(format!("the loader says {said:?}"));
    }
}

fn titles<'a>(report: &'a Report, rule: &str) -> Vec<&'a str> {
    let own = report.findings.iter().filter(|finding| finding.rule == rule);
    own.map(|finding| finding.title.as_str()).collect()
}
