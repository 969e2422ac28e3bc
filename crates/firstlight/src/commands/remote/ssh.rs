//! The user's ssh, with a time limit for every connection.

use super::host::Host;
use crate::failure::Failure;
use crate::progress::Progress;
use anyhow::Context;
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError, Sender};
use std::thread;
use std::time::{Duration, Instant};

/// Exit status of ssh if ssh itself failed.
const SSH_FAILED: i32 = 255;
/// Bytes per read or write.
const CHUNK: usize = 1 << 16;
/// Time limit for a stopped command to exit, including five seconds on the remote side.
const ENDING: Duration = Duration::from_secs(8);

/// Options of ssh: it never prompts, and a dead connection is detected.
const OPTIONS: &[&str] = &[
    "-T",
    "-o",
    "BatchMode=yes",
    "-o",
    "ConnectTimeout=10",
    "-o",
    "ServerAliveInterval=10",
    "-o",
    "ServerAliveCountMax=3",
];

/// ssh to one machine.
#[derive(Debug)]
pub(super) struct Ssh {
    host: Host,
    /// Maximum silence.
    wait: Duration,
}

/// Output of a script there.
#[derive(Debug)]
pub(super) struct ScriptOutput {
    pub(super) status: ExitStatus,
    pub(super) out: Vec<u8>,
    pub(super) err: String,
}

/// An event on one of the streams of a call.
enum Event {
    Out(Vec<u8>),
    Err(Vec<u8>),
    Sent,
}

/// How a command there ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandEnd {
    /// With this exit status.
    Status(i32),
    /// By this signal.
    Signal(i32),
    /// The connection was lost.
    Lost,
    /// It exceeded its time limit and was killed.
    Late,
}

impl Ssh {
    pub(super) fn new(host: Host, wait: Duration) -> Self {
        Self { host, wait }
    }

    /// The addresses in this machine's name and in ssh's resolved configuration.
    pub(super) fn addresses(&self) -> anyhow::Result<Vec<String>> {
        let mut ssh = self.started_with(&["-G"]);
        let said = self.talk(ssh.arg("--").arg(&self.host.destination), Vec::new())?;
        let configuration = self.good(said, "cannot be resolved in ssh's configuration")?;
        Ok(self.host.addresses(&String::from_utf8_lossy(&configuration)))
    }

    /// Runs a script there and returns its standard output.
    pub(super) fn ask(&self, script: &str, arguments: &[&str]) -> anyhow::Result<Vec<u8>> {
        let said = self.feed(script, arguments, Vec::new())?;
        self.good(said, "cannot be asked")
    }

    /// As [`Self::ask`], with `input` on its standard input; the caller checks its status.
    pub(super) fn feed(
        &self,
        script: &str,
        arguments: &[&str],
        input: Vec<u8>,
    ) -> anyhow::Result<ScriptOutput> {
        self.talk(&mut self.remote(script, arguments), input)
    }

    /// Runs a script there for at most `limit`, with this process's standard output and error, and keeps its standard
    /// input open meanwhile. With `captured`, its output is returned.
    pub(super) fn run(
        &self,
        script: &str,
        arguments: &[&str],
        limit: Duration,
        captured: bool,
    ) -> anyhow::Result<(CommandEnd, Option<String>)> {
        let mut ssh = self.remote(script, arguments);
        ssh.stdin(Stdio::piped());
        if captured {
            ssh.stdout(Stdio::piped());
        }
        let mut child = ssh.spawn().map_err(not_started)?;
        let held = child.stdin.take();
        let reader = child.stdout.take().map(|mut out| {
            thread::spawn(move || {
                let mut text = Vec::new();
                // The output before an error is used.
                let _ = out.read_to_end(&mut text);
                String::from_utf8_lossy(&text).into_owned()
            })
        });
        let until = Instant::now() + limit;
        let mut status = within(&mut child, until)?;
        let late = status.is_none();
        // The remote side stops its command when this closes.
        drop(held);
        if late {
            status = within(&mut child, Instant::now() + ENDING)?;
        }
        if status.is_none() {
            child.kill().and_then(|()| child.wait()).context("ssh cannot be ended")?;
        }
        // A program that outlives ssh, such as its shared connection, may keep the pipe open: it is not read any
        // further.
        let text = match reader {
            Some(reader) if !late => {
                Some(reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic)))
            }
            _ => None,
        };
        Ok((status.filter(|_| !late).map_or(CommandEnd::Late, CommandEnd::of), text))
    }

    /// Standard output of a call that must succeed.
    fn good(&self, said: ScriptOutput, what: &str) -> anyhow::Result<Vec<u8>> {
        match said.status.success() {
            true => Ok(said.out),
            false => {
                let hint = "the machine needs a shell, df, and sha256sum or shasum";
                Err(self.failed(&said, what, hint))
            }
        }
    }

    /// The error of a failed call, with the message of ssh or of the script.
    pub(super) fn failed(&self, said: &ScriptOutput, what: &str, hint: &str) -> anyhow::Error {
        let host = &self.host.destination;
        let words: Vec<&str> =
            said.err.lines().map(str::trim).filter(|it| !it.is_empty()).collect();
        let words = words.last().copied().unwrap_or("without a message");
        if said.status.code() == Some(SSH_FAILED) {
            let hint = format!("`ssh {host} true` has to work without a prompt");
            return Failure::hinted(format!("{host} cannot be reached: {words}"), hint);
        }
        Failure::hinted(format!("{host} {what}: {words} ({})", said.status), hint)
    }

    fn started_with(&self, options: &[&str]) -> Command {
        let mut ssh = Command::new("ssh");
        ssh.args(options).args(OPTIONS);
        if let Some(port) = self.host.port {
            ssh.arg("-p").arg(port.to_string());
        }
        ssh
    }

    /// ssh with a script for the remote `sh`, whatever the user's shell is.
    fn remote(&self, script: &str, arguments: &[&str]) -> Command {
        let mut ssh = self.started_with(&[]);
        let words = [script, "firstlight"].into_iter().chain(arguments.iter().copied());
        let words: Vec<String> = words.map(quoted).collect();
        ssh.arg("--").arg(&self.host.destination).arg(format!("exec sh -c {}", words.join(" ")));
        ssh
    }

    /// Runs it to the end, unless it is silent for too long.
    fn talk(&self, command: &mut Command, input: Vec<u8>) -> anyhow::Result<ScriptOutput> {
        let _progress = Progress::start(&format!("waiting for {}", self.host.destination));
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().map_err(not_started)?;
        let (events, happened) = mpsc::channel();
        if let Some(stdin) = child.stdin.take() {
            let events = events.clone();
            thread::spawn(move || write(stdin, &input, &events));
        }
        if let Some(out) = child.stdout.take() {
            let events = events.clone();
            thread::spawn(move || read(out, &events, Event::Out));
        }
        if let Some(err) = child.stderr.take() {
            thread::spawn(move || read(err, &events, Event::Err));
        }
        let (mut out, mut err) = (Vec::new(), Vec::new());
        loop {
            match happened.recv_timeout(self.wait) {
                Ok(Event::Out(bytes)) => out.extend(bytes),
                Ok(Event::Err(bytes)) => err.extend(bytes),
                Ok(Event::Sent) => {}
                Err(RecvTimeoutError::Disconnected) => break,
                Err(RecvTimeoutError::Timeout) => return Err(self.silent(child)),
            }
        }
        // All its streams are closed; a program that continues without them is not waited for.
        match within(&mut child, Instant::now() + self.wait)? {
            Some(status) => {
                Ok(ScriptOutput { status, out, err: String::from_utf8_lossy(&err).into_owned() })
            }
            None => Err(self.silent(child)),
        }
    }

    fn silent(&self, mut child: Child) -> anyhow::Error {
        // It may have ended just now.
        let _ = child.kill();
        let _ = child.wait();
        Failure::hinted(
            format!("{} sent nothing for {} s", self.host.destination, self.wait.as_secs_f64()),
            "check that the machine is up; allow a slow connection more time with --connect-timeout SECONDS",
        )
    }
}

impl CommandEnd {
    /// A shell reports a program killed by a signal as 128 plus the signal's number.
    fn of(status: ExitStatus) -> Self {
        match status.code() {
            Some(SSH_FAILED) | None => Self::Lost,
            Some(code @ 129..=192) => Self::Signal(code - 128),
            Some(code) => Self::Status(code),
        }
    }
}

/// The status of a program that ends in time.
fn within(child: &mut Child, until: Instant) -> anyhow::Result<Option<ExitStatus>> {
    loop {
        if let Some(status) = child.try_wait().context("ssh cannot be waited for")? {
            return Ok(Some(status));
        }
        if Instant::now() >= until {
            return Ok(None);
        }
        thread::sleep(Duration::from_millis(10));
    }
}

fn write(mut to: impl Write, input: &[u8], events: &Sender<Event>) {
    for chunk in input.chunks(CHUNK) {
        // A program that stops reading reports the reason by its status or its message.
        if to.write_all(chunk).is_err() || events.send(Event::Sent).is_err() {
            return;
        }
    }
}

fn read(mut from: impl Read, events: &Sender<Event>, event: fn(Vec<u8>) -> Event) {
    let mut chunk = vec![0; CHUNK];
    while let Ok(count @ 1..) = from.read(&mut chunk) {
        if events.send(event(chunk[..count].to_vec())).is_err() {
            return;
        }
    }
}

/// The word, quoted for any shell.
fn quoted(word: &str) -> String {
    format!("'{}'", word.replace('\'', "'\\''"))
}

fn not_started(error: std::io::Error) -> anyhow::Error {
    Failure::hinted(format!("ssh cannot be started: {error}"), "install an OpenSSH client")
}
