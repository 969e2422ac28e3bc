use std::collections::BTreeMap;
use std::io::Read;
use std::process::{Command as Process, Stdio};
use std::time::{Duration, Instant};

/// A command whose output is read, and the name its output has in a recorded machine.
pub(crate) struct Command<'a> {
    pub(crate) record: &'a str,
    pub(crate) program: &'a str,
    pub(crate) args: &'a [&'a str],
    pub(crate) limit: Duration,
}

/// Why a command gave no output to read.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum CommandError {
    /// There is no such program (or, on a recorded machine, no such record).
    Absent,
    /// It ended with an error; `text` is what it printed all the same.
    Failed { text: String },
    /// It did not end in time and was killed.
    TimedOut,
}

impl std::fmt::Display for CommandError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Absent => f.write_str("not found"),
            Self::Failed { text } => {
                let first = text.lines().find(|line| !line.trim().is_empty());
                f.write_str(first.map_or("failed without a word", str::trim))
            }
            Self::TimedOut => f.write_str("did not end in time"),
        }
    }
}

impl Command<'_> {
    /// Runs the program and returns what it printed to standard output.
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
        // Both pipes are drained while the program runs: one left full would stop it for ever.
        let stdout = drain(child.stdout.take());
        let stderr = drain(child.stderr.take());
        let started = Instant::now();
        let mut pause = Duration::from_micros(200);
        let status = loop {
            match child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if started.elapsed() < self.limit => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_millis(5));
                }
                _ => {
                    // The answers are not waited for: a grandchild may hold the pipes open still.
                    let _ = child.kill();
                    let _ = child.wait();
                    return Err(CommandError::TimedOut);
                }
            }
        };
        let text = stdout.join().unwrap_or_default();
        if status.success() {
            return Ok(text);
        }
        let errors = stderr.join().unwrap_or_default();
        Err(CommandError::Failed { text: if text.trim().is_empty() { errors } else { text } })
    }
}

fn drain(pipe: Option<impl Read + Send + 'static>) -> std::thread::JoinHandle<String> {
    std::thread::spawn(move || {
        let mut bytes = Vec::new();
        if let Some(mut pipe) = pipe {
            // A broken pipe ends the text early, which the parser then judges.
            let _ = pipe.read_to_end(&mut bytes);
        }
        String::from_utf8_lossy(&bytes).into_owned()
    })
}

#[cfg(test)]
mod tests {
    use super::{Command, CommandError};
    use std::collections::BTreeMap;
    use std::time::{Duration, Instant};

    fn check(program: &str, args: &[&str], expect: Result<&str, CommandError>) {
        let command = Command { record: "", program, args, limit: Duration::from_millis(300) };
        let vars = BTreeMap::from([("PATH".to_string(), "/usr/bin:/bin".to_string())]);
        assert_eq!(command.run(&vars), expect.map(str::to_string), "{program} {args:?}");
    }

    #[test]
    fn a_program_is_read_refused_or_stopped() {
        check("sh", &["-c", "echo yes"], Ok("yes\n"));
        check("no-such-program-here", &[], Err(CommandError::Absent));
        let failed = |text: &str| Err(CommandError::Failed { text: text.to_string() });
        check("sh", &["-c", "echo printed; echo error >&2; exit 9"], failed("printed\n"));
        check("sh", &["-c", "echo error >&2; exit 9"], failed("error\n"));
        let started = Instant::now();
        check("sh", &["-c", "exec sleep 30"], Err(CommandError::TimedOut));
        assert!(started.elapsed() < Duration::from_secs(5), "the sleeping program was waited for");
    }
}
