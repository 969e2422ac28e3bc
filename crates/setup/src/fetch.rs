//! HTTP, spoken by a Python that is here anyway: its standard library has TLS with the system's certificates and proxies,
//! where a TLS of our own would bring a C compiler into every build of firstlight for another machine. uv cannot do this
//! part: it unpacks as it downloads, and a wheel has to be opened before it is installed.

use serde::Serialize;
use std::io::{self, BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};

const SCRIPT: &str = concat!(include_str!("http.py"), "\n", include_str!("fetch.py"));
/// Files at once, as many connections as a browser opens; more only helps where latency is high.
const THREADS: usize = 8;
/// Tries for one file; each goes on where the one before ended.
const ATTEMPTS: u32 = 6;
/// Seconds without a byte after which a connection counts as dropped.
const TIMEOUT: u32 = 30;
/// The same for an address that is only asked whether it answers.
const CHECK_TIMEOUT: u32 = 10;
/// Addresses that are asked at once for no more than a size: each is one round trip, and waiting is all it costs.
const SIZE_THREADS: usize = 24;
/// Seconds that a size is worth waiting for.
const SIZE_TIMEOUT: u32 = 2;

/// A file that is wanted.
#[derive(Debug, Clone, Serialize)]
pub struct Wanted {
    /// Its address.
    pub url: String,
    /// Where it goes.
    pub path: PathBuf,
    /// The hash it has to have; none for an answer that nobody knows before.
    #[serde(flatten)]
    pub hash: Option<Hash>,
    /// Its size in bytes, where that is known: the largest come first, for they end last.
    pub bytes: Option<u64>,
}

/// What a file is known by, in lower-case hexadecimal.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Hash {
    /// SHA-256 of its content.
    Sha256(String),
    /// What git calls it: SHA-1 of `blob`, its size, which has to be known, and its content.
    GitBlob(String),
}

/// A secret that goes with requests to one host, and to no other that it leads to.
#[derive(Debug, Clone, Serialize)]
pub struct Bearer {
    /// The variable of the environment that has it, so that no file does.
    pub variable: String,
    /// An address on the host.
    pub url: String,
}

/// What happened; the number is the file's in the list of those wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// So many more bytes came.
    Bytes(usize, u64),
    /// The connection ended early and is made again.
    Dropped(usize, String),
    /// The file is in its place; so many bytes came over the network.
    Done(usize, u64),
    /// It is another file than was wanted.
    Mismatch(usize, String),
    /// It could not be fetched.
    Failed(usize, String),
}

/// What an address that was asked says: the bytes of its file, where it tells, or why it does not answer.
pub(crate) type Answer = Result<Option<u64>, String>;

#[derive(Serialize)]
struct Job<'a> {
    threads: usize,
    attempts: u32,
    timeout: u32,
    check_timeout: u32,
    check: &'a [String],
    files: &'a [Wanted],
    bearer: Option<&'a Bearer>,
}

impl Default for Job<'_> {
    fn default() -> Self {
        let (threads, attempts) = (THREADS, ATTEMPTS);
        let (timeout, check_timeout) = (TIMEOUT, CHECK_TIMEOUT);
        Self { threads, attempts, timeout, check_timeout, check: &[], files: &[], bearer: None }
    }
}

/// A Python that fetches. It ends with this.
#[derive(Debug)]
pub struct Fetch {
    child: Child,
    said: Option<BufReader<ChildStdout>>,
    asked: usize,
    wanted: usize,
}

impl Fetch {
    /// Fetches files, with a secret where a host wants one; as [`Fetch::start`].
    ///
    /// # Errors
    /// Where the file `told` cannot be written or the interpreter not started.
    pub fn files(
        python: Command,
        told: &Path,
        files: &[Wanted],
        bearer: Option<&Bearer>,
    ) -> io::Result<Self> {
        Self::run(python, told, &Job { files, bearer, ..Job::default() })
    }

    /// Asks the addresses of `check` whether they answer, and once all of them have, fetches `files`; none is written
    /// before. `python` starts an interpreter; what it is to do is written to the file `told`.
    ///
    /// # Errors
    /// Where the file cannot be written or the interpreter not started.
    pub(crate) fn start(
        python: Command,
        told: &Path,
        check: &[String],
        files: &[Wanted],
    ) -> io::Result<Self> {
        Self::run(python, told, &Job { check, files, ..Job::default() })
    }

    /// Asks for the sizes of files, which are worth a short wait only.
    ///
    /// # Errors
    /// As [`Fetch::start`] has them, and those of [`Fetch::answers`].
    pub(crate) fn sizes(python: Command, told: &Path, urls: &[String]) -> io::Result<Vec<Answer>> {
        let (threads, timeout) = (SIZE_THREADS, SIZE_TIMEOUT);
        let short = Job { threads, attempts: 1, timeout, check_timeout: timeout, ..Job::default() };
        Self::run(python, told, &Job { check: urls, ..short })?.answers()
    }

    fn run(mut python: Command, told: &Path, job: &Job<'_>) -> io::Result<Self> {
        std::fs::write(told, serde_json::to_vec(job)?)?;
        python.args(["-S", "-c", SCRIPT]).arg(told).stdout(Stdio::piped());
        let mut child = python.spawn()?;
        let said = child.stdout.take().map(BufReader::new);
        Ok(Self { child, said, asked: job.check.len(), wanted: job.files.len() })
    }

    /// Waits until each address that was asked has answered, or did not.
    ///
    /// # Errors
    /// Where the interpreter cannot be listened to.
    pub(crate) fn answers(&mut self) -> io::Result<Vec<Answer>> {
        // An address that is never spoken of did not answer.
        let mut answers = vec![Err("no answer".to_owned()); self.asked];
        for _ in 0..self.asked {
            let Some(line) = self.line()? else { break };
            if let Some((number, answer)) = parse_answer(&line).filter(|it| it.0 < self.asked) {
                answers[number] = answer;
            }
        }
        Ok(answers)
    }

    /// What happens next to the files, `None` once there is nothing left to do.
    ///
    /// # Errors
    /// Where the interpreter cannot be listened to, or failed.
    pub fn next_event(&mut self) -> io::Result<Option<Event>> {
        while let Some(line) = self.line()? {
            if let Some(event) = parse(&line, self.wanted) {
                return Ok(Some(event));
            }
        }
        let status = self.child.wait()?;
        match status.success() {
            true => Ok(None),
            false => Err(io::Error::other(format!("fetching files it ended with {status}"))),
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
        // What has come so far is kept; nobody waits for the rest. It may have ended by itself.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What an address said, with its number.
fn parse_answer(line: &str) -> Option<(usize, Answer)> {
    let mut fields = line.splitn(3, '\t');
    let (what, number, value) = (fields.next()?, fields.next()?.parse().ok()?, fields.next()?);
    match what {
        "answers" => Some((number, Ok(value.parse().ok()))),
        "silent" => Some((number, Err(value.to_owned()))),
        _ => None,
    }
}

/// Reads one line; `None` for one that is not of the script's making.
fn parse(line: &str, count: usize) -> Option<Event> {
    let mut fields = line.splitn(3, '\t');
    let (what, number, value) = (fields.next()?, fields.next()?, fields.next()?);
    let number: usize = number.parse().ok().filter(|number| *number < count)?;
    let text = || value.to_owned();
    Some(match what {
        "bytes" => Event::Bytes(number, value.parse().ok()?),
        "dropped" => Event::Dropped(number, text()),
        "done" => Event::Done(number, value.parse().ok()?),
        "mismatch" => Event::Mismatch(number, text()),
        "failed" => Event::Failed(number, text()),
        _ => return None,
    })
}
