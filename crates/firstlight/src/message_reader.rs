//! Starts a process of this program and reads its messages, one line of JSON each. The process may hang or crash.

use crate::own_program::own_program;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// The process runs until it exits or is dropped.
pub(crate) struct MessageReader<T> {
    child: Child,
    told: Receiver<T>,
    /// Its standard error; the last line says why it ended.
    said: Option<JoinHandle<String>>,
}

/// The result of waiting for a message.
pub(crate) enum Received<T> {
    Word(T),
    /// No message within the time limit.
    Nothing,
    /// The process sends no more messages.
    End,
}

impl<T: DeserializeOwned + Send + 'static> MessageReader<T> {
    /// Starts this program with the arguments that `with` adds.
    pub(crate) fn start(with: impl FnOnce(&mut Command)) -> std::io::Result<Self> {
        let own = own_program().ok_or(std::io::ErrorKind::NotFound)?;
        let mut command = Command::new(own);
        with(&mut command);
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn()?;
        let (send, told) = channel();
        let (output, errors) = (child.stdout.take(), child.stderr.take());
        std::thread::spawn(move || {
            let lines = output.into_iter().flat_map(|output| BufReader::new(output).lines());
            for line in lines.map_while(Result::ok) {
                // Output that is not a message ends it like a crash.
                let Ok(told) = serde_json::from_str(&line) else { break };
                if send.send(told).is_err() {
                    break;
                }
            }
        });
        let said = std::thread::spawn(move || {
            let mut text = Vec::new();
            let _ = errors.map(|mut errors| errors.read_to_end(&mut text));
            String::from_utf8_lossy(&text).into_owned()
        });
        Ok(Self { child, told, said: Some(said) })
    }

    /// Its next message, if one arrives by the deadline.
    pub(crate) fn receive(&self, until: Instant) -> Received<T> {
        match self.told.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(word) => Received::Word(word),
            Err(RecvTimeoutError::Timeout) => Received::Nothing,
            Err(RecvTimeoutError::Disconnected) => Received::End,
        }
    }

    /// Sends it a message. A process that has exited is detected by reading.
    pub(crate) fn send(&mut self, word: &str) {
        if let Some(input) = &mut self.child.stdin {
            let _ = writeln!(input, "{word}").and_then(|()| input.flush());
        }
    }

    /// Why it ended; `None` if it succeeded.
    pub(crate) fn ended(mut self) -> Option<String> {
        drop(self.child.stdin.take());
        // A process that is blocked in a broken driver does not exit.
        let until = Instant::now() + Duration::from_secs(10);
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
                _ => return Some("its process sent all results but did not exit".to_owned()),
            }
        };
        let said = self.said.take().and_then(|said| said.join().ok()).unwrap_or_default();
        if status.code().is_some_and(|code| code < 2) {
            return None;
        }
        let last = said.lines().rev().find(|line| line.starts_with("error: "));
        let last = last.or_else(|| said.lines().rev().find(|line| !line.trim().is_empty()));
        let why = last
            .map(|line| format!(": {}", line.trim_start_matches("error: ")))
            .unwrap_or_default();
        Some(format!("its process ended, {status}{why}"))
    }
}

impl<T> Drop for MessageReader<T> {
    /// Kills the process with its owner.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a message to the parent process.
pub(crate) fn send_message(word: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, word)?;
    writeln!(out)?;
    Ok(out.flush()?)
}
