//! Checks of one pair of environments: doctor finds the rule with its evidence in the broken one, and no error in the
//! healthy one.

use crate::world::{Report, World};
use facts::Severity;

/// A broken and a healthy environment with a minimal difference.
pub(crate) struct Pair {
    /// The name of its file.
    pub(crate) name: &'static str,
    /// The rule that finds the broken environment.
    pub(crate) rule: &'static str,
    /// How the rule finds it.
    pub(crate) found: Detection,
    /// The row's error message, for which `explain` must find the rule; empty if there is none.
    pub(crate) message: &'static str,
    /// Files of site-packages that this system's dynamic loader opens in this order: in the broken environment the last one
    /// fails with the message, in the healthy one all load. Empty if the failure does not occur in the loader.
    pub(crate) loads: &'static [&'static str],
    /// Other rules that correctly find errors in the broken environment.
    pub(crate) also: &'static [&'static str],
    /// Builds the broken environment, or the healthy one.
    pub(crate) build: fn(Twin) -> World,
}

/// The environment of a pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Twin {
    Broken,
    Healthy,
}

impl Twin {
    /// The value of this environment.
    pub(crate) fn pick<T>(self, broken: T, healthy: T) -> T {
        match self {
            Self::Broken => broken,
            Self::Healthy => healthy,
        }
    }

    /// Applies a change only to the broken environment.
    pub(crate) fn broken(self, world: World, change: impl FnOnce(World) -> World) -> World {
        if self == Self::Broken { change(world) } else { world }
    }
}

/// How a rule finds the broken environment of a pair.
pub(crate) enum Detection {
    /// By its files: a finding of this severity, with this text in its evidence.
    Files(Severity, &'static str),
    /// By its error message, which `explain` confirms by the environment.
    Message,
}

/// The default values of a pair.
pub(crate) const PAIR: Pair = Pair {
    name: "",
    rule: "",
    found: Detection::Message,
    message: "",
    loads: &[],
    also: &[],
    build: |_| World::on("x86-cpu"),
};

/// The failed checks of a pair.
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
    if !pair.message.is_empty() {
        check_explanation(pair, pair.message, &report, problem);
    }
    if let Some(last) = world.open(pair.loads).last() {
        if !last.contains(pair.message) {
            problem(format!("the loader reports {last}"));
        }
        check_explanation(pair, &format!("ImportError: {last}"), &report, problem);
    }
}

/// Checks that `explain` ranks the rule first and the environment confirms it.
fn check_explanation(pair: &Pair, words: &str, report: &Report, problem: &mut dyn FnMut(String)) {
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
    // The rule may not find the healthy environment with the same or a higher severity.
    if let Detection::Files(severity, _) = pair.found {
        let own = report.findings.iter().filter(|finding| finding.rule == pair.rule);
        for finding in own.filter(|finding| finding.severity <= severity) {
            problem(format!("{:?}: {}", finding.severity, finding.title));
        }
    }
    let matches = diagnose::explain(pair.message, &report.machine, &report.envs);
    if matches.iter().any(|found| found.rule.id == pair.rule && found.confirmed_here == Some(true))
    {
        problem(format!("{:?} is confirmed", pair.message));
    }
    let reported = world.open(pair.loads);
    if reported.iter().any(|line| line != "opened") || reported.len() != pair.loads.len() {
        problem(format!("the loader reports {reported:?}"));
    }
}

fn titles<'a>(report: &'a Report, rule: &str) -> Vec<&'a str> {
    let own = report.findings.iter().filter(|finding| finding.rule == rule);
    own.map(|finding| finding.title.as_str()).collect()
}
