//! Which part of a model this process has: `--tp` gives each process a part of every layer, `--pp` some of the layers.
//!
//! The processes of `--pp` may be on as many hosts: whatever launcher started them says which each is (`ranks`). Without one they are
//! started here.

use crate::cli::{BackendArg, Split, Stages};
use crate::commands;
use crate::crew::{Crew, STARTING, first_of};
use crate::failure::Failure;
use crate::ranks::{self, Rank};
use facts::BackendKind;
use models::{Model, ModelError, Place, Ranks, follow};
use std::net::ToSocketAddrs;
use std::time::{Duration, Instant};

/// The processes that run a model together, of which this one leads.
pub(crate) struct Team {
    place: Place,
    layers: bool,
    launched: Option<Rank>,
}

impl Team {
    /// The team that this process leads. One of a launcher's others does what the leading one says first, and has done all then: none.
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
                    "--pp {} wants as many processes, {launcher} has started {size}",
                    stages.pp
                );
                return Err(Failure::hinted(what, format!("take --pp {size}")));
            }
            if rank.rank > 0 {
                serve(rank)?;
                return Ok(None);
            }
        }
        let place = Place { rank: 0, ranks: stages.pp };
        Ok(Some(Self { place, layers: true, launched }))
    }

    /// What this process has of a model.
    pub(crate) fn part(&self, model: Model) -> Result<Model, ModelError> {
        if self.layers { model.stage(self.place) } else { model.part(self.place) }
    }

    /// The other processes, which are started where no launcher has.
    pub(crate) fn crew(&self, backend: BackendKind) -> anyhow::Result<Option<Crew>> {
        match &self.launched {
            Some(rank) => Crew::launched(rank).map(Some),
            None => Crew::start(self.place.ranks, backend),
        }
    }
}

/// Does what rank 0 says until it says no more.
fn serve(rank: &Rank) -> anyhow::Result<()> {
    let place = Place { rank: rank.rank as usize, ranks: rank.size as usize };
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
                    "look at what it says, and at firewalls between",
                ));
            }
        }
    };
    follow(&ranks, commands::rank::open)
}
