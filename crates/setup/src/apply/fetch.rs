//! HTTP, spoken by the Python that the plan uses: its standard library has TLS with the system's certificates and
//! proxies, where a TLS of our own would bring a C compiler into every build of firstlight for another machine. uv
//! cannot do this part: it unpacks as it downloads, and a wheel has to be opened before it is installed.

use super::program::Programs;
use super::{ApplyError, places};
use serde::Serialize;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::Stdio;

const SCRIPT: &str = include_str!("fetch.py");
/// Files at once, as many connections as a browser opens; more only helps where latency is high.
const THREADS: usize = 8;
/// Tries for one file; each goes on where the one before ended.
const ATTEMPTS: u32 = 6;
/// Seconds without a byte after which a connection counts as dropped.
const TIMEOUT: u32 = 30;
/// The same for an address that is only asked whether it answers.
const CHECK_TIMEOUT: u32 = 10;

/// A file that is wanted.
#[derive(Debug, Clone, Serialize)]
pub(super) struct Wanted {
    /// Its address.
    pub(super) url: String,
    /// Where it goes.
    pub(super) path: PathBuf,
    /// The SHA-256 it has to have.
    pub(super) sha256: String,
}

/// What happened; the number is the file's in the list of those wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Event {
    /// So many more bytes came.
    Bytes(usize, u64),
    /// The connection ended early and is made again.
    Dropped(usize, String),
    /// The file is in its place; so many bytes came over the network.
    Done(usize, u64),
    /// It is another file than was wanted.
    Mismatch(usize, String),
    /// It could not be fetched, or the address does not answer.
    Failed(usize, String),
    /// The address answers.
    Answers(usize),
}

#[derive(Serialize)]
struct Job<'a> {
    threads: usize,
    attempts: u32,
    timeout: u32,
    #[serde(skip_serializing_if = "Option::is_none")]
    files: Option<&'a [Wanted]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    check: Option<&'a [String]>,
}

/// Speaks HTTP by one Python, with a folder for what it is told.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fetcher<'a> {
    pub(super) python: &'a Path,
    pub(super) work: &'a Path,
    pub(super) programs: &'a Programs<'a>,
}

impl Fetcher<'_> {
    /// Fetches files, and tells what happens as it does; an error of `hear` ends it.
    pub(super) fn files(
        &self,
        files: &[Wanted],
        hear: impl FnMut(Event) -> Result<(), ApplyError>,
    ) -> Result<(), ApplyError> {
        let job = Job {
            threads: THREADS,
            attempts: ATTEMPTS,
            timeout: TIMEOUT,
            files: Some(files),
            check: None,
        };
        self.run(&job, hear)
    }

    /// Asks addresses whether they answer, and gives for each one that does not the reason.
    pub(super) fn check(&self, urls: &[String]) -> Result<Vec<Option<String>>, ApplyError> {
        // An address that was never spoken of did not answer.
        let mut reasons = vec![Some("no answer".to_owned()); urls.len()];
        let job = Job {
            threads: THREADS,
            attempts: 1,
            timeout: CHECK_TIMEOUT,
            files: None,
            check: Some(urls),
        };
        self.run(&job, |event| {
            match event {
                Event::Answers(number) => reasons[number] = None,
                Event::Failed(number, reason) => reasons[number] = Some(reason),
                _ => {}
            }
            Ok(())
        })?;
        Ok(reasons)
    }

    fn run(
        &self,
        job: &Job,
        mut hear: impl FnMut(Event) -> Result<(), ApplyError>,
    ) -> Result<(), ApplyError> {
        let count = job.files.map_or(0, <[_]>::len) + job.check.map_or(0, <[_]>::len);
        if count == 0 {
            return Ok(());
        }
        let told = self.work.join("fetch.json");
        places::write(&told, &serde_json::to_vec(job).unwrap_or_default())?;
        let mut command = self.programs.python(self.python)?;
        command.args(["-S", "-c", SCRIPT]).arg(&told).stdout(Stdio::piped());
        let mut child = command.spawn().map_err(ApplyError::io(self.python))?;
        let lines = child.stdout.take().map(BufReader::new);
        let heard = lines.into_iter().flat_map(BufReader::lines).try_for_each(|line| {
            let line = line.map_err(ApplyError::io(self.python))?;
            match parse(&line, count) {
                Some(event) => hear(event),
                None => Ok(()),
            }
        });
        if heard.is_err() {
            // What has come so far is kept; nobody waits for the rest. It may have ended by itself.
            let _ = child.kill();
        }
        let status = child.wait().map_err(ApplyError::io(self.python))?;
        heard?;
        match status.success() {
            true => Ok(()),
            false => Err(ApplyError::Program {
                program: format!("{} (fetching files)", self.python.display()),
                status: status.to_string(),
                said: "see above".to_owned(),
            }),
        }
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
        "answers" => Event::Answers(number),
        _ => return None,
    })
}
