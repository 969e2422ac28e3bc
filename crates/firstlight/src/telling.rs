//! A process of this program that tells what it does, a line of JSON each. It has not to be trusted to answer, nor to end.

use crate::own_program::own_program;
use serde::de::DeserializeOwned;
use std::io::{BufRead, BufReader, Read, Write};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// It runs until it ends by itself or is dropped.
pub(crate) struct Telling<T> {
    child: Child,
    told: Receiver<T>,
    /// What it writes to standard error; the last line says why it ended.
    said: Option<JoinHandle<String>>,
}

/// What became of waiting for a word.
pub(crate) enum Heard<T> {
    Word(T),
    /// It said nothing for as long as it was waited for.
    Nothing,
    /// It says nothing more.
    End,
}

impl<T: DeserializeOwned + Send + 'static> Telling<T> {
    /// Starts this program with what `with` adds to the command.
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
                // Something that is no word of ours ends it like a crash: what it was, nobody can tell.
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

    /// What it tells next, if it does until then.
    pub(crate) fn hears(&self, until: Instant) -> Heard<T> {
        match self.told.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(word) => Heard::Word(word),
            Err(RecvTimeoutError::Timeout) => Heard::Nothing,
            Err(RecvTimeoutError::Disconnected) => Heard::End,
        }
    }

    /// Gives it a word. One that has ended is found out by what it does not tell.
    pub(crate) fn tell(&mut self, word: &str) {
        if let Some(input) = &mut self.child.stdin {
            let _ = writeln!(input, "{word}").and_then(|()| input.flush());
        }
    }

    /// Why it ended; `None` where it ended well.
    pub(crate) fn ended(mut self) -> Option<String> {
        drop(self.child.stdin.take());
        // What a driver in trouble holds back does not end by itself.
        let until = Instant::now() + Duration::from_secs(10);
        let status = loop {
            match self.child.try_wait() {
                Ok(Some(status)) => break status,
                Ok(None) if Instant::now() < until => std::thread::sleep(Duration::from_millis(10)),
                _ => return Some("its process told all and did not end".to_owned()),
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

impl<T> Drop for Telling<T> {
    /// Nothing of a command outlives it.
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Tells whoever started this process a word.
pub(crate) fn tell(word: &impl serde::Serialize) -> anyhow::Result<()> {
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, word)?;
    writeln!(out)?;
    Ok(out.flush()?)
}
