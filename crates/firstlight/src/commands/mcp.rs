//! `firstlight mcp`: a Model Context Protocol server over standard input and output, for agents that set up a machine.
//!
//! Each tool is one command with `--json`, run by this program in a separate process, so that only the protocol reaches
//! standard output and a broken driver does not stop the server.

mod protocol;
mod tools;

use crate::Outcome;
use crate::cli::Mcp;
use crate::own_program::own_program;
use anyhow::Context as _;
use protocol::{Action, INTERNAL_ERROR};
use serde_json::{Value, json};
use std::io::{self, BufRead, Read, Write};
use std::process::{Child, Command, Output, Stdio};
use std::sync::{Mutex, PoisonError};
use std::thread;

/// Maximum size of a message: `explain` may get a long log.
const MAX_BYTES: u64 = 64 << 20;

/// The processes of calls in flight, by request id.
#[derive(Default)]
struct Calls(Mutex<Vec<(Value, Child)>>);

impl Calls {
    fn with<T>(&self, f: impl FnOnce(&mut Vec<(Value, Child)>) -> T) -> T {
        f(&mut self.0.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Starts a command, whose call can be cancelled from then on.
    fn start(&self, id: &Value, call: &tools::Call) -> io::Result<Pipes> {
        let program = own_program()
            .ok_or_else(|| io::Error::other("the path of this program is not known"))?;
        let mut child = Command::new(program)
            .args(&call.arguments)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        self.with(|calls| calls.push((id.clone(), child)));
        Ok(pipes)
    }

    /// Waits for a started command; `None` if its call was cancelled.
    fn finish(&self, id: &Value, pipes: Pipes, input: &str) -> io::Result<Option<Output>> {
        let (stdout, stderr) = exchange(pipes, input.as_bytes());
        let Some(mut child) = self.take(id) else { return Ok(None) };
        Ok(Some(Output { status: child.wait()?, stdout: stdout?, stderr: stderr? }))
    }

    fn take(&self, id: &Value) -> Option<Child> {
        self.with(|calls| {
            let at = calls.iter().position(|(other, _)| other == id)?;
            Some(calls.swap_remove(at).1)
        })
    }

    /// Kills the process of a call, and drops its answer.
    fn cancel(&self, id: &Value) {
        if let Some(mut child) = self.take(id) {
            // It may have ended already.
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

type Pipes = (
    Option<std::process::ChildStdin>,
    Option<std::process::ChildStdout>,
    Option<std::process::ChildStderr>,
);

/// Writes a process's input while reading both of its outputs to the end.
fn exchange(
    (stdin, stdout, stderr): Pipes,
    input: &[u8],
) -> (io::Result<Vec<u8>>, io::Result<Vec<u8>>) {
    fn whole(pipe: Option<impl Read>) -> io::Result<Vec<u8>> {
        let mut bytes = Vec::new();
        pipe.map(|mut pipe| pipe.read_to_end(&mut bytes)).transpose()?;
        Ok(bytes)
    }
    thread::scope(|scope| {
        scope.spawn(move || {
            // A command that does not read its input closes it.
            stdin.map(|mut stdin| stdin.write_all(input))
        });
        let stderr = scope.spawn(move || whole(stderr));
        let stdout = whole(stdout);
        let stderr = stderr.join().unwrap_or_else(|_| Err(io::Error::other("the reader panicked")));
        (stdout, stderr)
    })
}

/// The result of a call. Exit codes 0, 1 and 3 are answers; 2 is a wrong call or an operational error.
fn answer(output: &Output) -> Value {
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_owned();
    let (shown, problem) = (text(&output.stdout), text(&output.stderr));
    let content = |text: &str| json!([{ "type": "text", "text": text }]);
    if matches!(output.status.code(), Some(0 | 1 | 3)) && !shown.is_empty() {
        let mut result = json!({ "content": content(&shown), "isError": false });
        if let Ok(document) = serde_json::from_str::<Value>(&shown) {
            result["structuredContent"] = document;
        }
        return result;
    }
    let words = if problem.is_empty() { shown } else { problem };
    json!({ "content": content(&words), "isError": true })
}

/// Writes one message on a line. A write error is ignored: the client is gone, and the end of standard input ends the
/// server.
fn send(message: &Value) {
    let mut output = io::stdout().lock();
    let _ = output.write_all(format!("{message}\n").as_bytes()).and_then(|()| output.flush());
}

pub(super) fn run_server(arguments: &Mcp) -> anyhow::Result<Outcome> {
    let calls = Calls::default();
    let mut input = io::stdin().lock();
    // Calls in flight are answered after the end of the input.
    thread::scope(|scope| {
        let mut line = Vec::new();
        loop {
            line.clear();
            let read = (&mut input)
                .take(MAX_BYTES)
                .read_until(b'\n', &mut line)
                .context("standard input cannot be read")?;
            if read == 0 {
                return Ok(Outcome::Good);
            }
            let text = String::from_utf8_lossy(&line);
            if text.trim().is_empty() {
                continue;
            }
            match protocol::action(&text, arguments.allow_changes) {
                Action::Reply(reply) => send(&reply),
                Action::Cancel { id } => calls.cancel(&id),
                Action::Ignore => {}
                Action::Call { id, call } => {
                    let pipes = calls.start(&id, &call);
                    let calls = &calls;
                    scope.spawn(move || {
                        match pipes.and_then(|pipes| calls.finish(&id, pipes, &call.input)) {
                            Ok(Some(output)) => send(&protocol::result(&id, answer(&output))),
                            Ok(None) => {}
                            Err(problem) => {
                                let problem = format!("cannot run firstlight: {problem}");
                                send(&protocol::error(&id, INTERNAL_ERROR, &problem));
                            }
                        }
                    });
                }
            }
        }
    })
}
