//! `firstlight rank`, hidden: one rank of a model that another process splits, which tells it what to do.

use crate::cores;
use crate::{Outcome, loading, stopping};
use device::Device;
use facts::BackendKind;
use models::{Architecture, ModelError, Opening, Place, Ranks, follow};
use serde::{Deserialize, Serialize};
use std::io::BufRead;
use std::net::SocketAddr;

/// What a rank is told on its standard input, a line of JSON.
#[derive(Debug, Serialize, Deserialize)]
pub(crate) struct Told {
    /// Where rank 0 is.
    pub(crate) at: SocketAddr,
    /// What it has to say there.
    pub(crate) secret: String,
    pub(crate) rank: usize,
    pub(crate) ranks: usize,
    /// Cores that it may use; none for all.
    pub(crate) cores: Vec<usize>,
}

pub(super) fn run() -> anyhow::Result<Outcome> {
    let mut line = String::new();
    std::io::stdin().lock().read_line(&mut line)?;
    let told: Told = serde_json::from_str(&line)?;
    cores::only(&told.cores);
    // Ctrl-C comes to all processes of a terminal, and a service's end to all of a service: rank 0 says when this one ends.
    stopping::not_by_signals()?;
    // Whatever this one waits for: without rank 0 nothing comes of it.
    std::thread::spawn(|| {
        let mut line = String::new();
        while std::io::stdin().lock().read_line(&mut line).is_ok_and(|count| count > 0) {}
        eprintln!("error: rank 0 has ended");
        stopping::end_at_once(2);
    });
    let place = Place { rank: told.rank, ranks: told.ranks };
    let ranks = Ranks::join(told.at, place, told.secret.as_bytes())?;
    follow(&ranks, open)?;
    Ok(Outcome::Good)
}

/// A device for this process's part of a model, once it is known to fit there.
pub(crate) fn open(own: &Architecture, opening: &Opening) -> anyhow::Result<Device> {
    let open = device::open(opening.backend);
    let device = open.map_err(|why| ModelError::Device(why.to_string()))?;
    // Of a host's memory rank 0 has looked for all, unless they may be on hosts of their own.
    let looks = opening.backend != BackendKind::Cpu || own.stage.ranks > 1;
    if looks {
        loading::fit(own, &device, opening.storage, (opening.capacity, opening.step))?;
    }
    Ok(device)
}
