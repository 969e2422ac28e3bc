//! The script that reads pages and wheels, run by a local interpreter.

use serde::Serialize;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

const SCRIPT: &str = concat!(include_str!("../http.py"), "\n", include_str!("../index.py"));
/// Parallel requests: each is mostly waiting for a round trip.
const THREADS: u32 = 16;
/// Less time than this is not enough to start the interpreter and to ask once.
const LEAST_TIME: Duration = Duration::from_millis(200);

/// A read request.
#[derive(Debug, Serialize)]
pub(super) struct Job {
    threads: u32,
    timeout: u32,
    /// Seconds after which the script ends, with jobs unfinished.
    limit: Option<f64>,
    pub(super) pages: Vec<PageJob>,
    pub(super) wheels: Vec<WheelJob>,
    names: Vec<NameJob>,
}

#[derive(Debug, Serialize)]
pub(super) struct PageJob {
    pub(super) url: String,
    pub(super) path: PathBuf,
}

#[derive(Debug, Serialize)]
pub(super) struct WheelJob {
    pub(super) url: String,
    pub(super) bytes: u64,
    pub(super) folder: PathBuf,
    /// Whether CUDA libraries are read in addition to METADATA.
    pub(super) libraries: bool,
}

#[derive(Debug, Serialize)]
pub(super) struct NameJob {
    pub(super) url: String,
    pub(super) bytes: u64,
    /// The file that gets `true`, `false`, or `null` if the wheel does not decide.
    pub(super) path: PathBuf,
    pub(super) module: String,
    /// `None` asks for the module.
    pub(super) name: Option<String>,
}

impl Job {
    pub(super) fn pages(pages: Vec<PageJob>, timeout: u32) -> Self {
        Self { pages, ..Self::new(timeout) }
    }

    pub(super) fn wheels(wheels: Vec<WheelJob>, timeout: u32) -> Self {
        Self { wheels, ..Self::new(timeout) }
    }

    pub(super) fn names(names: Vec<NameJob>, timeout: u32) -> Self {
        Self { names, ..Self::new(timeout) }
    }

    fn new(timeout: u32) -> Self {
        let (pages, wheels, names) = Default::default();
        Self { threads: THREADS, timeout, limit: None, pages, wheels, names }
    }
}

/// Runs a job until the deadline; the answers are in its order: pages, wheels, names.
///
/// # Errors
/// If the interpreter does not start, or the deadline is over.
pub(super) fn run(
    python: &Path,
    job: &mut Job,
    deadline: Option<Instant>,
) -> Result<Vec<Result<(), String>>, String> {
    let count = job.pages.len() + job.wheels.len() + job.names.len();
    if count == 0 {
        return Ok(Vec::new());
    }
    if let Some(deadline) = deadline {
        let left = deadline.saturating_duration_since(Instant::now());
        if left < LEAST_TIME {
            return Err("the time for questions to the index is over".to_owned());
        }
        job.limit = Some(left.as_secs_f64());
    }
    let mut file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    let text = serde_json::to_vec(job).map_err(|error| error.to_string())?;
    file.write_all(&text).and_then(|()| file.flush()).map_err(|error| error.to_string())?;
    let output = Command::new(python)
        .args(["-I", "-B", "-S", "-c", SCRIPT])
        .arg(file.path())
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("{}: {error}", python.display()))?;
    // An item that is not reported was not done.
    let ended = String::from_utf8_lossy(&output.stderr);
    let ended = ended.lines().last().unwrap_or("no answer").to_owned();
    let mut answers = vec![Err(ended); count];
    for line in String::from_utf8_lossy(&output.stdout).lines() {
        let mut fields = line.splitn(3, '\t');
        let (what, number) = (fields.next(), fields.next().and_then(|text| text.parse().ok()));
        let Some(answer) = number.and_then(|number: usize| answers.get_mut(number)) else {
            continue;
        };
        *answer = match what {
            Some("done") => Ok(()),
            _ => Err(fields.next().unwrap_or_default().to_owned()),
        };
    }
    Ok(answers)
}
