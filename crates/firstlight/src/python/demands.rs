//! Kernels of an environment that the command line selects: a command that ran none of them has failed.

use crate::cli::PeerChoice;
use crate::failure::Failure;
use facts::{BackendKind, ParityRow, Status};
use std::collections::BTreeMap;
use std::path::Path;
use verify::Peer;

/// One name on the command line and its peers.
#[derive(Debug)]
struct Demand {
    /// `--only fla`.
    option: String,
    peers: Vec<String>,
}

/// Everything that the command line selects of an environment.
#[derive(Debug)]
pub(crate) struct Demands {
    /// `--venv DIR`.
    environment: String,
    /// One for each name; the whole environment if no kernel is named.
    all: Vec<Demand>,
}

/// The result of one peer in one check or timing.
pub(crate) struct PeerResult<'a> {
    pub(crate) peer: &'a str,
    pub(crate) status: Status,
    pub(crate) reason: &'a str,
}

/// The peers that the arguments select, and those that must run.
///
/// # Errors
/// A name without a peer, and a peer of an op that the command does not use.
pub(super) fn read(
    venv: Option<&Path>,
    arguments: &PeerChoice,
    ops: &[&str],
) -> anyhow::Result<(Vec<Peer>, Demands)> {
    let mut functions = Vec::new();
    let mut demands = Vec::new();
    for text in &arguments.peer {
        let peer = Peer::function(text).map_err(|what| {
            Failure::hinted(what, "for example attention=my_module:my_attention")
        })?;
        if !ops.contains(&peer.op.as_str()) {
            let what = format!(
                "--peer {text} is a kernel of {}, which this command does not run",
                peer.op
            );
            return Err(Failure::hinted(
                what,
                format!("the ops of this command are {}", ops.join(", ")),
            ));
        }
        demands.push(Demand { option: format!("--peer {text}"), peers: vec![peer.name.clone()] });
        functions.push(peer);
    }
    let is_asked = |peer: &Peer| ops.contains(&peer.op.as_str());
    for name in &arguments.only {
        let all = Peer::listed(std::slice::from_ref(name));
        let of_ops: Vec<String> = all.iter().filter(|peer| is_asked(peer)).map(name_of).collect();
        let meant: Vec<String> = match of_ops.is_empty() {
            true => functions.iter().map(name_of).filter(|peer| peer.starts_with(name)).collect(),
            false => of_ops,
        };
        if meant.is_empty() && all.is_empty() {
            let known: Vec<&str> = verify::PEERS.iter().map(|peer| peer.name).collect();
            let hint = format!("the peers are {}", known.join(", "));
            return Err(Failure::hinted(format!("no peer is called `{name}`"), hint));
        }
        if meant.is_empty() {
            let theirs: Vec<&str> = all.iter().map(|peer| peer.op.as_str()).collect();
            let what = format!("--only {name} has no kernel of {}", ops.join(", "));
            return Err(Failure::hinted(what, format!("it has kernels of {}", distinct(&theirs))));
        }
        demands.push(Demand { option: format!("--only {name}"), peers: meant });
    }
    let of_functions_alone = !arguments.only.is_empty()
        && arguments.only.iter().all(|name| Peer::listed(std::slice::from_ref(name)).is_empty());
    let mut peers = match of_functions_alone {
        true => Vec::new(),
        false => Peer::listed(&arguments.only),
    };
    let environment = match (venv, &arguments.python) {
        (Some(folder), _) => format!("--venv {}", folder.display()),
        (None, Some(python)) => format!("--python {}", python.display()),
        (None, None) => String::new(),
    };
    if demands.is_empty() {
        let peers: Vec<String> = peers.iter().filter(|peer| is_asked(peer)).map(name_of).collect();
        if !peers.is_empty() {
            demands.push(Demand { option: environment.clone(), peers });
        }
    }
    peers.extend(functions);
    Ok((peers, Demands { environment, all: demands }))
}

fn name_of(peer: &Peer) -> String {
    peer.name.clone()
}

fn distinct(names: &[&str]) -> String {
    let mut distinct: Vec<&str> = Vec::new();
    for name in names {
        if !distinct.contains(name) {
            distinct.push(name);
        }
    }
    distinct.join(", ")
}

impl Demands {
    /// For each name without a kernel that ran: the option, and the most common reason. Names with a failed or
    /// timed-out kernel have a row of their result and are not listed. No kernel runs if torch is broken.
    pub(super) fn unmet<'a>(
        &self,
        seen: impl Iterator<Item = PeerResult<'a>>,
        broken_torch: Option<&str>,
    ) -> Vec<(&str, String)> {
        let seen: Vec<PeerResult<'_>> = seen.collect();
        if let Some(why) = broken_torch {
            let told = seen.iter().any(|seen| seen.reason == why);
            let unmet = (!told).then(|| (self.environment.as_str(), why.to_owned()));
            return unmet.into_iter().collect();
        }
        let unmet = self.all.iter().filter_map(|demand| {
            let of = seen.iter().filter(|seen| demand.peers.iter().any(|peer| peer == seen.peer));
            let mut reasons: BTreeMap<&str, usize> = BTreeMap::new();
            for PeerResult { status, reason, .. } in of {
                if !matches!(status, Status::NotApplicable | Status::Skip) {
                    return None;
                }
                *reasons.entry(reason).or_default() += 1;
            }
            let commonest = reasons.into_iter().max_by_key(|(_, count)| *count);
            let why = commonest.map_or("no check selected it", |(why, _)| why);
            Some((
                demand.option.as_str(),
                format!("{}: none of its kernels ran: {why}", demand.option),
            ))
        });
        unmet.collect()
    }

    pub(super) fn names_kernels(&self) -> bool {
        self.all.iter().any(|demand| demand.option != self.environment)
    }
}

/// The results of installed kernels in a matrix.
pub(crate) fn seen(rows: &[ParityRow]) -> impl Iterator<Item = PeerResult<'_>> {
    let of_peers = rows.iter().filter(|row| row.peer.is_some());
    of_peers.map(|row| PeerResult { peer: &row.variant, status: row.status, reason: &row.reason })
}

/// The row of an option that selected kernels of which none ran.
pub(crate) fn failed_row(
    op: &str,
    backend: BackendKind,
    option: &str,
    reason: String,
) -> ParityRow {
    ParityRow {
        op: op.to_owned(),
        case: "-".to_owned(),
        backend,
        variant: option.to_owned(),
        dtype: "f32".to_owned(),
        status: Status::Fail,
        reason,
        rel_err: None,
        max_err: None,
        tolerance: verify::tolerance(ops::DType::F32).relative,
        launches: 0,
        millis: 0.0,
        peer: Some(option.to_owned()),
        evidence: String::new(),
        bits: None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn demands(names: &[(&str, &[&str])]) -> Demands {
        let demand = |(option, peers): &(&str, &[&str])| Demand {
            option: (*option).to_owned(),
            peers: peers.iter().map(|peer| (*peer).to_owned()).collect(),
        };
        let environment = "--venv v".to_owned();
        Demands { environment, all: names.iter().map(demand).collect() }
    }

    #[test]
    fn a_name_is_unmet_if_nothing_of_it_ran() {
        let all = demands(&[("--only fla", &["fla.a", "fla.b"]), ("--peer kda=m:f", &["m:f"])]);
        let check = |seen: &[(&str, Status, &str)], expect: &[&str]| {
            let seen = seen.iter().map(|(peer, status, reason)| PeerResult {
                peer,
                status: *status,
                reason,
            });
            let unmet: Vec<String> =
                all.unmet(seen, None).into_iter().map(|(_, why)| why).collect();
            assert_eq!(unmet, expect);
        };
        let skipped = ("m:f", Status::Skip, "needs Hopper");
        let absent = |peer| (peer, Status::NotApplicable, "needs a GPU");
        check(
            &[absent("fla.a"), ("fla.b", Status::NotApplicable, "other"), absent("fla.a"), skipped],
            &[
                "--only fla: none of its kernels ran: needs a GPU",
                "--peer kda=m:f: none of its kernels ran: needs Hopper",
            ],
        );
        for ran in [Status::Pass, Status::Fail, Status::Fallback, Status::NotRun] {
            check(&[absent("fla.a"), ("fla.b", ran, ""), ("m:f", ran, "")], &[]);
        }
        let none = "no check selected it";
        check(
            &[("fla.a", Status::Pass, "")],
            &[&format!("--peer kda=m:f: none of its kernels ran: {none}")],
        );
    }
}
