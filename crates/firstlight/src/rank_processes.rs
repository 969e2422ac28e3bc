//! The processes of a tensor-parallel model (`--tp`): this one is rank 0 and leads; each of the others is this program
//! again (`commands::rank`), on separate cores and, for GPUs, on a separate GPU.

use crate::cli::{BackendArg, Split};
use crate::commands::rank::RankMessage;
use crate::cores;
use crate::failure::Failure;
use crate::own_program::{own_program, restart_with};
use crate::ranks::Rank;
use facts::BackendKind;
use models::{Ranks, ShardRank};
use ops_cuda::NCCL_SETTING;
use std::hash::{BuildHasher, Hasher, RandomState};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The variable that makes a process see only one GPU.
const VISIBLE: &str = "CUDA_VISIBLE_DEVICES";

/// Time limit for ranks to start.
pub(crate) const STARTING: Duration = Duration::from_secs(60);

/// Time for another thread to report a lost rank; without a report, because it waits for a GPU, all processes exit.
const SILENCE: Duration = Duration::from_secs(5);

/// All ranks of a tensor-parallel model.
pub(crate) struct RankProcesses {
    pub(crate) ranks: Ranks,
    others: Arc<OtherRanks>,
}

#[derive(Default)]
struct OtherRanks(Mutex<Vec<Process>>);

struct Process {
    child: Child,
    /// Its standard error; the last line says why it ended.
    said: Option<JoinHandle<String>>,
    why: Option<String>,
}

/// This process's part of a model. If GPUs may run it, NCCL needs its variable when it is loaded: this process restarts
/// with it.
pub(crate) fn first_of(split: Split, asked: BackendArg) -> anyhow::Result<ShardRank> {
    let (name, value) = NCCL_SETTING;
    let wanted = split.tp > 1 && asked != BackendArg::Cpu;
    let set = std::env::var_os(name).is_some_and(|set| set == value);
    if wanted && !set && ops_cuda::visible_gpus().is_ok() {
        restart_with(name, value)?;
    }
    Ok(ShardRank { rank: 0, ranks: split.tp })
}

impl RankProcesses {
    /// Starts the other ranks and restricts this process to its share of the cores; none for a single rank.
    pub(crate) fn start(ranks: usize, backend: BackendKind) -> anyhow::Result<Option<Self>> {
        if ranks == 1 {
            return Ok(None);
        }
        let gpus = match backend {
            BackendKind::Cpu | BackendKind::Metal => Vec::new(),
            BackendKind::Cuda => {
                let nccl = ops_cuda::nccl().map_err(|error| anyhow::anyhow!("{error}"))?;
                if nccl.other().is_some() {
                    eprintln!("note: {}", nccl.describe());
                }
                gpus(ranks)?
            }
        };
        let shares = cores::of_ranks(&cores::allowed(), ranks);
        cores::only(&shares[0]);
        let listener = TcpListener::bind("127.0.0.1:0")?;
        let at = listener.local_addr()?;
        let secret = secret();
        let others = Arc::new(OtherRanks::default());
        for (rank, cores) in shares.into_iter().enumerate().skip(1) {
            let told = RankMessage { at, secret: secret.clone(), rank, ranks, cores };
            let process = Process::start(&told, gpus.get(rank))?;
            others.all().push(process);
        }
        let asked = Arc::clone(&others);
        let ended = Box::new(move |rank: usize, within| asked.why(rank, within));
        let ranks = Ranks::lead(&listener, ranks, secret.as_bytes(), STARTING, ended)?;
        let watched = Arc::downgrade(&others);
        std::thread::spawn(move || {
            while let Some(others) = watched.upgrade() {
                others.watch();
                drop(others);
                std::thread::sleep(Duration::from_millis(200));
            }
        });
        Ok(Some(Self { ranks, others }))
    }
}

impl RankProcesses {
    /// Waits for the processes that a launcher has started.
    pub(crate) fn launched(own: &Rank) -> anyhow::Result<Self> {
        let listener = TcpListener::bind((Ipv6Addr::UNSPECIFIED, own.port))
            .or_else(|_| TcpListener::bind((Ipv4Addr::UNSPECIFIED, own.port)));
        let listener = listener.map_err(|error| {
            let what = format!("rank 0 cannot listen on port {}: {error}", own.port);
            Failure::hinted(
                what,
                "stop the program that uses the port, or start the job under another number",
            )
        })?;
        // The launcher reports how processes of other hosts ended.
        let ended = Box::new(|_, _| None);
        let (count, secret) = (own.size as usize, own.job.as_bytes());
        let ranks = Ranks::lead(&listener, count, secret, STARTING, ended)?;
        Ok(Self { ranks, others: Arc::default() })
    }
}

impl Drop for RankProcesses {
    /// Kills the processes with the command.
    fn drop(&mut self) {
        self.others.end();
    }
}

impl OtherRanks {
    fn all(&self) -> MutexGuard<'_, Vec<Process>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn end(&self) {
        for mut process in self.all().drain(..) {
            let _ = process.child.kill();
            let _ = process.child.wait();
        }
    }

    /// Why a rank's process ended, if it does within this time.
    fn why(&self, rank: usize, within: Duration) -> Option<String> {
        let until = Instant::now() + within;
        loop {
            if let Some(why) = self.all().get_mut(rank - 1)?.why() {
                return Some(why);
            }
            if Instant::now() >= until {
                return None;
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    /// Ends this command if a process has ended without a report.
    fn watch(&self) {
        let ended =
            self.all().iter_mut().enumerate().find_map(|(at, one)| Some((at + 1, one.why()?)));
        let Some((rank, why)) = ended else { return };
        std::thread::sleep(SILENCE);
        if self.all().is_empty() {
            return;
        }
        self.end();
        eprintln!("error: rank {rank} has ended: {why}");
        crate::stopping::end_at_once(2);
    }
}

impl Process {
    fn start(told: &RankMessage, gpu: Option<&String>) -> anyhow::Result<Self> {
        let own = own_program()
            .ok_or_else(|| anyhow::anyhow!("the path of this program is not known"))?;
        let mut command = Command::new(own);
        command.arg("rank").stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
        command.envs(gpu.map(|gpu| (VISIBLE, gpu)));
        let mut child = command.spawn()?;
        // The pipe stays open: closing it signals the exit of this process.
        if let Some(input) = &mut child.stdin {
            let told = serde_json::to_string(told)?;
            input.write_all(told.as_bytes()).and_then(|()| input.write_all(b"\n"))?;
            input.flush()?;
        }
        let errors = child.stderr.take();
        let said = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = errors.map(|mut errors| errors.read_to_end(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        });
        Ok(Self { child, said: Some(said), why: None })
    }

    /// How it ended, with its last message; none while it runs.
    fn why(&mut self) -> Option<String> {
        if let Some(why) = &self.why {
            return Some(why.clone());
        }
        let status = self.child.try_wait().ok()??;
        let said = self.said.take().and_then(|said| said.join().ok()).unwrap_or_default();
        let last = said.lines().rev().find_map(|line| line.strip_prefix("error: "));
        let why = last.map_or_else(|| status.to_string(), |last| format!("{status}: {last}"));
        self.why = Some(why.clone());
        Some(why)
    }
}

/// A secret that other users of this machine do not know.
fn secret() -> String {
    let word = || RandomState::new().build_hasher().finish();
    format!("{:016x}{:016x}", word(), word())
}

/// The GPUs of the ranks, in the order in which this process sees them.
fn gpus(ranks: usize) -> anyhow::Result<Vec<String>> {
    let seen = ops_cuda::visible_gpus().map_err(|error| anyhow::anyhow!("{error}"))?;
    let usable: Vec<String> =
        seen.into_iter().filter(|gpu| gpu.unusable.is_none()).map(|gpu| gpu.uuid).collect();
    if usable.len() >= ranks {
        return Ok(usable);
    }
    let here = usable.len();
    let what = format!("--tp {ranks} needs one GPU per rank, this process can use {here}");
    let hint =
        format!("use --tp {here}, make more GPUs visible with {VISIBLE}, or give --backend cpu");
    Err(Failure::hinted(what, hint))
}
