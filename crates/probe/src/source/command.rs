use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Child, Command as Process, ExitStatus, Stdio};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Time for the remaining output of an ended program. A child that holds the pipe open is not waited for longer.
const REST: Duration = Duration::from_millis(200);

/// Time for a killed program to exit. One that is blocked inside a driver never does, and is left to the system.
const GRACE: Duration = Duration::from_millis(50);

/// Maximum output kept of a program; the largest expected one has a few kilobytes.
const LONGEST: usize = 4 << 20;

/// A command whose output is read, and the name of its output in a recorded machine.
pub(crate) struct Command<'a> {
    pub(crate) record: &'a str,
    pub(crate) program: &'a str,
    pub(crate) args: &'a [&'a str],
    pub(crate) limit: Duration,
}

/// Why a command has no usable output.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CommandError {
    /// There is no such program (or, on a recorded machine, no such record).
    Absent,
    /// It failed; `text` is its output.
    Failed { text: String },
    /// It did not end in time and was killed; `text` is its output until then.
    TimedOut { limit: Duration, text: String },
    /// Earlier programs used up the time limit, so it was not started.
    NoTimeLeft,
}

impl std::fmt::Display for CommandError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Absent => f.write_str("not found"),
            Self::Failed { text } => {
                let first = text.lines().find(|line| !line.trim().is_empty());
                f.write_str(first.map_or("failed without a word", str::trim))
            }
            Self::TimedOut { limit, .. } => {
                write!(f, "did not answer within {:.1} s", limit.as_secs_f64())
            }
            Self::NoTimeLeft => {
                f.write_str("was not started: the programs before it took too long")
            }
        }
    }
}

impl Command<'_> {
    /// Runs the program and returns its standard output. Returns within the limit and a quarter of a second in any
    /// case.
    pub(super) fn run(&self, vars: &BTreeMap<String, String>) -> Result<String, CommandError> {
        let mut child = Process::new(self.program)
            .args(self.args)
            .env_clear()
            .envs(vars)
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .map_err(|_| CommandError::Absent)?;
        // Both pipes are drained while the program runs: a full one would block it forever.
        let stdout = OutputReader::of(child.stdout.take());
        let stderr = OutputReader::of(child.stderr.take());
        let Some(status) = ended_within(&mut child, self.limit) else {
            // Not waited for: a program that is blocked inside a driver stays, and so may its child.
            let _ = child.kill();
            ended_within(&mut child, GRACE);
            return Err(CommandError::TimedOut { limit: self.limit, text: stdout.so_far() });
        };
        let text = stdout.text_within(REST);
        if status.success() {
            return Ok(text);
        }
        let errors = stderr.text_within(REST);
        Err(CommandError::Failed { text: if text.trim().is_empty() { errors } else { text } })
    }
}

fn ended_within(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let started = Instant::now();
    let mut pause = Duration::from_micros(200);
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if started.elapsed() < limit => {
                std::thread::sleep(pause);
                pause = (pause * 2).min(Duration::from_millis(5));
            }
            _ => return None,
        }
    }
}

/// A program's output, read by a thread that is abandoned if the program does not end.
struct OutputReader(Arc<(Mutex<Text>, Condvar)>);

#[derive(Default)]
struct Text {
    bytes: Vec<u8>,
    complete: bool,
}

impl OutputReader {
    fn of(pipe: Option<impl Read + Send + 'static>) -> Self {
        let shared = Arc::new((Mutex::new(Text::default()), Condvar::new()));
        let Some(mut pipe) = pipe else { return Self(shared) };
        let kept = Arc::clone(&shared);
        std::thread::spawn(move || {
            let mut part = [0; 4096];
            // A broken pipe ends the text early, which the parser detects.
            while let Ok(count @ 1..) = pipe.read(&mut part) {
                let bytes = &mut lock(&kept.0).bytes;
                let room = LONGEST.saturating_sub(bytes.len()).min(count);
                bytes.extend_from_slice(&part[..room]);
            }
            lock(&kept.0).complete = true;
            kept.1.notify_all();
        });
        Self(shared)
    }

    /// The whole text, or the part read within this time.
    fn text_within(&self, limit: Duration) -> String {
        let text = lock(&self.0.0);
        let waited = self.0.1.wait_timeout_while(text, limit, |text| !text.complete);
        let (text, _) = waited.unwrap_or_else(PoisonError::into_inner);
        String::from_utf8_lossy(&text.bytes).into_owned()
    }

    fn so_far(&self) -> String {
        self.text_within(Duration::ZERO)
    }
}

fn lock(text: &Mutex<Text>) -> MutexGuard<'_, Text> {
    text.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::{Command, CommandError, LONGEST};
    use std::collections::BTreeMap;
    use std::time::{Duration, Instant};

    const LIMIT: Duration = Duration::from_millis(300);

    fn run(script: &[&str]) -> Result<String, CommandError> {
        let command = Command { record: "", program: script[0], args: &script[1..], limit: LIMIT };
        command.run(&BTreeMap::from([("PATH".to_string(), "/usr/bin:/bin".to_string())]))
    }

    fn check(script: &[&str], expect: Result<&str, CommandError>) {
        assert_eq!(run(script), expect.map(str::to_string), "{script:?}");
    }

    #[test]
    fn program_output_is_read_refused_or_stopped() {
        check(&["sh", "-c", "echo yes"], Ok("yes\n"));
        check(&["no-such-program-here"], Err(CommandError::Absent));
        let failed = |text: &str| Err(CommandError::Failed { text: text.to_string() });
        check(&["sh", "-c", "echo printed; echo error >&2; exit 9"], failed("printed\n"));
        check(&["sh", "-c", "echo error >&2; exit 9"], failed("error\n"));
    }

    #[test]
    fn waiting_ends_at_the_time_limit() {
        let within = |script: &str, expect| {
            let started = Instant::now();
            check(&["sh", "-c", script], expect);
            let took = started.elapsed();
            assert!(took < LIMIT + Duration::from_millis(700), "{script}: {took:?}");
        };
        let timed_out =
            |text: &str| Err(CommandError::TimedOut { limit: LIMIT, text: text.into() });
        within("exec sleep 30", timed_out(""));
        // Output before a hang is kept.
        within("echo first; exec sleep 30", timed_out("first\n"));
        // A child that holds the pipe open outlives the program.
        within("sleep 3 & echo yes", Ok("yes\n"));
        within("sleep 3 & echo yes; wait", timed_out("yes\n"));
    }

    #[test]
    fn endless_output_is_bounded() {
        let Err(CommandError::TimedOut { text, .. }) = run(&["yes"]) else { panic!("it ended") };
        assert!(text.len() <= LONGEST && text.starts_with("y\n"), "{}", text.len());
    }
}
