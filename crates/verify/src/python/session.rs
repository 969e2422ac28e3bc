//! The harness's process: started on first use, killed with all its children when it exceeds its limits, and restarted
//! for the next request.

use super::MODEL;
use super::files::{ADAPTERS, HARNESS};
use super::tuning::Tuning;
use crate::peers::{FILES, PEERS, Peer};
use facts::CompactCollect;
use facts::{BackendKind, Status};
use serde::Deserialize;
use serde_json::{Value, json};
use std::collections::BTreeSet;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Limits of a request.
#[derive(Debug, Clone, Copy)]
pub struct ProcessLimits {
    /// Time of one request; a first call compiles.
    pub time: Duration,
    /// Resident host memory of the interpreter.
    pub memory_bytes: u64,
}

/// An interpreter of the environment under test.
#[derive(Debug, Clone)]
pub struct Python {
    /// The executable; in a virtual environment its `bin/python`.
    pub interpreter: PathBuf,
    /// Folders searched for packages before the environment's. The interpreter is isolated: PYTHONPATH is not read.
    pub paths: Vec<PathBuf>,
    /// Limits of a request.
    pub limits: ProcessLimits,
}

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum PythonError {
    /// The interpreter could not be started, or its files could not be written.
    #[error("cannot start {}: {error}", .interpreter.display())]
    Start {
        /// The interpreter.
        interpreter: PathBuf,
        /// The system's error.
        error: std::io::Error,
    },
    /// It ended.
    #[error("the Python process {how}{said}")]
    Ended {
        /// `was killed by signal 11`.
        how: String,
        /// The last line of standard error, after a colon.
        said: String,
    },
    /// It was killed at its time limit.
    #[error("no answer within {} s; the process was killed", .0.as_secs_f64())]
    TooLong(Duration),
    /// It was killed because the remaining time, less than its limit, had passed.
    #[error("no answer within the {:.1} s that were left for it; the process was killed", .0.as_secs_f64())]
    OutOfTime(Duration),
    /// It was killed at its memory limit.
    #[error("took {:.1} GiB of memory, over {:.1} GiB; the process was killed", *.used as f64 / GIB, *.limit as f64 / GIB)]
    TooMuch {
        /// Bytes in use.
        used: u64,
        /// The limit in bytes.
        limit: u64,
    },
    /// Its answer is invalid.
    #[error("answered `{0}`, which is no answer")]
    Garbage(String),
}

impl PythonError {
    /// The status of the peer: one that had too little time to be judged did not fail.
    pub fn status(&self) -> Status {
        if matches!(self, Self::OutOfTime(_)) { Status::NotRun } else { Status::Fail }
    }
}

const GIB: f64 = (1u64 << 30) as f64;

/// The interpreter's first message.
#[derive(Debug, Clone, Deserialize)]
pub(crate) struct Hello {
    pub(crate) cuda: bool,
    pub(crate) why_no_cuda: String,
    /// The version of torch; `None` if it cannot be imported, which `why_no_cuda` explains.
    pub(crate) torch: Option<String>,
    /// The modules of listed peers that the environment has.
    pub(crate) installed: Vec<String>,
}

/// A Python environment that runs kernels on request.
pub struct Session {
    python: Python,
    folder: TempDir,
    process: Option<Process>,
    /// Number of processes started; each has its own prepared state.
    started: u32,
    /// The request that loads the current case, repeated in a restarted process.
    case: Option<Value>,
    hello: Hello,
    /// How kernels are tuned in its processes; `None` for the packages' own way.
    tuning: Option<Tuning>,
    /// Total time spent waiting for answers.
    waited: Duration,
    /// Deadline of the current request, and its distance when it was set.
    deadline: Option<(Instant, Duration)>,
}

struct Process {
    child: Child,
    requests: ChildStdin,
    answers: Receiver<String>,
    errors: Arc<Mutex<Vec<u8>>>,
    /// Reads its standard error until it ends.
    listener: JoinHandle<()>,
}

/// Number of bytes of standard error that are kept.
const ERRORS: usize = 1 << 14;
/// Interval of checking memory while waiting for an answer.
const LOOK: Duration = Duration::from_millis(50);
/// Time for a process's last output to arrive after it has ended.
const LAST_WORDS: Duration = Duration::from_secs(1);

impl Session {
    /// Starts the interpreter and queries its packages.
    ///
    /// # Errors
    /// When it cannot be started or does not answer.
    pub fn start(python: Python) -> Result<Self, PythonError> {
        let started = |error| PythonError::Start { interpreter: python.interpreter.clone(), error };
        let folder = folder().map_err(started)?;
        let hello =
            Hello { cuda: false, why_no_cuda: String::new(), torch: None, installed: Vec::new() };
        let mut session = Self::with(python, folder, hello);
        session.write_harness().map_err(|error| session.start_error(error))?;
        let modules: BTreeSet<&str> = PEERS.iter().map(|peer| peer.module).compact_set();
        let answer = session.ask(json!({ "do": "hello", "modules": modules }))?;
        session.hello = serde_json::from_value(answer.clone())
            .map_err(|_| PythonError::Garbage(answer.to_string()))?;
        Ok(session)
    }

    fn with(python: Python, folder: TempDir, hello: Hello) -> Self {
        Self {
            python,
            folder,
            process: None,
            started: 0,
            case: None,
            hello,
            tuning: None,
            waited: Duration::ZERO,
            deadline: None,
        }
    }

    /// Another session of the same environment, which runs concurrently with this one: its process starts with the first
    /// request, and kernels are tuned by short measurements that are not cached.
    ///
    /// # Errors
    /// When the harness cannot be written.
    pub fn concurrent(&self) -> Result<Self, PythonError> {
        let folder = folder().map_err(|error| self.start_error(error))?;
        let session = Self::with(self.python.clone(), folder, self.hello.clone());
        session.write_harness().map_err(|error| self.start_error(error))?;
        Ok(Self { tuning: Some(Tuning::CONCURRENT), ..session })
    }

    /// Imports the packages of these peers, which shortens the first call of each.
    ///
    /// # Errors
    /// When the process does not answer.
    pub fn ready<'p>(
        &mut self,
        peers: impl IntoIterator<Item = &'p Peer>,
    ) -> Result<(), PythonError> {
        let listed = peers.into_iter().filter(|peer| peer.op != MODEL);
        let named: Vec<_> = listed.filter_map(|peer| Some((peer.adapter?, &peer.name))).collect();
        self.ask(json!({ "do": "ready", "peers": named })).map(|_| ())
    }

    /// Sets how kernels are tuned from now on, in this process and later ones.
    ///
    /// # Errors
    /// When the process does not answer.
    pub fn tune(&mut self, tuning: Tuning) -> Result<(), PythonError> {
        self.tuning = Some(tuning);
        if self.process.is_some() {
            self.exchange(&tuning.request())?;
        }
        Ok(())
    }

    /// Runs requests with a time limit for all of them, starting a process included; when it is reached, the process is
    /// killed. `None` for only the usual limits.
    pub fn within<R>(&mut self, time: Option<Duration>, ask: impl FnOnce(&mut Self) -> R) -> R {
        self.deadline = time.map(|time| (Instant::now() + time, time));
        let asked = ask(self);
        self.deadline = None;
        asked
    }

    /// Total time spent waiting for answers, starting processes included.
    pub fn waited(&self) -> Duration {
        self.waited
    }

    /// Why a peer cannot run on a backend here, and its status; `None` if it has to be tried.
    ///
    /// A package that is installed and cannot be loaded is a failure, and so is one that the user named and that is not
    /// installed.
    pub fn refuses(&self, peer: &Peer, backend: BackendKind) -> Option<(Status, String)> {
        let module = peer.module?;
        if !self.has(module) {
            let why = format!("{module} is not installed in this environment");
            return Some((peer.status_if_not_installed(), why));
        }
        if self.hello.torch.is_none() {
            let status = match self.has("torch") {
                true => Status::Fail,
                false => peer.status_if_not_installed(),
            };
            return Some((status, self.hello.why_no_cuda.clone()));
        }
        let runs = backend == BackendKind::Cuda || !peer.cpu.is_empty();
        let why = || match self.cuda() {
            Err(why) => format!("{} needs a GPU: {why}", peer.name),
            Ok(()) => format!("{} needs a GPU and was asked for {backend}", peer.name),
        };
        (!runs).then(|| (Status::NotApplicable, why()))
    }

    /// Why torch, which is installed, cannot be imported.
    pub fn broken_torch(&self) -> Option<&str> {
        let is_broken = self.hello.torch.is_none() && self.has("torch");
        is_broken.then_some(self.hello.why_no_cuda.as_str())
    }

    fn has(&self, module: &str) -> bool {
        self.hello.installed.iter().any(|installed| installed == module)
    }

    /// Whether the environment has the package of any listed peer.
    pub fn has_listed_package(&self) -> bool {
        !self.hello.installed.is_empty()
    }

    /// Whether torch can use a GPU, and otherwise why not.
    pub fn cuda(&self) -> Result<(), &str> {
        if self.hello.cuda { Ok(()) } else { Err(&self.hello.why_no_cuda) }
    }

    /// A folder for exchanged files, in memory if possible; deleted with the session.
    pub fn folder(&self) -> &Path {
        self.folder.path()
    }

    /// Ends the interpreter: the next request starts another one without loaded state.
    pub fn restart(&mut self) {
        (self.process, self.case) = (None, None);
    }

    /// Number of processes started.
    pub(crate) fn started(&self) -> u32 {
        self.started
    }

    /// Whether the process with this number is the current one.
    pub(crate) fn holds(&self, process: u32) -> bool {
        self.process.is_some() && self.started == process
    }

    /// Sets the current case: `request` loads it, now and in every process started later.
    pub(crate) fn load(&mut self, request: Value) -> Result<(), PythonError> {
        self.case = None;
        let answer = self.ask(request.clone())?;
        if let Some(reason) = answer.get("reason").and_then(Value::as_str) {
            return Err(PythonError::Garbage(reason.to_owned()));
        }
        self.case = Some(request);
        Ok(())
    }

    /// Sends a request and waits for its answer.
    ///
    /// # Errors
    /// When none arrives; the process is then killed, and the next request starts another one.
    pub(crate) fn ask(&mut self, request: Value) -> Result<Value, PythonError> {
        if self.process.is_none() {
            let process = self.spawn().map_err(|error| self.start_error(error))?;
            self.process = Some(process);
            self.started += 1;
            if let Some(tuning) = self.tuning {
                self.exchange(&tuning.request())?;
            }
            if let Some(case) = self.case.clone() {
                self.exchange(&case)?;
            }
        }
        self.exchange(&request)
    }

    fn exchange(&mut self, request: &Value) -> Result<Value, PythonError> {
        let Some(process) = &mut self.process else {
            return Err(PythonError::Garbage("nothing".to_owned()));
        };
        let (begin, mut limits) = (Instant::now(), self.python.limits);
        let left = self.deadline.map(|(at, _)| at.saturating_duration_since(begin));
        limits.time = left.map_or(limits.time, |left| left.min(limits.time));
        let answer = match (process.exchange(request, limits), self.deadline) {
            (Err(PythonError::TooLong(limit)), Some((_, given)))
                if limit < self.python.limits.time =>
            {
                Err(PythonError::OutOfTime(given))
            }
            (answer, _) => answer,
        };
        self.waited += begin.elapsed();
        if answer.is_err() {
            self.process = None;
        }
        answer
    }

    fn start_error(&self, error: std::io::Error) -> PythonError {
        PythonError::Start { interpreter: self.python.interpreter.clone(), error }
    }

    fn write_harness(&self) -> std::io::Result<()> {
        let (name, text) = HARNESS;
        std::fs::write(self.folder().join(name), text)?;
        let adapters = self.folder().join(ADAPTERS);
        std::fs::create_dir(&adapters)?;
        FILES.iter().try_for_each(|(name, text)| {
            std::fs::write(adapters.join(name).with_extension("py"), text)
        })
    }

    fn spawn(&self) -> std::io::Result<Process> {
        let mut child = Command::new(&self.python.interpreter)
            // Isolated, and without writing compiled files into the environment.
            .args(["-I", "-B"])
            .arg(self.folder().join(HARNESS.0))
            .arg(self.folder().join(ADAPTERS))
            .args(&self.python.paths)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .process_group(0)
            .spawn()?;
        let (Some(requests), Some(stdout), Some(mut stderr)) =
            (child.stdin.take(), child.stdout.take(), child.stderr.take())
        else {
            return Err(std::io::Error::other("its pipes are not there"));
        };
        let (send, answers) = channel();
        std::thread::spawn(move || {
            let lines = BufReader::new(stdout).split(b'\n').map_while(Result::ok);
            for line in lines {
                if send.send(String::from_utf8_lossy(&line).into_owned()).is_err() {
                    break;
                }
            }
        });
        let errors = Arc::new(Mutex::new(Vec::new()));
        let kept = Arc::clone(&errors);
        let listener = std::thread::spawn(move || {
            let mut part = [0; 4096];
            while let Ok(count @ 1..) = stderr.read(&mut part) {
                let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
                kept.extend_from_slice(&part[..count]);
                let excess = kept.len().saturating_sub(ERRORS);
                kept.drain(..excess);
            }
        });
        Ok(Process { child, requests, answers, errors, listener })
    }
}

impl Process {
    fn exchange(&mut self, request: &Value, limits: ProcessLimits) -> Result<Value, PythonError> {
        let deadline = Instant::now() + limits.time;
        if writeln!(self.requests, "{request}").and_then(|()| self.requests.flush()).is_err() {
            return Err(self.ended());
        }
        loop {
            match self.answers.recv_timeout(LOOK) {
                Ok(line) => {
                    return serde_json::from_str(&line)
                        .ok()
                        .filter(Value::is_object)
                        .ok_or_else(|| PythonError::Garbage(line.chars().take(200).collect()));
                }
                Err(RecvTimeoutError::Disconnected) => return Err(self.ended()),
                Err(RecvTimeoutError::Timeout) => {}
            }
            let used = resident_bytes(self.child.id());
            if used > limits.memory_bytes {
                return Err(PythonError::TooMuch { used, limit: limits.memory_bytes });
            }
            if Instant::now() > deadline {
                return Err(PythonError::TooLong(limits.time));
            }
        }
    }

    fn ended(&mut self) -> PythonError {
        // Its output ended before the process, usually by a moment; it may also have closed its output and stayed.
        let deadline = Instant::now() + Duration::from_secs(2);
        let how = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => {
                    break match (status.signal(), status.code()) {
                        (Some(signal), _) => format!("was killed by signal {signal}"),
                        (_, code) => format!("ended with status {}", code.unwrap_or_default()),
                    };
                }
                Ok(None) if Instant::now() < deadline => std::thread::sleep(LOOK),
                _ => break "closed its answers".to_owned(),
            }
        };
        // Its last output may still arrive; a process that it left running may keep the pipe open.
        let deadline = Instant::now() + LAST_WORDS;
        while !self.listener.is_finished() && Instant::now() < deadline {
            std::thread::sleep(Duration::from_millis(1));
        }
        let errors = self.errors.lock().unwrap_or_else(PoisonError::into_inner);
        let text = String::from_utf8_lossy(&errors);
        let last = text.lines().rev().find(|line| !line.trim().is_empty());
        let said = last.map_or_else(String::new, |line| {
            format!(": {}", line.trim().chars().take(200).collect::<String>())
        });
        PythonError::Ended { how, said }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        // Compilers that it started belong to its process group.
        if let Some(group) =
            i32::try_from(self.child.id()).ok().and_then(rustix::process::Pid::from_raw)
        {
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        }
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// A folder in memory if possible: gigabytes of inputs are exchanged through it.
fn folder() -> std::io::Result<TempDir> {
    let named = |parent: &Path| tempfile::Builder::new().prefix("firstlight-").tempdir_in(parent);
    named(Path::new("/dev/shm")).or_else(|_| named(&std::env::temp_dir()))
}

/// Resident memory of a process; 0 if the system does not report it.
fn resident_bytes(id: u32) -> u64 {
    let statm = std::fs::read_to_string(format!("/proc/{id}/statm")).unwrap_or_default();
    let pages: u64 = statm.split(' ').nth(1).and_then(|pages| pages.parse().ok()).unwrap_or(0);
    pages * rustix::param::page_size() as u64
}
