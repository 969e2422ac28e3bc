//! `firstlight rank`, hidden: one rank of a tensor-parallel model, led by another process.

use crate::cores;
use crate::{Outcome, loading, stopping};
use device::Device;
use facts::BackendKind;
use models::{Architecture, ModelError, OpenRequest, Ranks, ShardRank, follow};
use serde::{Deserialize, Serialize};
use std::io::BufRead;
use std::net::SocketAddr;

/// The settings of a rank, one line of JSON on its standard input.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct RankMessage {
    /// Address of rank 0.
    pub(crate) at: SocketAddr,
    /// The secret that authenticates this rank.
    pub(crate) secret: String,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// Cores that the rank may use; empty for all.
    pub(crate) cores: Vec<usize>,
}

pub(super) fn run() -> anyhow::Result<Outcome> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let told: RankMessage = serde_json::from_str(&line)?;
    cores::only(&told.cores);
    // Ctrl-C reaches all processes of a terminal, and a service's stop all of its processes: rank 0 decides when this
    // one exits.
    stopping::not_by_signals()?;
    // Without rank 0, this process has no purpose.
    std::thread::spawn(|| {
        let mut line = String::new();
        while std::io::stdin().lock().read_line(&mut line).is_ok_and(|count| count > 0) {}
        eprintln!("error: rank 0 has ended");
        stopping::end_at_once(2);
    });
    let place = ShardRank { rank: told.rank, ranks: told.ranks };
    let ranks = Ranks::join(told.at, place, told.secret.as_bytes())?;
    follow(&ranks, open)?;
    Ok(Outcome::Good)
}

/// A device for this process's part of a model, after checking that it fits.
pub(crate) fn open(own: &Architecture, opening: &OpenRequest) -> anyhow::Result<Device> {
    let open = backends::open(opening.backend);
    let device = open.map_err(|why| ModelError::Device(why.to_string()))?;
    // Rank 0 has checked the host memory for all ranks, unless they may be on different hosts.
    let looks = opening.backend != BackendKind::Cpu || own.stage.ranks > 1;
    if looks {
        loading::fit(own, &device, opening.storage, (opening.capacity, opening.step))?;
    }
    Ok(device)
}
