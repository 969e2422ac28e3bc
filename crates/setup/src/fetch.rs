//! HTTP by a Python interpreter: its standard library has TLS with the system's certificates and proxies, while a TLS
//! library would require a C compiler for every cross build of firstlight. uv cannot do this part: it unpacks while
//! downloading, and a wheel has to be opened before it is installed.

use serde::Serialize;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

const SCRIPT: &str = concat!(include_str!("http.py"), "\n", include_str!("fetch.py"));
/// Parallel downloads, as many as a browser's connections; more only helps with high latency.
const THREADS: usize = 8;
/// Attempts per file; each resumes where the previous one ended.
const ATTEMPTS: u32 = 6;
/// Seconds without data after which a connection counts as dropped.
const TIMEOUT: u32 = 30;
/// Seconds without data when only checking an address.
const CHECK_TIMEOUT: u32 = 10;
/// Parallel requests for sizes: each costs one round trip, mostly waiting.
const SIZE_THREADS: usize = 24;
/// Maximum seconds to wait for a size.
const SIZE_TIMEOUT: u32 = 2;

/// A file to download.
#[derive(Debug, Clone, Serialize)]
pub struct Download {
    /// Its address.
    pub url: String,
    /// Its target path.
    pub path: PathBuf,
    /// Its expected hash; `None` for content that is not known in advance.
    #[serde(flatten)]
    pub hash: Option<Hash>,
    /// Its size in bytes, if known: the largest files are started first, because they end last.
    pub bytes: Option<u64>,
}

/// The hash of a file, in lower-case hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Hash {
    /// SHA-256 of its content.
    Sha256(String),
    /// Git's blob hash: SHA-1 of `blob`, its size, which has to be known, and its content.
    GitBlob(String),
}

/// A secret that is sent to one host only, not to hosts it redirects to.
#[derive(Debug, Clone, Serialize)]
pub struct Bearer {
    /// The environment variable that contains it, so that no file does.
    pub variable: String,
    /// An address on the host.
    pub url: String,
}

/// A progress event; the number is the file's index in the request.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DownloadEvent {
    /// More bytes arrived.
    Bytes(usize, u64),
    /// The connection was dropped and is retried.
    Dropped(usize, String),
    /// The file is complete; the bytes that came over the network.
    Done(usize, u64),
    /// The file has another hash than expected.
    Mismatch(usize, String),
    /// It could not be downloaded.
    Failed(usize, String),
}

/// The answer of a checked address: the size of its file, if known, or the error.
pub(crate) type Answer = Result<Option<u64>, String>;

#[derive(Serialize)]
struct Job<'a> {
    threads: usize,
    attempts: u32,
    timeout: u32,
    check_timeout: u32,
    check: &'a [String],
    files: &'a [Download],
    bearer: Option<&'a Bearer>,
}

impl Default for Job<'_> {
    fn default() -> Self {
        let (threads, attempts) = (THREADS, ATTEMPTS);
        let (timeout, check_timeout) = (TIMEOUT, CHECK_TIMEOUT);
        Self { threads, attempts, timeout, check_timeout, check: &[], files: &[], bearer: None }
    }
}

/// A running download process. Dropping it kills the process.
#[derive(Debug)]
pub struct Fetch {
    child: Child,
    said: Option<BufReader<ChildStdout>>,
    asked: usize,
    wanted: usize,
}

impl Fetch {
    /// Downloads files, with a secret if a host needs one; as [`Fetch::start`].
    ///
    /// # Errors
    /// If the file `told` cannot be written or the interpreter cannot be started.
    pub fn files(
        python: Command,
        told: &Path,
        files: &[Download],
        bearer: Option<&Bearer>,
    ) -> io::Result<Self> {
        Self::run(python, told, &Job { files, bearer, ..Job::default() })
    }

    /// Checks the addresses in `check`, and downloads `files` once all of them have answered; nothing is written
    /// before. `python` starts an interpreter; its job is written to the file `told`.
    ///
    /// # Errors
    /// If the file cannot be written or the interpreter cannot be started.
    pub(crate) fn start(
        python: Command,
        told: &Path,
        check: &[String],
        files: &[Download],
    ) -> io::Result<Self> {
        Self::run(python, told, &Job { check, files, ..Job::default() })
    }

    /// Requests the sizes of files, with a short time limit.
    ///
    /// # Errors
    /// Those of [`Fetch::start`] and [`Fetch::answers`].
    pub(crate) fn sizes(python: Command, told: &Path, urls: &[String]) -> io::Result<Vec<Answer>> {
        let (threads, timeout) = (SIZE_THREADS, SIZE_TIMEOUT);
        let short = Job { threads, attempts: 1, timeout, check_timeout: timeout, ..Job::default() };
        Self::run(python, told, &Job { check: urls, ..short })?.answers()
    }

    fn run(mut python: Command, told: &Path, job: &Job<'_>) -> io::Result<Self> {
        std::fs::write(told, serde_json::to_vec(job)?)?;
        python.args(["-S", "-c", SCRIPT]).arg(told).stdout(Stdio::piped());
        // Ctrl-C reaches only the process group of the terminal, so that Python prints no traceback: the script ends with
        // its parent.
        #[cfg(unix)]
        std::os::unix::process::CommandExt::process_group(&mut python, 0);
        let mut child = python.spawn()?;
        let said = child.stdout.take().map(BufReader::new);
        Ok(Self { child, said, asked: job.check.len(), wanted: job.files.len() })
    }

    /// Waits until each checked address has answered or failed.
    ///
    /// # Errors
    /// If the interpreter's output cannot be read.
    pub(crate) fn answers(&mut self) -> io::Result<Vec<Answer>> {
        // An address that is not reported did not answer.
        let mut answers = vec![Err("no answer".to_owned()); self.asked];
        for _ in 0..self.asked {
            let Some(line) = self.line()? else { break };
            if let Some((number, answer)) = parse_answer(&line).filter(|it| it.0 < self.asked) {
                answers[number] = answer;
            }
        }
        Ok(answers)
    }

    /// The next event, `None` when everything is done.
    ///
    /// # Errors
    /// If the interpreter's output cannot be read, or it failed.
    pub fn next_event(&mut self) -> io::Result<Option<DownloadEvent>> {
        while let Some(line) = self.line()? {
            if let Some(event) = parse(&line, self.wanted) {
                return Ok(Some(event));
            }
        }
        let status = self.child.wait()?;
        match status.success() {
            true => Ok(None),
            false => Err(io::Error::other(format!("the download ended with {status}"))),
        }
    }

    /// The next line, `None` at the end.
    fn line(&mut self) -> io::Result<Option<String>> {
        let Some(said) = &mut self.said else { return Ok(None) };
        said.lines().next().transpose()
    }
}

impl Drop for Fetch {
    fn drop(&mut self) {
        // Partial downloads are kept. The process may have ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// The answer of an address, with its number.
fn parse_answer(line: &str) -> Option<(usize, Answer)> {
    let mut fields = line.splitn(3, '\t');
    let (what, number, value) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?);
    match what {
        "answers" => Some((number, Ok(value.parse().ok()))),
        "silent" => Some((number, Err(value.to_owned()))),
        _ => None,
    }
}

/// The status of an HTTP error in a reason: `HTTP 404: Not Found`. `None` if no server answered.
pub(crate) fn http_status(reason: &str) -> Option<u16> {
    reason.strip_prefix("HTTP ")?.split(':').next()?.parse().ok()
}

/// The remedy for an HTTP status, where the same request again would fail again; `None` if it may succeed.
pub(crate) fn hint_for_status(status: u16) -> Option<&'static str> {
    match status {
        404 | 410 => Some(
            "the file was removed or moved: make a new plan, which names the files that exist now",
        ),
        401 | 403 => Some(
            "the index refuses this machine: get access to it, or make a plan with another index",
        ),
        _ => None,
    }
}

/// Parses one line; `None` if the script did not write it.
fn parse(line: &str, count: usize) -> Option<DownloadEvent> {
    let mut fields = line.splitn(3, '\t');
    let (what, number, value) = (fields.next()?, fields.next()?, fields.next()?);
    let number: usize = number.parse().ok().filter(|number| *number < count)?;
    let text = || value.to_owned();
    Some(match what {
        "bytes" => DownloadEvent::Bytes(number, value.parse().ok()?),
        "dropped" => DownloadEvent::Dropped(number, text()),
        "done" => DownloadEvent::Done(number, value.parse().ok()?),
        "mismatch" => DownloadEvent::Mismatch(number, text()),
        "failed" => DownloadEvent::Failed(number, text()),
        _ => return None,
    })
}
