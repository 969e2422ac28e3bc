//! This process's part of a model: `--tp` gives each process a part of every layer, `--pp` some of the layers.
//!
//! The processes of `--pp` may be on different hosts, with ranks from their launcher (`ranks`). Without a launcher they
//! are started here.

use crate::cli::{BackendArg, Split, Stages};
use crate::commands;
use crate::failure::Failure;
use crate::rank_processes::{RankProcesses, STARTING, first_of};
use crate::ranks::{self, Rank};
use facts::BackendKind;
use models::{Model, ModelError, Ranks, ShardRank, follow};
use std::net::ToSocketAddrs;
use std::time::{Duration, Instant};

/// The processes that run a model together, led by this one.
pub(crate) struct RankGroup {
    place: ShardRank,
    layers: bool,
    launched: Option<Rank>,
}

impl RankGroup {
    /// The team that this process leads. A non-leading process of a launcher follows rank 0 to the end of the job, and
    /// then gets none.
    pub(crate) fn of(
        split: Split,
        stages: Stages,
        asked: BackendArg,
    ) -> anyhow::Result<Option<Self>> {
        if stages.pp == 1 {
            let place = first_of(split, asked)?;
            return Ok(Some(Self { place, layers: false, launched: None }));
        }
        let variables = |name: &str| std::env::var(name).ok();
        let launched = ranks::launched(&variables)?.filter(|rank| rank.size > 1);
        if let Some(rank) = &launched {
            if rank.size as usize != stages.pp {
                let (launcher, size) = (rank.launcher, rank.size);
                let what = format!(
                    "--pp {} needs as many processes, {launcher} started {size}",
                    stages.pp
                );
                return Err(Failure::hinted(what, format!("use --pp {size}")));
            }
            if rank.rank > 0 {
                serve(rank)?;
                return Ok(None);
            }
        }
        let place = ShardRank { rank: 0, ranks: stages.pp };
        Ok(Some(Self { place, layers: true, launched }))
    }

    /// This process's part of a model.
    pub(crate) fn part(&self, model: Model) -> Result<Model, ModelError> {
        if self.layers { model.stage(self.place) } else { model.part(self.place) }
    }

    /// The other processes, which are started unless a launcher has done so.
    pub(crate) fn rank_processes(
        &self,
        backend: BackendKind,
    ) -> anyhow::Result<Option<RankProcesses>> {
        match &self.launched {
            Some(rank) => RankProcesses::launched(rank).map(Some),
            None => RankProcesses::start(self.place.ranks, backend),
        }
    }
}

/// Follows rank 0 until it closes the connection.
fn serve(rank: &Rank) -> anyhow::Result<()> {
    let place = ShardRank { rank: rank.rank as usize, ranks: rank.size as usize };
    let until = Instant::now() + STARTING;
    let join = || -> anyhow::Result<Ranks> {
        let mut addresses = (&*rank.leader, rank.port).to_socket_addrs()?;
        let at = addresses.next().ok_or_else(|| anyhow::anyhow!("it has no address"))?;
        Ok(Ranks::join(at, place, rank.job.as_bytes())?)
    };
    let ranks = loop {
        match join() {
            Ok(ranks) => break ranks,
            Err(_) if Instant::now() < until => std::thread::sleep(Duration::from_millis(50)),
            Err(why) => {
                let what = format!("rank 0 is not at {}:{}: {why:#}", rank.leader, rank.port);
                return Err(Failure::hinted(
                    what,
                    "check its output, and firewalls between the hosts",
                ));
            }
        }
    };
    follow(&ranks, commands::rank::open)
}
