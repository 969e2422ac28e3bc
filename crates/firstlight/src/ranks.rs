//! This process's rank and the number of ranks, from the variables of the launcher that started it.
//!
//! A launcher is one row of [`LAUNCHERS`]. firstlight starts no process on another machine: every scheduler has a
//! launcher, and all launchers set the same few numbers under different names. This module reads no environment
//! variables; the caller passes them.

mod launchers;
mod nodelist;

pub(crate) use launchers::LAUNCHERS;

use crate::failure::Failure;
use facts::CompactSort;
use launchers::{Launcher, Leader};

/// A rank of a job.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Rank {
    /// The launcher's name.
    pub(crate) launcher: &'static str,
    /// From 0.
    pub(crate) rank: u32,
    /// Number of ranks.
    pub(crate) size: u32,
    /// Its rank within its host.
    pub(crate) local_rank: u32,
    /// Host name or address of rank 0.
    pub(crate) leader: String,
    /// Where rank 0 listens.
    pub(crate) port: u16,
    /// A text that the ranks of this job share and other jobs do not.
    pub(crate) job: String,
}

/// The variable with the user's secret, instead of one derived from the launcher's variables.
pub(crate) const TOKEN: &str = "FIRSTLIGHT_FLEET_TOKEN";

/// Default ports: between those of well-known services and the ephemeral ports.
const PORTS: std::ops::Range<u32> = 21_000..29_000;

/// The variables of a process.
pub(crate) type Variables<'a> = &'a dyn Fn(&str) -> Option<String>;

/// The rank of this process if a launcher has started it.
///
/// # Errors
/// As [`of`], except for a missing launcher.
pub(crate) fn launched(variables: Variables<'_>) -> anyhow::Result<Option<Rank>> {
    let here = LAUNCHERS.iter().any(|launcher| launcher.is_here(variables));
    here.then(|| of(variables)).transpose()
}

/// The rank of this process from the variables of its launcher.
///
/// Of two nested launchers, the inner one counts: the one with more ranks, if the outer one started at most one process
/// per host.
///
/// # Errors
/// In one sentence: there is no launcher, its variables are incomplete, a number is out of range, or two contradict.
pub(crate) fn of(variables: Variables<'_>) -> anyhow::Result<Rank> {
    let mut found: Vec<(&Launcher, LauncherCounts)> = Vec::new();
    let here: Vec<&Launcher> =
        LAUNCHERS.iter().filter(|launcher| launcher.is_here(variables)).collect();
    for launcher in &here {
        match launcher.counted(variables) {
            Ok(counted) => found.push((launcher, counted)),
            // A launcher around another one need not be complete.
            Err(_) if launcher.around_others && here.len() > 1 => {}
            Err(error) => return Err(error),
        }
    }
    // The larger job first; equal ones in the order of the table.
    found.compact_sort_by_key(|(_, counted)| std::cmp::Reverse(counted.size));
    let Some((inner, counted)) = found.first() else {
        let what = "no launcher's variables are set: this process has no rank";
        let names: Vec<&str> = LAUNCHERS.iter().map(|launcher| launcher.name).collect();
        let hint = format!(
            "start it with one of {}; inside a Slurm job with srun. Without --fleet it checks this machine alone",
            names.join(", ")
        );
        return Err(Failure::hinted(what, hint));
    };
    if let Some((outer, other)) = found.iter().skip(1).find(|(_, other)| !counted.is_within(other))
    {
        let what = format!(
            "two launchers disagree: {} says {} and {} says {}",
            inner.name, counted.said, outer.name, other.said
        );
        return Err(Failure::hinted(
            what,
            "unset the variables of the one that did not start this process",
        ));
    }
    let outside = found.iter().skip(1).map(|(launcher, _)| *launcher);
    let leader = leader(inner, counted, outside, variables)?;
    let job = job(inner, variables, counted.size);
    let port = match inner.port.and_then(variables) {
        // The launcher's store listens on the port that it names.
        Some(port) => number(inner.port.unwrap_or_default(), &port)?.checked_add(1),
        None => Some(PORTS.start + checksum(&job) % (PORTS.end - PORTS.start)),
    };
    let port = port.and_then(|port| u16::try_from(port).ok());
    let Some(port) = port else {
        let what = format!("{} leaves no port for rank 0", inner.port.unwrap_or_default());
        return Err(Failure::hinted(what, "name another one with --fleet-port"));
    };
    let LauncherCounts { rank, size, local_rank, .. } = *counted;
    Ok(Rank { launcher: inner.name, rank, size, local_rank, leader, port, job })
}

/// The numbers in a launcher's variables.
#[derive(Debug, Clone)]
struct LauncherCounts {
    rank: u32,
    size: u32,
    local_rank: u32,
    local_size: u32,
    /// The variables with their values.
    said: String,
}

impl LauncherCounts {
    /// Whether another launcher can have started this one's processes, or has the same numbers.
    fn is_within(&self, outer: &Self) -> bool {
        let same = |of: &Self| (of.rank, of.size, of.local_rank);
        let hosts = self.size.div_ceil(self.local_size.max(1));
        same(self) == same(outer) || (outer.size < self.size && outer.size <= hosts)
    }
}

impl Launcher {
    /// Whether its marker variable is set, or any of its variables if it has no marker.
    fn is_here(&self, variables: Variables<'_>) -> bool {
        let set = |name: &&str| variables(name).is_some_and(|value| !value.is_empty());
        match self.mark {
            Some(mark) => set(&mark),
            None => {
                [self.rank, self.size].into_iter().chain(self.local_rank).any(|name| set(&name))
            }
        }
    }

    fn counted(&self, variables: Variables<'_>) -> anyhow::Result<LauncherCounts> {
        let names = [Some(self.rank), Some(self.size), self.local_rank];
        let mut said = Vec::new();
        let mut missing = Vec::new();
        for name in names.into_iter().flatten() {
            match variables(name).filter(|value| !value.is_empty()) {
                Some(value) => said.push(format!("{name}={value}")),
                None => missing.push(name),
            }
        }
        if !missing.is_empty() {
            let there = if said.is_empty() {
                self.mark.unwrap_or_default().to_owned()
            } else {
                said.join(" ")
            };
            let what = format!(
                "only some of the variables of {} are set: {there}, without {}",
                self.name,
                missing.join(" and ")
            );
            return Err(Failure::hinted(what, self.hint));
        }
        let of = |name: &str| number(name, &variables(name).unwrap_or_default());
        let (rank, size) = (of(self.rank)?, of(self.size)?);
        let local_rank = self.local_rank.map_or(Ok(0), of)?;
        let told = self.local_size.and_then(|name| Some((name, variables(name)?)));
        let local_size = match told {
            Some((name, value)) => Some(
                nodelist::tasks_here(&value, variables(nodelist::NODE).as_deref())
                    .map_or_else(|| number(name, &value), Ok)?,
            ),
            // With one rank per host there is no such variable.
            None if self.local_rank.is_none() => Some(1),
            None => None,
        };
        let said = said.join(" ");
        let out = rank >= size
            || local_rank > rank
            || local_size.is_some_and(|most| local_rank >= most || most > size);
        if out {
            let beside = launcher_size_hint(self.local_size, variables);
            let what = format!("a rank of {} is out of range: {said}{beside}", self.name);
            return Err(Failure::hinted(what, self.hint));
        }
        if let Some((name, value)) = self.also.and_then(|name| Some((name, variables(name)?)))
            && value != rank.to_string()
        {
            let what = format!("{name}={value} contradicts {said}");
            return Err(Failure::hinted(what, "unset the one that did not start this process"));
        }
        Ok(LauncherCounts { rank, size, local_rank, local_size: local_size.unwrap_or(1), said })
    }
}

fn launcher_size_hint(name: Option<&str>, variables: Variables<'_>) -> String {
    let told = name.and_then(|name| Some(format!(" {name}={}", variables(name)?)));
    told.unwrap_or_default()
}

/// The address of rank 0: from its launcher, from an outer launcher, or from MASTER_ADDR.
fn leader<'a>(
    inner: &Launcher,
    counted: &LauncherCounts,
    mut outside: impl Iterator<Item = &'a Launcher>,
    variables: Variables<'_>,
) -> anyhow::Result<String> {
    let by = |launcher: &Launcher| match launcher.leader {
        Leader::Named(name) => variables(name),
        Leader::FirstOf(name) => variables(name)?.split_whitespace().next().map(str::to_owned),
        Leader::FirstOfNodes(name) => nodelist::first(&variables(name)?),
        Leader::Unset => None,
    };
    // If all ranks are on this host, the address is known.
    if counted.local_size >= counted.size {
        return Ok("127.0.0.1".to_owned());
    }
    let told = by(inner).or_else(|| outside.find_map(by));
    let told = told.or_else(|| variables("MASTER_ADDR")).filter(|address| !address.is_empty());
    told.ok_or_else(|| {
        let what = format!("{} does not define the host of rank 0", inner.name);
        Failure::hinted(what, inner.hint)
    })
}

/// The text that distinguishes this job from others: the user's secret, or the launcher's values.
fn job(inner: &Launcher, variables: Variables<'_>, size: u32) -> String {
    if let Some(secret) = variables(TOKEN).filter(|secret| !secret.is_empty()) {
        return secret;
    }
    let of = |name: &&str| variables(name).map(|value| format!("{name}={value}"));
    let known: Vec<String> = inner.job.iter().filter_map(of).collect();
    format!("{} of {size}: {}", inner.name, known.join(" "))
}

fn number(name: &str, value: &str) -> anyhow::Result<u32> {
    value.trim().parse().map_err(|_| {
        Failure::hinted(
            format!("{name}={value} is not a number"),
            "unset it, or let the launcher set it",
        )
    })
}

/// The same number for the same text on every rank (FNV-1a).
fn checksum(text: &str) -> u32 {
    text.bytes().fold(0x811c_9dc5, |sum, byte| (sum ^ u32::from(byte)).wrapping_mul(0x0100_0193))
}

#[cfg(test)]
mod tests;
